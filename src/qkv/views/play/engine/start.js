// @ts-check
// Starting values: every matrix by (seed, address), so that arms of a race start alike wherever they have the same matrix.

import { normals, stream } from "./random.js";

// W_E and W_pos N(0, 1/sqrt(d_model)), hidden matrices N(0, 1/sqrt(fan_in)), those that write into the residual stream
// divided by sqrt(2 n_layers) (Radford et al. 2019), W_U N(0, 0.02) so that training begins near a uniform guess.
function spread(kind, shape, n_layers) {
  if (kind === "W_E" || kind === "W_pos") return 1 / Math.sqrt(shape[1]);
  if (kind === "W_U") return 0.02;
  const written = kind === "W_O" || kind === "W_out";
  return 1 / Math.sqrt(shape[0] * (written ? 2 * n_layers : 1));
}

// `held`: kind -> "freeze" or "identity"; an identity replaces the start. `given`: address -> values that replace it.
export function start(model, seed, held = {}, given = {}) {
  for (const { address, kind, shape } of model.entries) {
    const values = model.W[address];
    if (given[address]) values.set(given[address]);
    else if (kind.endsWith("gain")) values.fill(1);
    else normals(values, stream(seed, "start", address), spread(kind, shape, model.sizes.n_layers));
    if (held[kind] === "identity") {
      values.fill(0);
      for (let i = 0; i < shape[0]; i++) values[i * shape[1] + i] = 1;
    }
  }
}

// The entries that an optimizer may touch.
export const trained = (model, held) => model.entries.filter((entry) => !(entry.kind in held));
