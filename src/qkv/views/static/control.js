// @ts-check
// The random-label control in words, once for every picture that shows it: what it is, and how early a step of it is.

import { percent, whole } from "./format.js";

export const CONTROL = "random-label control";

// What its labels keep, so that nobody takes it for a training that learns nothing.
export const described = (model) => `the ${CONTROL} (${model.get("run").control})`;

// `step 32 of 727 (4%)`
export function when(model, step) {
  const steps = model.get("run").n_steps;
  return step < steps ? `step ${whole(step)} of ${whole(steps)} (${percent(step / steps)})` : `step ${whole(step)}`;
}
