// @ts-check
// What the model wrote after the same prompt, as it learned.

import { h } from "./dom.js";
import { whole } from "./format.js";
import { view } from "./view.js";

const SHOWN = 4;

// A continuation stands behind its prompt; any other output stands alone, what it answers shown once above.
function block(sample) {
  return h("div.sample", null, h("p.sample-step", null, sample.step === 0 ? "before training" : `step ${whole(sample.step)}`),
    h("pre", { tabindex: "0", "aria-label": `sample at step ${sample.step}` }, sample.continues ? h("span.prompt", null, sample.prompt) : null, sample.text));
}

function build({ el }, samples) {
  if (!samples[0].continues) el.append(h("div.sample", null, h("p.sample-step", null, samples[0].given), h("pre", null, h("span.prompt", null, samples[0].prompt))));
  const last = samples.length - 1;
  const chosen = new Set(samples.length <= SHOWN ? samples.keys()
    : Array.from({ length: SHOWN }, (_, i) => Math.round((i * last) / (SHOWN - 1))));
  el.append(h("div.samples", null, samples.filter((_, i) => chosen.has(i)).map(block)));
  if (samples.length > SHOWN) {
    el.append(h("details.small", null, h("summary", null, `all ${samples.length} samples`), h("div.samples", null, samples.map(block))));
  }
}

export default view(build, { needs: (model) => model.get("samples")?.length && model.get("samples"), redrawOn: ["samples"] });
