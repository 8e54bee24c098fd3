// Products x W of rows of bfloat16 and weights of float32, by tiles, with the pass that follows made before the result is
// written: a bias, an activation and its slope, a gate, a sum onto the stream. Each thread keeps to its own rows.

#pragma once

#include "epilogue.h"
#include "tiles.h"

namespace {

constexpr long ROWS = 2 * SIDE;  // of a part: what two tiles hold
constexpr long OWN = 1l << 16;   // 32 bits that tiles of weights take, up to which each thread lays its own

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

HERE void store_two(float *to, floats a, floats b) { store(to, a), store(to + SIDE, b); }

HERE void store_two(bf16 *to, floats a, floats b) {
  __m512i both = (__m512i)_mm512_cvtne2ps_pbh(bits<__m512>(b), bits<__m512>(a));
  _mm512_storeu_si512(to, both);
}

// A block of a product, 2 by 2 tiles or fewer, whose rows are written while the tiles of the next one are multiplied.
template <class How>
struct Waiting {
  const Into<bf16> *to;
  const float (*r)[2 * SIDE], (*r2)[2 * SIDE];
  long at, column, left, next, rows;  // its first number in memory, its first column, columns from there on; row, of rows

  __attribute__((noinline)) void some(long count) {
    long end = next + count < rows ? next + count : rows;
    const Into<bf16> into = *to;
    const float *from = r[next], *from2 = r2[next], *last = r[end];
    long place = at + next * into.m;
    next = end;
    if (left >= 2 * SIDE)
      for (; from < last; from += 2 * SIDE, from2 += 2 * SIDE, place += into.m) {
        Made one = How::of(into, place, column, WIDTH, load(from), How::TWO ? load(from2) : floats{});
        Made two = How::of(into, place + SIDE, column + SIDE, WIDTH, load(from + SIDE),
                           How::TWO ? load(from2 + SIDE) : floats{});
        if (How::MADE == 0) store_two(into.stream + place, one.first, two.first);
        if (How::MADE > 0) store_two(into.out + place, one.first, two.first);
        if (How::MADE > 1) store_two(into.second + place, one.second, two.second);
        if (How::MADE > 2) store_two(into.third + place, one.third, two.third);
      }
    else
      for (; from < last; from += 2 * SIDE, from2 += 2 * SIDE, place += into.m)
        for (long i = 0; i < left; i += SIDE) {
          long n = at_most(left - i), put = place + i;
          Made made = How::of(into, put, column + i, n, load(from + i), How::TWO ? load(from2 + i) : floats{});
          if (How::MADE == 0) store(into.stream + put, made.first, n);
          if (How::MADE > 0) store(into.out + put, made.first, n);
          if (How::MADE > 1) store(into.second + put, made.second, n);
          if (How::MADE > 2) store(into.third + put, made.third, n);
        }
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
// room: the tiles of the weights, 64-byte aligned; of small ones each thread lays its own, so that none waits for another.
template <class How>
void multiplied(long n, long k, long m, const uint16_t *x, const float *w, const uint16_t *x2, const float *w2,
                bool turned, const Into<bf16> &to, uint32_t *room) {
  const long deep = up(k, DEPTH) / DEPTH, across = up(m, SIDE) / SIDE, size = across * deep * TILE;
  const long steps = How::TWO || x2 ? 2 * deep : deep, share = (2 * SIDE + steps - 1) / steps;
  const long of_rows = 2 * 2 * ROWS * deep * DEPTH;
  const bool own = size <= OWN;
#pragma omp parallel
  {
    Tiles mine;
    char *at_hand = room_of_thread.of(of_rows + (own ? 4 * size * (w2 ? 2 : 1) : 0));
    uint16_t *spare = reinterpret_cast<uint16_t *>(at_hand);
    uint32_t *tiles = own ? reinterpret_cast<uint32_t *>(at_hand + of_rows) : room, *tiles2 = tiles + size;
    auto laid = [&](long j) {
      lay_weights(w, k, m, turned, j, tiles + j * deep * TILE);
      if (w2) lay_weights(w2, k, m, turned, j, tiles2 + j * deep * TILE);
    };
    if (own) {
      for (long j = 0; j < across; j++) laid(j);
    } else {
#pragma omp for schedule(static)
      for (long j = 0; j < across; j++) laid(j);
    }
    alignas(64) float r[2][2 * SIDE][2 * SIDE], r2[2][2 * SIDE][2 * SIDE];
    Waiting<How> waiting{&to, r[1], r2[1], 0, 0, 0, 0, 0};
    int turn = 0;
    const Lie block{4 * 2 * SIDE, 64, 64 * 2 * SIDE};
    // as many rows to each thread as passes give it, whole tiles but for the last
#pragma omp for schedule(static)
    for (long part = 0; part < (n + ROWS - 1) / ROWS; part++) {
      long start = part * ROWS, count = n - start < ROWS ? n - start : ROWS, high = up(count, SIDE) / SIDE;
      Rows rows(x + start * k, k, count, spare);
      Rows rows2 = x2 ? Rows(x2 + start * k, k, count, spare + ROWS * deep * DEPTH) : rows;
      for (long j = 0; j < across; j += 2) {
        auto one = [&](bool fresh, const Rows &of, const uint32_t *with, float (*into)[2 * SIDE]) {
          product(high, j + 1 < across ? 2 : 1, deep, fresh, of.at, of.lie, with + j * deep * TILE, deep * BYTES, into,
                  block, [&] { waiting.some(share); });
        };
        one(true, rows, tiles, r[turn]);
        if (x2) one(false, rows2, tiles2, r[turn]);
        if (How::TWO) one(true, rows, tiles2, r2[turn]);
        waiting.some(2 * SIDE);
        waiting = {&to, r[turn], r2[turn], start * m + j * SIDE, j * SIDE, m - j * SIDE, 0, count};
        turn = 1 - turn;
      }
    }
    waiting.some(2 * SIDE);
  }
}

}  // namespace
