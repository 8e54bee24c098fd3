// @ts-check
// Special functions: exp and the standard normal distribution by tables, several times as fast as Math.exp and a rational erf
// for as many digits.

const SLICES = 64; // of a factor of two
const [LN2_HIGH, LN2_LOW] = [6.93147180369123816490e-1 / SLICES, 1.90821492927058770002e-10 / SLICES];
const LEAST = -708; // exp of less is below the normal numbers: 0 here
const SLICE = Float64Array.from({ length: SLICES }, (_, i) => 2 ** (i / SLICES));
const HALVED = Float64Array.from({ length: 1030 }, (_, i) => 2 ** -i);

// exp(x) for x <= 0, to about one unit of the last digit: 2^(-k + j / 64) exp(r), |r| <= ln 2 / 128 (Tang 1989).
export function exp(x) {
  if (!(x >= LEAST)) return x < LEAST ? 0 : x;
  const n = Math.floor((x * SLICES) / Math.LN2 + 0.5);
  const r = x - n * LN2_HIGH - n * LN2_LOW;
  const more = r * (1 + r * (1 / 2 + r * (1 / 6 + r * (1 / 24 + r * (1 / 120)))));
  const k = -(n >> 6);
  const slice = SLICE[n & (SLICES - 1)];
  return (slice + slice * more) * HALVED[k];
}

// (1 - Phi(x)) / phi(x) of x >= 0, by sums in which nothing cancels: up to 3 by x + x^3 / 3 + x^5 / (3 5) + ... (Marsaglia 2004,
// "Evaluating the normal distribution", Journal of Statistical Software 11), beyond by Laplace's continued fraction.
function above(x, bell) {
  let [sum, term, rest] = [x, x, x];
  if (x > 3) for (let n = 100; n > 0; n--) rest = x + n / rest;
  else for (let odd = 3; term > 1e-17 * sum; odd += 2) sum += term *= (x * x) / odd;
  return x > 3 ? 1 / rest : 0.5 / bell - sum;
}

const STEPS = 128; // table entries a unit
const FAR = 9; // beyond, Phi is 0 or 1 and the bell 0, to 2e-18
const NORMAL = new Float64Array(2 * (2 * FAR * STEPS + 1));
for (let i = 0; i < NORMAL.length / 2; i++) {
  const x = i / STEPS - FAR;
  const bell = Math.exp(-0.5 * x * x) * 0.3989422804014327;
  const more = bell * above(Math.abs(x), bell);
  NORMAL[2 * i] = x < 0 ? more : 1 - more;
  NORMAL[2 * i + 1] = bell;
}

// Of each x: x Phi(x), and its derivative Phi(x) + x phi(x). Taylor's series about the nearest of the table's points, at most
// 1/256 away: the derivatives of phi are Hermite polynomials times phi, and what is left out is below 1e-17.
export function normalProduct(x, out, slope, n) {
  for (let i = 0; i < n; i++) {
    const v = x[i];
    if (v >= FAR || v <= -FAR) {
      out[i] = v > 0 ? v : 0;
      slope[i] = v > 0 ? 1 : 0;
      continue;
    }
    const place = Math.floor(v * STEPS + 0.5);
    const a = place / STEPS;
    const d = v - a;
    const at = 2 * (place + FAR * STEPS);
    const phi = NORMAL[at + 1];
    const s = a * a;
    const He2 = s - 1, He3 = a * (s - 3), He4 = s * (s - 6) + 3, He5 = a * (s * (s - 10) + 15);
    const area = NORMAL[at] + phi * d * (1 - d * (a / 2 - d * (He2 / 6 - d * (He3 / 24 - (d * He4) / 120))));
    const bell = phi * (1 - d * (a - d * (He2 / 2 - d * (He3 / 6 - d * (He4 / 24 - (d * He5) / 120)))));
    out[i] = v * area;
    slope[i] = area + v * bell;
  }
}
