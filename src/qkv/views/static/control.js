// @ts-check
// The random-label control in words, once for every picture that shows it: what it is, and how early a step of it is.

import { percent, whole } from "./format.js";

export const CONTROL = "random-label control";

// With what its labels are: of runs of earlier versions they kept frequencies, which the control learned.
export const described = (model) => `the ${CONTROL} (${model.get("run").control})`;

// `step 32 of 727 (4%)`
export function when(model, step) {
  const steps = model.get("run").n_steps;
  return step < steps ? `step ${whole(step)} of ${whole(steps)} (${percent(step / steps)})` : `step ${whole(step)}`;
}
