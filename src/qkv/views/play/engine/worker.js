// @ts-check
// An arm in a thread of its own. Messages in: { id, make } or { id, run, look, sentence, writes }; out: { id, ... } or { id, error }.

import { Arm } from "./arm.js";

let arm = null;

const WRITTEN = 90;

function answer({ make, run, look, sentence, writes }) {
  if (make) {
    arm = new Arm(make.shared, make.arm, make.given);
    return { entries: arm.model.entries, origin: arm.origin, sizes: arm.model.sizes, wiring: arm.model.wiring, held: arm.held };
  }
  const out = arm.run(run);
  const seen = look ? arm.look(sentence) : null;
  return { ...out, written: writes ? arm.write(sentence, WRITTEN) : null, taken: arm.taken, seen };
}

self.onmessage = ({ data }) => {
  try {
    const out = answer(data);
    const buffers = out.seen ? [out.seen.weights.buffer, out.seen.gradients.buffer] : [];
    self.postMessage({ id: data.id, ...out }, { transfer: buffers });
  } catch (error) {
    self.postMessage({ id: data.id, error: String(error?.message ?? error) });
  }
};
