// The parts of a Transformer that are not matrix products, each forward and backward by hand.

export const NORM_EPS = 1e-5;

// erf(x) to about fifteen digits: rational approximations of Cody 1969 ("Rational Chebyshev approximations
// for the error function", Mathematics of Computation 23), as in his CALERF.
const A = [3.1611237438705656, 113.864154151050156, 377.485237685302021, 3209.37758913846947, 0.185777706184603153];
const B = [23.6012909523441209, 244.024637934444173, 1282.61652607737228, 2844.23683343917062];
const C = [0.564188496988670089, 8.88314979438837594, 66.1191906371416295, 298.635138197400131, 881.95222124176909,
  1712.04761263407058, 2051.07837782607147, 1230.33935479799725, 2.15311535474403846e-8];
const D = [15.7449261107098347, 117.693950891312499, 537.181101862009858, 1621.38957456669019, 3290.79923573345963,
  4362.61909014324716, 3439.36767414372164, 1230.33935480374942];
const P = [0.305326634961232344, 0.360344899949804439, 0.125781726111229246, 0.0160837851487422766, 6.58749161529837803e-4,
  0.0163153871373020978];
const Q = [2.56852019228982242, 1.87295284992346047, 0.527905102951428412, 0.0605183413124413191, 0.00233520497626869185];

export function erf(x, bell = Math.exp(-x * x)) {
  const y = Math.abs(x);
  if (y <= 0.46875) {
    const s = y * y;
    const top = (((A[4] * s + A[0]) * s + A[1]) * s + A[2]) * s + A[3];
    return (x * top) / ((((s + B[0]) * s + B[1]) * s + B[2]) * s + B[3]);
  }
  let rest;
  if (y <= 4) {
    let [top, bottom] = [C[8] * y, y];
    for (let i = 0; i < 7; i++) {
      top = (top + C[i]) * y;
      bottom = (bottom + D[i]) * y;
    }
    rest = (bell * (top + C[7])) / (bottom + D[7]);
  } else {
    const s = 1 / (y * y);
    let [top, bottom] = [P[5] * s, s];
    for (let i = 0; i < 4; i++) {
      top = (top + P[i]) * s;
      bottom = (bottom + Q[i]) * s;
    }
    rest = (bell * (0.5641895835477563 - (s * (top + P[4])) / (bottom + Q[4]))) / y;
  }
  return x < 0 ? rest - 1 : 1 - rest;
}

// GELU, x Phi(x) (Hendrycks and Gimpel 2016, arXiv 1606.08415), the exact one: values into `out`, derivatives into `slope`.
export function gelu(x, out, slope, n) {
  for (let i = 0; i < n; i++) {
    const v = x[i];
    const bell = Math.exp(-0.5 * v * v);
    const phi = 0.5 * (1 + erf(v * Math.SQRT1_2, bell));
    out[i] = v * phi;
    slope[i] = phi + v * bell * 0.3989422804014327;
  }
}

// LayerNorm without bias (Ba et al. 2016, arXiv 1607.06450) of `rows` vectors of width d: `unit` is the vector before the
// gain, `inverse` 1 / sqrt(variance + eps).
export function layerNorm(x, gain, unit, inverse, out, rows, d) {
  for (let r = 0; r < rows; r++) {
    const at = r * d;
    let [mean, square] = [0, 0];
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
    let [mean, along] = [0, 0];
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
    for (let k = 0; k <= q; k++) sum += scores[at + k] = Math.exp(scale * (scores[at + k] - top));
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
  let [loss, right, count] = [0, 0, 0];
  for (let r = 0; r < rows; r++) {
    const at = r * n;
    let top = 0;
    for (let i = 1; i < n; i++) if (logits[at + i] > logits[at + top]) top = i;
    const [high, target] = [logits[at + top], targets[r]];
    const given = target < 0 ? 0 : logits[at + target] - high;
    let sum = 0;
    for (let i = 0; i < n; i++) sum += logits[at + i] = Math.exp(logits[at + i] - high);
    for (let i = 0; i < n; i++) logits[at + i] /= sum;
    if (target < 0) continue;
    loss += Math.log(sum) - given;
    right += top === target ? 1 : 0;
    count++;
  }
  return [loss / count, right / count, count];
}
