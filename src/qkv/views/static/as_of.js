// @ts-check
// The step that numbers belong to. While a run trains, what was read of it says at which step.

import { h } from "./dom.js";
import { whole } from "./format.js";
import { watch } from "./model.js";

/** @import { Model } from "./model.js" */

// The last update when what `keys` hold was read.
const readAt = (model, keys) => Math.min(...keys.map((key) => model.get("asOf")?.[key] ?? model.get("as_of") ?? 0));

/**
 * Gives `el` the step of what it shows, and says it in words while the run trains, or where it has come to another.
 * @param {Model} model @param {HTMLElement} el @param {string[]} keys  of the model @returns {() => void}
 */
export function asOf(model, el, keys) {
  const line = h("p.as-of.small", { hidden: true });
  const show = () => {
    const [at, pulse] = [readAt(model, keys), model.get("pulse")];
    const isSaid = pulse?.step > 0 && !(pulse.finished && pulse.step === at);
    const words = `As of step ${whole(at)}.`;
    if (line.textContent !== words) {
      el.dataset.step = String(at);
      line.textContent = words;
    }
    if (line.hidden === isSaid) line.hidden = !isSaid;
  };
  el.append(line);
  const stops = ["asOf", "pulse"].map((key) => watch(model, key, show));
  show();
  return () => stops.forEach((stop) => stop());
}
