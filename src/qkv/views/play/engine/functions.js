// @ts-check
// The parts of a Transformer that are not matrix products, each forward and backward by hand. Loops declare one number at a
// time: `[a, b] = [x, y]` makes an array of objects in some engines.

import { exp, normalProduct } from "./special.js";

export const NORM_EPS = 1e-5;

// GELU, x Phi(x) (Hendrycks and Gimpel 2016, arXiv 1606.08415), the exact one: values into `out`, derivatives into `slope`.
export const gelu = normalProduct;

// LayerNorm without bias (Ba et al. 2016, arXiv 1607.06450) of `rows` vectors of width d: `unit` is the vector before the
// gain, `inverse` 1 / sqrt(variance + eps).
export function layerNorm(x, gain, unit, inverse, out, rows, d) {
  for (let r = 0; r < rows; r++) {
    const at = r * d;
    let mean = 0;
    let square = 0;
    for (let i = 0; i < d; i++) mean += x[at + i];
    mean /= d;
    for (let i = 0; i < d; i++) {
      const off = x[at + i] - mean;
      square += off * off;
    }
    const scale = 1 / Math.sqrt(square / d + NORM_EPS);
    inverse[r] = scale;
    for (let i = 0; i < d; i++) {
      const u = (x[at + i] - mean) * scale;
      unit[at + i] = u;
      out[at + i] = u * gain[i];
    }
  }
}

// dx (+)= the gradient through LayerNorm of dy; dgain += its gradient.
export function layerNormBackward(dy, gain, unit, inverse, dx, dgain, rows, d, add) {
  for (let r = 0; r < rows; r++) {
    const at = r * d;
    let mean = 0;
    let along = 0;
    for (let i = 0; i < d; i++) {
      const g = dy[at + i] * gain[i];
      mean += g;
      along += g * unit[at + i];
      dgain[i] += dy[at + i] * unit[at + i];
    }
    mean /= d;
    along /= d;
    for (let i = 0; i < d; i++) {
      const g = inverse[r] * (dy[at + i] * gain[i] - mean - unit[at + i] * along);
      dx[at + i] = add ? dx[at + i] + g : g;
    }
  }
}

// scores [n, n] at `at`, in place, to the causal pattern softmax(scale * scores): row q sees keys 0..q, others get 0.
export function causalSoftmax(scores, at, n, scale) {
  for (let q = 0; q < n; q++, at += n) {
    let top = -Infinity;
    for (let k = 0; k <= q; k++) top = Math.max(top, scores[at + k]);
    let sum = 0;
    for (let k = 0; k <= q; k++) sum += scores[at + k] = exp(scale * (scores[at + k] - top));
    for (let k = 0; k <= q; k++) scores[at + k] /= sum;
    for (let k = q + 1; k < n; k++) scores[at + k] = 0;
  }
}

// grad [n, n], in place: from d loss / d pattern to d loss / d (q k^T), through softmax and the scale.
export function causalSoftmaxBackward(grad, pattern, at, n, scale) {
  for (let q = 0; q < n; q++) {
    const row = at + q * n;
    let sum = 0;
    for (let k = 0; k <= q; k++) sum += grad[q * n + k] * pattern[row + k];
    for (let k = 0; k <= q; k++) grad[q * n + k] = scale * pattern[row + k] * (grad[q * n + k] - sum);
    for (let k = q + 1; k < n; k++) grad[q * n + k] = 0;
  }
}

// logits [rows, n], in place, to probabilities; -> [the mean loss in nats over rows that have a target, the share of them
// where the target is the likeliest, their number]. A target of -1 is none.
export function crossEntropy(logits, targets, rows, n) {
  let loss = 0;
  let right = 0;
  let count = 0;
  for (let r = 0; r < rows; r++) {
    const at = r * n;
    let top = 0;
    for (let i = 1; i < n; i++) if (logits[at + i] > logits[at + top]) top = i;
    const high = logits[at + top];
    const target = targets[r];
    const given = target < 0 ? 0 : logits[at + target] - high;
    let sum = 0;
    for (let i = 0; i < n; i++) sum += logits[at + i] = exp(logits[at + i] - high);
    for (let i = 0; i < n; i++) logits[at + i] /= sum;
    if (target < 0) continue;
    loss += Math.log(sum) - given;
    right += top === target ? 1 : 0;
    count++;
  }
  return [loss / count, right / count, count];
}
