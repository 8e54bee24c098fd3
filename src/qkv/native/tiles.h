// Tiles of bfloat16, and what lies in memory laid into them; included where the processor has tiles.

#pragma once

#include <immintrin.h>
#include <math.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "numbers.h"
#include "workspace.h"

namespace {

constexpr long SIDE = 16;       // rows of a tile, and its columns of 32 bits
constexpr long DEPTH = 32;      // rows of x and d that one tile holds, two in each 32 bits
constexpr long BLOCK = 256;    // rows of x and d laid out at a time: both then stay near the processor
constexpr long TILE = SIDE * SIDE;
constexpr long BYTES = 4 * TILE;

struct alignas(64) Shape {
  uint8_t palette = 1, start = 0, unused[14] = {};
  uint16_t bytes[16] = {};
  uint8_t rows[16] = {};
};

inline __m512i column_pairs(const uint16_t *upper, const uint16_t *lower, __mmask16 there) {
  __m512i a = upper ? _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(there, upper)) : _mm512_setzero_si512();
  __m512i b = lower ? _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(there, lower)) : _mm512_setzero_si512();
  return _mm512_or_si512(a, _mm512_slli_epi32(b, 16));
}

// 16 columns of 32 rows, in pairs of rows: pairs[k] holds rows 2k and 2k + 1; rows from `n` on are 0.
inline void pair_rows(const uint16_t *from, long width, long n, __mmask16 there, __m512i pairs[SIDE]) {
  for (long k = 0; k < SIDE; k++)
    pairs[k] = column_pairs(2 * k < n ? from + 2 * k * width : nullptr,
                            2 * k + 1 < n ? from + (2 * k + 1) * width : nullptr, there);
}

inline __mmask16 columns(long width, long c) {  // which of the columns 16 c to 16 c + 16 there are
  long left = width - c * SIDE;
  return left >= SIDE ? 0xffff : static_cast<__mmask16>((1u << left) - 1);
}

inline __m512 upper_rows(__m512i pairs) { return _mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16)); }

inline __m512 lower_rows(__m512i pairs) {
  return _mm512_castsi512_ps(_mm512_and_si512(pairs, _mm512_set1_epi32(static_cast<int>(0xffff0000u))));
}

// Tiles of the columns from 16 `first` to 16 `last` over `n` rows, those of the same columns one after another; turned
// over where they go to the left of a product over rows (`across`). Onto `sums`, if asked, the sums of the columns.
void lay(const uint16_t *from, long width, long n, long first, long last, bool across, uint32_t *to, float *sums) {
  long depth = (n + DEPTH - 1) / DEPTH;
  for (long k = 0; k < depth; k++)
    for (long c = first; c < last; c++) {
      __m512i pairs[SIDE];
      __mmask16 there = columns(width, c);
      pair_rows(from + k * DEPTH * width + c * SIDE, width, n - k * DEPTH, there, pairs);
      if (sums) {
        __m512 sum = _mm512_maskz_loadu_ps(there, sums + c * SIDE);
        for (long i = 0; i < SIDE; i++)
          sum = _mm512_add_ps(sum, _mm512_add_ps(upper_rows(pairs[i]), lower_rows(pairs[i])));
        _mm512_mask_storeu_ps(sums + c * SIDE, there, sum);
      }
      if (across) transpose(pairs);
      uint32_t *tile = to + ((c - first) * depth + k) * TILE;
      for (long i = 0; i < SIDE; i++) _mm512_store_si512(tile + i * SIDE, pairs[i]);
    }
}

// How the tiles of an operand or a result lie: bytes from a row of a tile to its next, and from a tile to the one right
// of it (`step`) and below it (`down`).
struct Lie {
  long row, step, down;
};

// Two by two tiles of c, or one of either side: c (+)= the products of `depth` tiles of a and b; tiles of b follow each
// other in `depth`, and those of its next columns are `next` bytes on.
template <bool TWO_A, bool TWO_B, class Meanwhile>
HERE void multiply(long depth, bool fresh, const char *a, Lie of_a, const char *b, long next, char *c, Lie of_c,
              Meanwhile meanwhile) {
  char *low = c + of_c.down;
  if (fresh) {
    _tile_zero(0);
    if (TWO_B) _tile_zero(1);
    if (TWO_A) _tile_zero(2);
    if (TWO_A && TWO_B) _tile_zero(3);
  } else {
    _tile_loadd(0, c, of_c.row);
    if (TWO_B) _tile_loadd(1, c + of_c.step, of_c.row);
    if (TWO_A) _tile_loadd(2, low, of_c.row);
    if (TWO_A && TWO_B) _tile_loadd(3, low + of_c.step, of_c.row);
  }
  for (long k = 0; k < depth; k++, a += of_a.step, b += BYTES) {
    _tile_loadd(4, a, of_a.row);
    _tile_loadd(6, b, 64);
    _tile_dpbf16ps(0, 4, 6);
    if (TWO_B) {
      _tile_loadd(7, b + next, 64);
      _tile_dpbf16ps(1, 4, 7);
    }
    if (TWO_A) {
      _tile_loadd(5, a + of_a.down, of_a.row);
      _tile_dpbf16ps(2, 5, 6);
      if (TWO_B) _tile_dpbf16ps(3, 5, 7);
    }
    meanwhile();
  }
  _tile_stored(0, c, of_c.row);
  if (TWO_B) _tile_stored(1, c + of_c.step, of_c.row);
  if (TWO_A) _tile_stored(2, low, of_c.row);
  if (TWO_A && TWO_B) _tile_stored(3, low + of_c.step, of_c.row);
}

// c (+)= a b of tiles [rows, depth] and [depth, columns].
template <class Meanwhile>
HERE void product(long rows, long columns, long depth, bool fresh, const void *a, Lie of_a, const void *b, long next, void *c,
             Lie of_c, Meanwhile meanwhile) {
  for (long j = 0; j < columns; j += 2)
    for (long i = 0; i < rows; i += 2) {
      const char *left = static_cast<const char *>(a) + i * of_a.down, *right = static_cast<const char *>(b) + j * next;
      char *into = static_cast<char *>(c) + i * of_c.down + j * of_c.step;
      bool two_a = i + 1 < rows, two_b = j + 1 < columns;
      if (two_a && two_b) multiply<true, true>(depth, fresh, left, of_a, right, next, into, of_c, meanwhile);
      else if (two_a) multiply<true, false>(depth, fresh, left, of_a, right, next, into, of_c, meanwhile);
      else if (two_b) multiply<false, true>(depth, fresh, left, of_a, right, next, into, of_c, meanwhile);
      else multiply<false, false>(depth, fresh, left, of_a, right, next, into, of_c, meanwhile);
    }
}

HERE void product(long rows, long columns, long depth, bool fresh, const void *a, Lie of_a, const void *b, long next,
                    void *c, Lie of_c) {
  product(rows, columns, depth, fresh, a, of_a, b, next, c, of_c, [] {});
}

// Tiles are set up for a thread, and what it had set up before comes back: a library may count on it.
struct Tiles {
  Shape before;
  Tiles() {
    Shape shape;
    for (int i = 0; i < 8; i++) shape.bytes[i] = 64, shape.rows[i] = 16;
    _tile_storeconfig(&before);
    _tile_loadconfig(&shape);
  }
  ~Tiles() {
    if (before.palette) _tile_loadconfig(&before);
    else _tile_release();
  }
};

inline __mmask16 first(long n) { return n >= 16 ? 0xffff : static_cast<__mmask16>((1u << (n > 0 ? n : 0)) - 1); }

// Rows [n, d] as whole rows [count, width], zeros around them.
void copy_rows(const uint16_t *from, long stride, long n, long d, uint16_t *to, long count, long width) {
  memset(to, 0, 2 * count * width);
  for (long i = 0; i < n; i++) memcpy(to + i * width, from + i * stride, 2 * d);
}

// Rows [n, d] turned over, as the right side of a product over d: tiles [n / 16][d / 32].
void lay_turned(const uint16_t *from, long stride, long n, long d, uint32_t *to) {
  for (long row = 0; row < n; row += SIDE)
    for (long column = 0; column < d; column += DEPTH, to += TILE) {
      __m512i r[SIDE];
      long left = d - column;
      __mmask32 there = left >= DEPTH ? 0xffffffffu : (1u << left) - 1;
      for (long i = 0; i < SIDE; i++)
        r[i] = row + i < n ? _mm512_maskz_loadu_epi16(there, from + (row + i) * stride + column) : _mm512_setzero_si512();
      transpose(r);
      for (long i = 0; i < SIDE; i++) _mm512_store_si512(to + i * SIDE, r[i]);
    }
}

// Rows [n, d] as the right side of a product over n: tiles [d / 16][n / 32].
void lay_pairs(const uint16_t *from, long stride, long n, long d, uint32_t *to) {
  for (long c = 0; c * SIDE < d; c++)
    for (long row = 0; row < n; row += DEPTH, to += TILE) {
      __m512i pairs[SIDE];
      pair_rows(from + row * stride + c * SIDE, stride, n - row, columns(d, c), pairs);
      for (long i = 0; i < SIDE; i++) _mm512_store_si512(to + i * SIDE, pairs[i]);
    }
}

inline void put_bf16(uint16_t *to, __mmask16 there, __m512 x) {
  _mm256_mask_storeu_epi16(to, there, (__m256i)_mm512_cvtneps_pbh(x));
}

}  // namespace
