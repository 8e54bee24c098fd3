// The nearest orthonormal matrix, by tiles.

#pragma once

#include "tiles.h"

namespace {

// Rows [n, d] turned over as rows [d, n] of another stride.
void turn(const uint16_t *from, long from_stride, long n, long d, uint16_t *to, long to_stride) {
  for (long c = 0; c * SIDE < d; c++)
    for (long row = 0; row < n; row += DEPTH) {
      __m512i pairs[SIDE];
      pair_rows(from + row * from_stride + c * SIDE, from_stride, n - row, columns(d, c), pairs);
      transpose(pairs);
      long left = n - row;
      __mmask32 there = left >= DEPTH ? 0xffffffffu : (1u << left) - 1;
      for (long i = 0; i < SIDE && c * SIDE + i < d; i++)
        _mm512_mask_storeu_epi16(to + (c * SIDE + i) * to_stride + row, there, pairs[i]);
    }
}

// c = a b [n, n] in tiles, n even, where that is symmetric: one half is made and mirrored.
void symmetric(long n, long depth, const void *a, Lie of_a, const uint32_t *b, long next, float *c, Lie of_c) {
  const long width = of_c.row / 4;
  for (long j = 0; j < n; j += 2)
    product(j + 2, 2, depth, true, a, of_a, b + j * (next / 4), next, c + j * SIDE, of_c);
  for (long j = 0; j < n; j++)
    for (long i = 0; i < j - j % 2; i++) {
      __m512i rows[SIDE];
      for (long k = 0; k < SIDE; k++) rows[k] = _mm512_load_si512(c + (i * SIDE + k) * width + j * SIDE);
      transpose(rows);
      for (long k = 0; k < SIDE; k++) _mm512_store_si512(c + (j * SIDE + k) * width + i * SIDE, rows[k]);
    }
}

inline float length(const float *numbers, long count) {
  __m512 sum = _mm512_setzero_ps();
  for (long i = 0; i < count; i += SIDE) {
    __m512 x = _mm512_load_ps(numbers + i);
    sum = _mm512_fmadd_ps(x, x, sum);
  }
  return sqrtf(_mm512_reduce_add_ps(sum));
}

// Of x [rows, columns], which lies in `from`, the polar factor to `to`, by quintic steps (a, b, c) on its singular values:
// X <- (a I + b A + c A^2) X with A = X X^T, the first of X over its length, by (X X^T)^2.
void polar(long rows, long cols, const uint16_t *from, uint16_t *to, long n_steps, const float *steps, float rounding,
           float tiny) {
  const bool tall = rows > cols;
  const long r = tall ? cols : rows, c = tall ? rows : cols, rd = up(r, DEPTH), cd = up(c, DEPTH);
  constexpr long ACROSS = 8;  // tiles of X that are made at a time
  char *room = room_of_thread.of(4 * rd * cd + 8 * rd * rd + 4 * rd * rd + 4 * rd * ACROSS * SIDE);
  uint16_t *x = reinterpret_cast<uint16_t *>(room), *small = x + rd * cd;
  uint32_t *laid = reinterpret_cast<uint32_t *>(small + rd * rd), *laid_small = laid + rd * cd / 2;
  float *gram = reinterpret_cast<float *>(laid_small + rd * rd / 2), *squared = gram + rd * rd;
  float *made = squared + rd * rd;
  memset(x, 0, 2 * rd * cd);
  if (tall) turn(from, cols, rows, cols, x, cd);
  else
    for (long i = 0; i < rows; i++) memcpy(x + i * cd, from + i * cols, 2 * cols);
  Lie wide{2 * cd, 64, 32 * cd}, square{2 * rd, 64, 32 * rd}, sums{4 * rd, 64, 64 * rd};
  for (long step = 0; step < n_steps; step++) {
    float a = steps[3 * step], b = steps[3 * step + 1], d = steps[3 * step + 2], by = 1.f, root = 1.f;
    lay_turned(x, cd, rd, cd, laid);
    symmetric(rd / SIDE, cd / DEPTH, x, wide, laid, cd / DEPTH * BYTES, gram, sums);
    float size = step ? 1.f : length(gram, rd * rd);
    if (size <= tiny) {
      memset(to, 0, 2 * rows * cols);
      return;
    }
    __m512 over = _mm512_set1_ps(1.f / size);
    for (long i = 0; i < rd * rd; i += SIDE) {
      __m512 g = _mm512_mul_ps(_mm512_load_ps(gram + i), over);
      _mm512_store_ps(gram + i, g);
      put_bf16(small + i, 0xffff, g);
    }
    lay_pairs(small, rd, rd, rd, laid_small);
    symmetric(rd / SIDE, rd / DEPTH, small, square, laid_small, rd / DEPTH * BYTES, squared, sums);
    if (!step) {  // at least the largest eigenvalue of the Gram matrix
      float top = length(squared, rd * rd);
      top = sqrtf(top < tiny ? tiny : top) * rounding;
      by = 1.f / top, root = 1.f / sqrtf(size * top);
    }
    __m512 of_gram = _mm512_set1_ps(b * by * root), of_squared = _mm512_set1_ps(d * by * by * root);
    for (long i = 0; i < rd * rd; i += SIDE)
      put_bf16(small + i, 0xffff,
               _mm512_fmadd_ps(_mm512_load_ps(gram + i), of_gram, _mm512_mul_ps(_mm512_load_ps(squared + i), of_squared)));
    for (long i = 0; i < r; i++) {  // with a on the diagonal, before it is rounded
      float entry = gram[i * rd + i] * b * by * root + squared[i * rd + i] * d * by * by * root + a * root;
      put_bf16(small + i * rd + i, 1, _mm512_set1_ps(entry));
    }
    lay_pairs(x, cd, rd, cd, laid);
    for (long j = 0; j < cd / SIDE; j += ACROSS) {
      long n = cd / SIDE - j < ACROSS ? cd / SIDE - j : ACROSS;
      product(rd / SIDE, n, rd / DEPTH, true, small, square, laid + j * (rd / DEPTH) * TILE, rd / DEPTH * BYTES, made,
              {4 * ACROSS * SIDE, 64, 64 * ACROSS * SIDE});
      for (long i = 0; i < r; i++)
        for (long k = 0; k < n; k++)
          put_bf16(x + i * cd + (j + k) * SIDE, 0xffff, _mm512_load_ps(made + (i * ACROSS + k) * SIDE));
    }
  }
  if (tall) turn(x, cd, r, c, to, cols);
  else
    for (long i = 0; i < rows; i++) memcpy(to + i * cols, x + i * cd, 2 * cols);
}

}  // namespace
