// Products x W of rows of bfloat16 and weights of float32, by tiles, with the pass that follows made before the result is
// written: a bias, an activation and its slope, a gate, a sum onto the stream. Each thread keeps to its own rows.

#pragma once

#include "numbers.h"
#include "tiles.h"

namespace {

constexpr long ROWS = 32;  // whose tiles are gone through for one pair of columns of tiles

// 16 columns of 32 rows of float32 as pairs of rows; rows from `n` on are 0.
inline void pair_floats(const float *from, long stride, long n, __mmask16 there, __m512i pairs[SIDE]) {
  for (long k = 0; k < SIDE; k++) {
    __m512 a = 2 * k < n ? _mm512_maskz_loadu_ps(there, from + 2 * k * stride) : _mm512_setzero_ps();
    __m512 b = 2 * k + 1 < n ? _mm512_maskz_loadu_ps(there, from + (2 * k + 1) * stride) : _mm512_setzero_ps();
    __m512i low = _mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh(a));
    __m512i high = _mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh(b));
    pairs[k] = _mm512_or_si512(low, _mm512_slli_epi32(high, 16));
  }
}

// One column of tiles, 16 columns of W [k, m] over all k; of W^T where W is [m, k] and `turned`.
void lay_weights(const float *w, long k, long m, bool turned, long column, uint32_t *to) {
  for (long row = 0; row < k; row += DEPTH, to += TILE) {
    __m512i r[SIDE];
    if (!turned) {
      pair_floats(w + row * m + column * SIDE, m, k - row, columns(m, column), r);
    } else {
      for (long i = 0; i < SIDE; i++) {
        const float *at = w + (column * SIDE + i) * k + row;
        if (column * SIDE + i < m)
          r[i] = (__m512i)_mm512_cvtne2ps_pbh(_mm512_maskz_loadu_ps(first(k - row - SIDE), at + SIDE),
                                              _mm512_maskz_loadu_ps(first(k - row), at));
        else
          r[i] = _mm512_setzero_si512();
      }
      transpose(r);
    }
    for (long i = 0; i < SIDE; i++) _mm512_store_si512(to + i * SIDE, r[i]);
  }
}

// What is done with 16 numbers of a product before they are written, and with those of a second one beside it.
struct Into {
  long m;             // numbers of a row
  float factor;
  const float *bias;  // [m], or null
  const float *x;     // the stream [n, m] that a product is added to
  const bf16 *a, *b;  // what a gradient meets on its way back: a slope; or g and c of a gate
  bf16 *out, *second, *third;
  float *stream;

  floats biased(floats r, long i, long n) const { return bias ? r + load(bias + i, n) : r; }
};

struct Written {  // r factor + bias
  static constexpr bool TWO = false;
  static inline void put(const Into &to, long at, long i, long n, floats r, floats) {
    store(to.out + at, to.biased(r * to.factor, i, n), n);
  }
};

template <class Act>
struct Activated {  // act(r + bias), and its slope
  static constexpr bool TWO = false;
  static inline void put(const Into &to, long at, long i, long n, floats r, floats) {
    floats value, slope;
    Act::both(to.biased(r, i, n), value, slope);
    store(to.out + at, value, n);
    store(to.second + at, slope, n);
  }
};

struct Plus {  // x + r + bias
  static constexpr bool TWO = false;
  static inline void put(const Into &to, long at, long i, long n, floats r, floats) {
    store(to.stream + at, to.biased(r + load(to.x + at, n), i, n), n);
  }
};

struct Sloped {  // r factor a
  static constexpr bool TWO = false;
  static inline void put(const Into &to, long at, long, long n, floats r, floats) {
    store(to.out + at, r * to.factor * load(to.a + at, n), n);
  }
};

struct Gated {  // silu(g) c with c = r + bias, g = r2; then c and g
  static constexpr bool TWO = true;
  static inline void put(const Into &to, long at, long i, long n, floats r, floats g) {
    floats c = to.biased(r, i, n);
    store(to.out + at, g * sigmoid(g) * c, n);
    store(to.second + at, c, n);
    store(to.third + at, g, n);
  }
};

struct GatedBack {  // dc = silu(g) r and dg = silu'(g) c r
  static constexpr bool TWO = false;
  static inline void put(const Into &to, long at, long, long n, floats r, floats) {
    floats g = load(to.a + at, n), y = sigmoid(g);
    store(to.out + at, g * y * r, n);
    store(to.second + at, y * (1.f + g * (1.f - y)) * load(to.b + at, n) * r, n);
  }
};

// Rows of x [n, k] as they are where they can be read so, else with zeros around them.
struct Rows {
  const uint16_t *at;
  Lie lie;
  Rows(const uint16_t *x, long k, long n, uint16_t *room) {
    long deep = up(k, DEPTH);
    if (deep == k && n % SIDE == 0) {
      at = x, lie = {2 * k, 64, 32 * k};
    } else {
      copy_rows(x, k, n, k, room, up(n, SIDE), deep);
      at = room, lie = {2 * deep, 64, 32 * deep};
    }
  }
};

// x W of x [n, k] and W [k, m] (turned: [m, k]) into `to`; `w2`: with x2, a product that is added; without, one beside it.
// room: the tiles of the weights, 64-byte aligned.
template <class How>
void multiplied(long n, long k, long m, const uint16_t *x, const float *w, const uint16_t *x2, const float *w2,
                bool turned, const Into &to, uint32_t *room) {
  const long deep = up(k, DEPTH) / DEPTH, across = up(m, SIDE) / SIDE, size = across * deep * TILE;
  uint32_t *tiles = room, *tiles2 = room + size;
#pragma omp parallel
  {
    Tiles mine;
    uint16_t *spare = reinterpret_cast<uint16_t *>(room_of_thread.of(2 * 2 * ROWS * deep * DEPTH));
    alignas(64) float r[2 * SIDE][2 * SIDE], r2[2 * SIDE][2 * SIDE];
    const Lie block{4 * 2 * SIDE, 64, 64 * 2 * SIDE};
#pragma omp for schedule(static)
    for (long j = 0; j < across; j++) {
      lay_weights(w, k, m, turned, j, tiles + j * deep * TILE);
      if (w2) lay_weights(w2, k, m, turned, j, tiles2 + j * deep * TILE);
    }
    // as many rows to each thread as passes give it, whole tiles but for the last
#pragma omp for schedule(static)
    for (long part = 0; part < (n + ROWS - 1) / ROWS; part++) {
      long start = part * ROWS, count = n - start < ROWS ? n - start : ROWS, tall = up(count, SIDE) / SIDE;
      Rows rows(x + start * k, k, count, spare);
      Rows rows2 = x2 ? Rows(x2 + start * k, k, count, spare + ROWS * deep * DEPTH) : rows;
      for (long j = 0; j < across; j += 2) {
        long wide = j + 1 < across ? 2 : 1, left = m - j * SIDE;
        for (long i = 0; i < tall; i += 2) {
          long high = i + 1 < tall ? 2 : 1;
          auto at = [&](const Rows &of) { return reinterpret_cast<const char *>(of.at) + i * of.lie.down; };
          product(high, wide, deep, true, at(rows), rows.lie, tiles + j * deep * TILE, deep * BYTES, r, block);
          if (x2) product(high, wide, deep, false, at(rows2), rows2.lie, tiles2 + j * deep * TILE, deep * BYTES, r, block);
          if (How::TWO) product(high, wide, deep, true, at(rows), rows.lie, tiles2 + j * deep * TILE, deep * BYTES, r2, block);
          for (long row = 0; row < 2 * SIDE && i * SIDE + row < count; row++) {
            long to_row = (start + i * SIDE + row) * m, column = j * SIDE;
            How::put(to, to_row + column, column, at_most(left), load(r[row]), How::TWO ? load(r2[row]) : floats{});
            if (left > SIDE)
              How::put(to, to_row + column + SIDE, column + SIDE, at_most(left - SIDE), load(r[row] + SIDE),
                       How::TWO ? load(r2[row] + SIDE) : floats{});
          }
        }
      }
    }
  }
}

}  // namespace
