// An arm in a thread of its own. Messages in: { id, make } or { id, run, look, sentence }; out: { id, ... } or { id, error }.

import { Arm } from "./arm.js";

let arm = null;

function answer({ make, run, look, sentence }) {
  if (make) {
    arm = new Arm(make.shared, make.arm, make.given);
    return { entries: arm.model.entries, origin: arm.origin, sizes: arm.model.sizes, held: arm.held };
  }
  const began = performance.now();
  const out = arm.run(run);
  const milliseconds = performance.now() - began;
  return { ...out, taken: arm.taken, milliseconds, seen: look ? arm.look(sentence ?? arm.task.sentence) : null };
}

self.onmessage = ({ data }) => {
  try {
    const out = answer(data);
    const buffers = out.seen ? [out.seen.weights.buffer, out.seen.gradients.buffer] : [];
    self.postMessage({ id: data.id, ...out }, buffers);
  } catch (error) {
    self.postMessage({ id: data.id, error: String(error?.message ?? error) });
  }
};
