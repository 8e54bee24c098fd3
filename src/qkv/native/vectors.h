// Products of float32 by vectors, a block of rows and of two vectors at a time.

#pragma once

#include "numbers.h"
#include "workspace.h"

namespace {

constexpr long DOWN = WIDTH == 16 ? 8 : 4;  // rows of a block of a product, of two vectors each

// Some rows of c (+)= those of a, times V vectors of each row of b [k, .]; a as it lies, or turned over: [k, rows].
template <long V, bool TURNED>
HERE void block(long k, const float *a, long of_a, long rows, const float *b, long of_b, bool fresh, float *c, long of_c) {
  floats sums[DOWN][V];
  const float *at[DOWN], *column = a;
  for (long i = 0; i < DOWN; i++) at[i] = a + (i < rows ? i : rows - 1) * of_a;
  for (long i = 0; i < DOWN; i++)
    for (long j = 0; j < V; j++) sums[i][j] = fresh || i >= rows ? floats{} : load(c + i * of_c + j * WIDTH);
  for (long step = 0; step < k; step++, b += of_b, column += of_a) {
    floats right[V];
    for (long j = 0; j < V; j++) right[j] = load(b + j * WIDTH);
#pragma GCC unroll 8
    for (long i = 0; i < DOWN; i++) {
      const floats left = floats{} + (TURNED ? column[i] : at[i][step]);
      for (long j = 0; j < V; j++) sums[i][j] += left * right[j];
    }
  }
  for (long i = 0; i < rows && i < DOWN; i++)
    for (long j = 0; j < V; j++) store(c + i * of_c + j * WIDTH, sums[i][j]);
}

// c [rows, width] (+)= a b over k; width in whole vectors. Turned, rows past the last may be read of a, and are not made.
template <bool TURNED>
void product(long rows, long width, long k, const float *a, long of_a, const float *b, long of_b, bool fresh, float *c,
             long of_c) {
  for (long j = 0; j < width; j += 2 * WIDTH)
    for (long i = 0; i < rows; i += DOWN) {
      const float *left = a + (TURNED ? i : i * of_a);
      const long some = rows - i < DOWN ? rows - i : DOWN;
      if (j + WIDTH < width) block<2, TURNED>(k, left, of_a, some, b + j, of_b, fresh, c + i * of_c + j, of_c);
      else block<1, TURNED>(k, left, of_a, some, b + j, of_b, fresh, c + i * of_c + j, of_c);
    }
}

// Rows [n, d] across: [d, width], zeros past the last row.
void across(const float *from, long n, long d, float *to, long width) {
  constexpr long SQUARE = 16;
  for (long first = 0; first < width; first += SQUARE)
    for (long c = 0; c < d; c += SQUARE) {
      const long rows = n - first < SQUARE ? n - first : SQUARE, columns = d - c < SQUARE ? d - c : SQUARE;
      const float *at = from + first * d + c;
#ifdef __AVX512F__
      __m512i r[SQUARE];
      const __mmask16 there = static_cast<__mmask16>((1u << columns) - 1);
      for (long i = 0; i < SQUARE; i++) r[i] = i < rows ? _mm512_maskz_loadu_epi32(there, at + i * d) : __m512i{};
      transpose(r);
      for (long i = 0; i < columns; i++) _mm512_storeu_si512(to + (c + i) * width + first, r[i]);
#else
      const long wide = width - first < SQUARE ? width - first : SQUARE;
      float square[SQUARE][SQUARE];
      for (long i = 0; i < wide; i++)
        for (long j = 0; j < columns; j++) square[j][i] = i < rows ? at[i * d + j] : 0.f;
      for (long j = 0; j < columns; j++) memcpy(to + (c + j) * width + first, square[j], sizeof(float) * wide);
#endif
    }
}

}  // namespace
