// @ts-check
// Matrix products in float64, the one place where the time goes. A matrix is (array, start, strides); JavaScript holds
// numbers as float64, so a Float64Array costs no conversion.
//
// C[i, j] (+)= sum over p of A[i, p] B[p, j]: tiles kept in registers, by WebAssembly with vectors where all three lie in
// its memory, else by JavaScript; p in stretches that stay in cache. Both add in the same order: the same numbers.

import { simd } from "./simd.js";

const STRETCH = 64;
const SPARE = 16384; // numbers, more than any weight or head has
let [fast, used, spare] = [null, 0, new Float64Array(0)];

// Begin a new model: what was reserved before is free again. `vectors`: use WebAssembly where there is any.
export function begin(vectors = true) {
  fast = vectors ? fast ?? simd() : null;
  used = 0;
  spare = new Float64Array(0);
  spare = numbers(SPARE);
}

export const hasVectors = () => fast !== null;

// `n` zeros, in the memory of the fast products as long as it has room.
export function numbers(n) {
  if (!fast || used + 8 * n > fast.buffer.byteLength) return new Float64Array(n);
  const out = new Float64Array(fast.buffer, used, n).fill(0);
  used += 8 * n;
  return out;
}

// C: start c0, row stride ci, columns adjacent. A: any strides ai (rows), ap (columns). B: bp (rows), bj (columns).
export function multiply(c, c0, ci, a, a0, ai, ap, b, b0, bp, bj, m, n, k, add) {
  if (bj !== 1) {
    b = adjacent(b, b0, bp, bj, k, n);
    b0 = 0;
    bp = n;
  }
  const vectors = fast !== null && c.buffer === fast.buffer && a.buffer === fast.buffer && b.buffer === fast.buffer;
  const m4 = m & ~3;
  const n4 = n & ~3;
  for (let p0 = 0; p0 < k; p0 += STRETCH) {
    const count = Math.min(STRETCH, k - p0);
    const ap0 = a0 + p0 * ap;
    const bp0 = b0 + p0 * bp;
    const more = add || p0 > 0;
    if (m4 && n4 && vectors) {
      fast.tiles(c.byteOffset + 8 * c0, 8 * ci, a.byteOffset + 8 * ap0, 8 * ai, 8 * ap, b.byteOffset + 8 * bp0, 8 * bp, m4, n4, count, more ? 1 : 0);
    } else {
      tiles(c, c0, ci, a, ap0, ai, ap, b, bp0, bp, m4, n4, count, more);
    }
    if (n4 < n) plain(c, c0 + n4, ci, a, ap0, ai, ap, b, bp0 + n4, bp, m4, n - n4, count, more);
    if (m4 < m) plain(c, c0 + m4 * ci, ci, a, ap0 + m4 * ai, ai, ap, b, bp0, bp, m - m4, n, count, more);
  }
}

// B with its columns adjacent, [k, n] in an array that is used again.
function adjacent(b, b0, bp, bj, k, n) {
  if (spare.length < k * n) spare = numbers(k * n);
  for (let j = 0; j < n; j++) {
    for (let p = 0, from = b0 + j * bj, to = j; p < k; p++, from += bp, to += n) spare[to] = b[from];
  }
  return spare;
}

function plain(c, c0, ci, a, a0, ai, ap, b, b0, bp, m, n, k, add) {
  for (let i = 0; i < m; i++) {
    for (let j = 0; j < n; j++) {
      let sum = add ? c[c0 + i * ci + j] : 0;
      for (let p = 0; p < k; p++) sum += a[a0 + i * ai + p * ap] * b[b0 + p * bp + j];
      c[c0 + i * ci + j] = sum;
    }
  }
}

function tiles(c, c0, ci, a, a0, ai, ap, b, b0, bp, m, n, k, add) {
  for (let i = 0; i < m; i += 2) {
    for (let j = 0; j < n; j += 4) {
      const at = c0 + i * ci + j;
      const below = at + ci;
      let s0 = 0, s1 = 0, s2 = 0, s3 = 0, t0 = 0, t1 = 0, t2 = 0, t3 = 0;
      if (add) {
        s0 = c[at]; s1 = c[at + 1]; s2 = c[at + 2]; s3 = c[at + 3];
        t0 = c[below]; t1 = c[below + 1]; t2 = c[below + 2]; t3 = c[below + 3];
      }
      let x = a0 + i * ai;
      let y = b0 + j;
      for (let p = 0; p < k; p++) {
        const u = a[x], v = a[x + ai];
        const w0 = b[y], w1 = b[y + 1], w2 = b[y + 2], w3 = b[y + 3];
        s0 += u * w0; s1 += u * w1; s2 += u * w2; s3 += u * w3;
        t0 += v * w0; t1 += v * w1; t2 += v * w2; t3 += v * w3;
        x += ap;
        y += bp;
      }
      c[at] = s0; c[at + 1] = s1; c[at + 2] = s2; c[at + 3] = s3;
      c[below] = t0; c[below + 1] = t1; c[below + 2] = t2; c[below + 3] = t3;
    }
  }
}

// C [m, n] = A [m, k] B [k, n], all dense and row by row.
export const product = (c, a, b, m, n, k, add = false) => multiply(c, 0, n, a, 0, k, 1, b, 0, n, 1, m, n, k, add);

// C [m, n] = A [m, k] B^T, B [n, k].
export const productBT = (c, a, b, m, n, k, add = false) => multiply(c, 0, n, a, 0, k, 1, b, 0, 1, k, m, n, k, add);

// C [m, n] += A^T B, A [k, m], B [k, n]: the gradient of a weight.
export const addATB = (c, a, b, m, n, k) => multiply(c, 0, n, a, 0, 1, m, b, 0, n, 1, m, n, k, true);
