// @ts-check
// The step that numbers belong to. What was read before the newest step of a training says so.

import { h } from "./dom.js";
import { whole } from "./format.js";
import { watch } from "./model.js";

/** @import { Model } from "./model.js" */

// The last update when what `keys` hold was read.
const readAt = (model, keys) => Math.min(...keys.map((key) => model.get("asOf")?.[key] ?? model.get("as_of") ?? 0));

/**
 * Gives `el` the step of what it shows, and a line in words while the run is at another.
 * @param {Model} model @param {HTMLElement} el @param {string[]} keys  of the model @returns {() => void}
 */
export function asOf(model, el, keys) {
  const line = h("p.as-of.small", { hidden: true });
  const show = () => {
    const [at, now] = [readAt(model, keys), model.get("pulse")?.step];
    const isOld = now !== undefined && now !== at;
    if (el.dataset.step !== String(at)) {
      el.dataset.step = String(at);
      line.textContent = `As of step ${whole(at)}.`;
    }
    if (line.hidden === isOld) line.hidden = !isOld;
  };
  el.append(line);
  const stops = ["asOf", "pulse"].map((key) => watch(model, key, show));
  show();
  return () => stops.forEach((stop) => stop());
}
