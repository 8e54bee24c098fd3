// Products x W of float32 rows and weights, by vectors, with the pass that follows made before the result is written; and
// gradients of weights. Each thread keeps to its own rows, or blocks of a gradient.

#pragma once

#include "epilogue.h"
#include "vectors.h"

namespace {

constexpr long ACROSS = 2 * WIDTH;  // columns of a block
constexpr long PART = 4 * DOWN;     // rows that meet a panel while it is near the processor
constexpr long OWN = 1l << 13;      // numbers of weights up to which each thread lays its own
constexpr long STRETCH = 192;       // rows that a gradient meets at a time: of a panel they stay next to the processor

inline long panels(long m) { return (m + ACROSS - 1) / ACROSS; }

// Columns from `first` on of rows [n, m], as many as a panel has, one row after another, zeros past the last.
void lay(const float *from, long m, long n, long first, float *to) {
  const long one = at_most(m - first), two = m - first > WIDTH ? at_most(m - first - WIDTH) : 0;
  for (long i = 0; i < n; i++, from += m, to += ACROSS) {
    store(to, load(from + first, one));
    store(to + WIDTH, two ? load(from + first + WIDTH, two) : floats{});
  }
}

// x W of x [n, k] and W [k, m] (turned: [m, k]) into `to`; `w2`: with x2, a product that is added; without, one beside it.
// room: panels of the weights; of small ones each thread lays its own, so that none waits for another.
template <class How>
void multiplied(long n, long k, long m, const float *x, const float *w, const float *x2, const float *w2, bool turned,
                const Into<float> &given, float *room) {
  const long count = panels(m), size = count * k * ACROSS;
  const bool own = size <= OWN;
#pragma omp parallel
  {
    const Into<float> to = given;
    float *laid = own ? reinterpret_cast<float *>(room_of_thread.of(up(4 * size * (w2 ? 2 : 1), 64))) : room;
    float *laid2 = laid + size;
    auto one = [&](const float *from, long panel, float *into) {
      const long first = panel * ACROSS, rows = m - first < ACROSS ? m - first : ACROSS;
      if (turned) across(from + first * k, rows, k, into + panel * k * ACROSS, ACROSS);
      else lay(from, m, k, first, into + panel * k * ACROSS);
    };
    auto both = [&](long panel) {
      one(w, panel, laid);
      if (w2) one(w2, panel, laid2);
    };
    if (own) {
      for (long panel = 0; panel < count; panel++) both(panel);
    } else {
#pragma omp for schedule(static)
      for (long panel = 0; panel < count; panel++) both(panel);
    }
    alignas(64) float r[DOWN][ACROSS], r2[DOWN][ACROSS];
    // as many rows to each thread as passes give it, whole parts but for the last
#pragma omp for schedule(static)
    for (long part = 0; part < (n + PART - 1) / PART; part++) {
      const long end = (part + 1) * PART < n ? (part + 1) * PART : n;
      for (long panel = 0; panel < count; panel++)
        for (long row = part * PART; row < end; row += DOWN) {
          const long rows = end - row < DOWN ? end - row : DOWN, at_panel = panel * k * ACROSS;
          block<2, false>(k, x + row * k, k, rows, laid + at_panel, ACROSS, true, r[0], ACROSS);
          if (x2) block<2, false>(k, x2 + row * k, k, rows, laid2 + at_panel, ACROSS, false, r[0], ACROSS);
          if (How::TWO) block<2, false>(k, x + row * k, k, rows, laid2 + at_panel, ACROSS, true, r2[0], ACROSS);
          for (long i = 0; i < rows; i++)
            for (long j = 0; j < ACROSS && panel * ACROSS + j < m; j += WIDTH) {
              const long column = panel * ACROSS + j, some = at_most(m - column), at = (row + i) * m + column;
              const Made made = How::of(to, at, column, some, load(r[i] + j), How::TWO ? load(r2[i] + j) : floats{});
              if (How::MADE == 0) store(to.stream + at, made.first, some);
              if (How::MADE > 0) store(to.out + at, made.first, some);
              if (How::MADE > 1) store(to.second + at, made.second, some);
              if (How::MADE > 2) store(to.third + at, made.third, some);
            }
        }
    }
  }
}

// Columns of rows [n, a], DOWN at a time: to [columns / DOWN][n][DOWN], zeros past the last.
void lay_blocks(const float *from, long a, long n, long blocks, float *to) {
  for (long block = 0; block < blocks; block++)
    for (long i = 0; i < n; i++, to += DOWN) {
      const float *at = from + i * a + block * DOWN;
      const long some = a - block * DOWN < DOWN ? a - block * DOWN : DOWN;
      if (some == DOWN) memcpy(to, at, sizeof(float) * DOWN);
      else
        for (long c = 0; c < DOWN; c++) to[c] = c < some ? at[c] : 0.f;
    }
}

// Onto the sums of rows [n, ACROSS], of as many columns as there are.
void add_rows(const float *rows, long n, long columns, bool fresh, float *sums) {
  floats one = {}, two = {};
  for (long i = 0; i < n; i++) one += load(rows + i * ACROSS), two += load(rows + i * ACROSS + WIDTH);
  float both[ACROSS];
  store(both, one), store(both + WIDTH, two);
  for (long i = 0; i < ACROSS && i < columns; i++) sums[i] = (fresh ? 0.f : sums[i]) + both[i];
}

// See `weight_gradient`. Blocks are rows of the narrower operand's columns, which is laid whole, by panels of the wider.
void gradient(long n, long a, long b, const float *x, const float *d, float factor, float *w, float *sums) {
  const bool turned = a > b;  // then W'^T = d^T x is what blocks make
  const float *narrow = turned ? d : x, *wide = turned ? x : d;
  const long narrower = turned ? b : a, wider = turned ? a : b;
  const long down = (narrower + DOWN - 1) / DOWN, count = panels(wider), most = n < STRETCH ? n : STRETCH;
#pragma omp parallel
  {
    const long me = omp_get_thread_num(), threads = omp_get_num_threads();
    const long from = count * down * me / threads, end = count * down * (me + 1) / threads;
    float *left = reinterpret_cast<float *>(
        room_of_thread.of(up(4 * (most * (down * DOWN + ACROSS) + (end - from) * DOWN * ACROSS), 64)));
    float *right = left + most * down * DOWN, *of_w = right + most * ACROSS;
    for (long start = 0; start < n || start == 0; start += STRETCH) {
      const long rows = n - start < most ? n - start : most;
      if (from < end) lay_blocks(narrow + start * narrower, narrower, rows, down, left);
      for (long job = from; job < end;) {
        const long panel = job / down, column = panel * ACROSS, last = (panel + 1) * down < end ? (panel + 1) * down : end;
        lay(wide + start * wider, wider, rows, column, right);
        if (sums && !turned && job % down == 0) add_rows(right, rows, b - column, start == 0, sums + column);
        for (; job < last; job++)
          block<2, true>(rows, left + job % down * rows * DOWN, DOWN, DOWN, right, ACROSS, start == 0,
                         of_w + (job - from) * DOWN * ACROSS, ACROSS);
      }
      if (sums && turned && from == 0 && from < end)
        for (long column = 0; column < b; column += ACROSS) {
          lay(d + start * b, b, rows, column, right);
          add_rows(right, rows, b - column, start == 0, sums + column);
        }
    }
    for (long job = from; job < end; job++) {
      const long row = job % down * DOWN, column = job / down * ACROSS;
      const float *made = of_w + (job - from) * DOWN * ACROSS;
      if (turned) {
        for (long j = 0; j < ACROSS && column + j < wider; j++)
          for (long i = 0; i < DOWN && row + i < narrower; i++)
            w[(column + j) * b + row + i] = made[i * ACROSS + j] * factor;
        continue;
      }
      for (long i = 0; i < DOWN && row + i < narrower; i++)
        for (long j = 0; j < ACROSS && column + j < wider; j += WIDTH)
          store(w + (row + i) * b + column + j, load(made + i * ACROSS + j) * factor, at_most(wider - column - j));
    }
  }
}

}  // namespace
