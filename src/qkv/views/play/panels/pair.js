// @ts-check
// Two arms side by side: one column each, the same drawing in both.

import { h } from "../../static/dom.js";

export const ARMS = ["a", "b"];
export const NAMES = { a: "arm A", b: "arm B" };

// -> { a: element, b: element } inside `host`; `what` is shown, for those who hear it.
export function pair(host, what, note = (_) => null) {
  const columns = Object.fromEntries(ARMS.map((arm) => [arm, h("div.arm-body")]));
  host.append(h("div.pair", null, ARMS.map((arm) =>
    h(`section.arm.arm-${arm}`, { "aria-label": `${what} of ${NAMES[arm]}` }, h("p.arm-name", null, NAMES[arm], note(arm)), columns[arm]))));
  return columns;
}

// The end of a scale moved up to 1, 2 or 5 times a power of ten, so that a colour keeps its meaning from frame to frame.
export function steady(value) {
  if (!(value > 0)) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].map((m) => m * power).find((end) => end >= value * 0.999);
}

export const rms = (values) => Math.sqrt(values.reduce((sum, v) => sum + v * v, 0) / values.length);
export const norm = (values) => Math.sqrt(values.reduce((sum, v) => sum + v * v, 0));
