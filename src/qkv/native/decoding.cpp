// One new token for every row of a batch, through all layers of a decoder and the matrix behind them, in float32.
//
// Reading one position at a time is short products one after another, for which calls cost more than numbers. Here all
// layers are one call: threads share the columns of each product and the heads of each row, and meet between them.
// Matrices lie in strips of 32 columns, each [d_in, 32]. `qkv.models.decoding` is the formula.

#include "numbers.h"

namespace {

constexpr long STRIP = 32;
constexpr long VECTORS = STRIP / WIDTH;
constexpr long ROWS = WIDTH == 16 ? 8 : WIDTH == 8 ? 3 : 1;  // whose sums fit the registers

inline float sum_of(floats x) {
#if defined(__AVX512F__)
  return _mm512_reduce_add_ps(bits<__m512>(x));
#else
  return total(x);
#endif
}

// What one layer is; addresses as numbers, 0 for none.
struct Layer {
  int64_t qkv, qkv_bias, along, across, W_O, b_O, mlp_in, mlp_bias, W_out, b_out;
  int64_t keys, values, older_keys, older_values;  // [batch * n_kv, room or n_older, d_head]
};

struct Sizes {
  int64_t batch, layers, d_model, n_heads, n_kv, d_head, wide, hidden, vocab;  // wide: columns of mlp_in; hidden: of h
  int64_t kind, centred, qk_normed, room;
  float rms, eps, qk_rms;
};

inline const float *at(int64_t address) { return reinterpret_cast<const float *>(address); }

// 32 columns of R rows of x W: r[row][vector].
template <long R>
inline void strip(const float *x, long stride, long k, const float *w, floats (&r)[ROWS][VECTORS]) {
  for (long i = 0; i < R; i++)
    for (long v = 0; v < VECTORS; v++) r[i][v] = floats{};
  for (long j = 0; j < k; j++, w += STRIP)
    for (long i = 0; i < R; i++)
      for (long v = 0; v < VECTORS; v++) r[i][v] += x[i * stride + j] * load(w + v * WIDTH);
}

// Of x W + b for rows x [batch, k]: `to(row, first column, numbers)` for all columns, shared by the threads of a region.
template <class To>
inline void product(long batch, const float *x, long k, const float *w, const float *bias, long columns, To to) {
#pragma omp for schedule(static)
  for (long s = 0; s < (columns + STRIP - 1) / STRIP; s++) {
    const float *from = w + s * k * STRIP;
    for (long row = 0; row < batch;) {
      floats r[ROWS][VECTORS];
      long n = batch - row >= ROWS ? ROWS : 1;
      if (n == ROWS) strip<ROWS>(x + row * k, k, k, from, r);
      else strip<1>(x + row * k, k, k, from, r);
      for (long i = 0; i < n; i++)
        for (long v = 0; v < VECTORS; v++) {
          long column = s * STRIP + v * WIDTH, left = columns - column;
          if (left <= 0) break;
          floats sum = r[i][v];
          if (bias) sum += load(bias + column, at_most(left));
          to(row + i, column, sum, at_most(left));
        }
      row += n;
    }
  }
}

// Each row over its length, or standardised; the gain is in the matrix that follows.
inline void normed(const Sizes &of, const float *x, float *y) {
  const long d = of.d_model;
#pragma omp for schedule(static)
  for (long row = 0; row < of.batch; row++) {
    const float *from = x + row * d;
    float mean = 0.f, length = 0.f;
    if (of.centred) {
      floats sum = {};
      for (long i = 0; i < d; i += WIDTH) sum += load(from + i, at_most(d - i));
      mean = sum_of(sum) / d;
    }
    long whole = d - d % WIDTH;
    floats square = {};
    for (long i = 0; i < whole; i += WIDTH) {
      floats u = load(from + i) - mean;
      square += u * u;
    }
    for (long i = whole; i < d; i++) length += (from[i] - mean) * (from[i] - mean);
    length += sum_of(square);
    float by = of.centred ? 1.f / sqrtf(length / d + of.eps) : 1.f / sqrtf(length + of.rms * of.rms);
    for (long i = 0; i < d; i += WIDTH) {
      long n = at_most(d - i);
      store(y + row * d + i, (load(from + i, n) - mean) * by, n);
    }
  }
}

// One head of q or k: over its length where they are normed, scaled and turned by the tables of this position.
inline void placed(const Sizes &of, const float *from, const float *along, const float *across, float *to) {
  const long d = of.d_head, half = d / 2;
  float by = 1.f;
  if (of.qk_normed) {
    floats square = {};
    for (long i = 0; i < d; i += WIDTH) {
      floats u = load(from + i, at_most(d - i));
      square += u * u;
    }
    by = 1.f / sqrtf(sum_of(square) + of.qk_rms * of.qk_rms);
  }
  for (long i = 0; i < d; i++) {
    float u = from[i] * by;
    if (along) u *= along[i];
    if (across) u += from[i < half ? i + half : i - half] * by * across[i];
    to[i] = u;
  }
}

inline float dot(const float *a, const float *b, long d) {
  floats sum = {};
  for (long i = 0; i < d; i += WIDTH) sum += load(a + i, at_most(d - i)) * load(b + i, at_most(d - i));
  return sum_of(sum);
}

inline void add(float *to, const float *from, float by, long d) {
  for (long i = 0; i < d; i += WIDTH) {
    long n = at_most(d - i);
    store(to + i, load(to + i, n) + by * load(from + i, n), n);
  }
}

// The key and value of row and head group go into their place, and z of the group's queries is written.
inline void attended(const Sizes &of, const Layer &layer, long row, long group, long older, long recent, const float *joined,
                     float *z, float *scores) {
  const long d = of.d_head, per = of.n_heads / of.n_kv, which = row * of.n_kv + group;
  const float *from = joined + row * (of.n_heads + 2 * of.n_kv) * d;
  const float *along = at(layer.along), *across = at(layer.across);
  float *keys = reinterpret_cast<float *>(layer.keys) + which * of.room * d;
  float *values = reinterpret_cast<float *>(layer.values) + which * of.room * d;
  const float *older_keys = at(layer.older_keys) + which * older * d;
  const float *older_values = at(layer.older_values) + which * older * d;
  const long of_key = (of.n_heads + group) * d;
  placed(of, from + of_key, along ? along + of_key : nullptr, across ? across + of_key : nullptr, keys + recent * d);
  memcpy(values + recent * d, from + of_key + of.n_kv * d, sizeof(float) * d);
  const long n = older + recent + 1;
  float *q = scores + n;
  for (long head = group * per; head < (group + 1) * per; head++) {
    placed(of, from + head * d, along ? along + head * d : nullptr, across ? across + head * d : nullptr, q);
    for (long p = 0; p < older; p++) scores[p] = dot(q, older_keys + p * d, d);
    for (long p = 0; p <= recent; p++) scores[older + p] = dot(q, keys + p * d, d);
    float highest = -INFINITY, mass = 0.f;
    for (long p = 0; p < n; p++) highest = scores[p] > highest ? scores[p] : highest;
    floats sum = {};
    for (long p = 0; p < n; p += WIDTH) {
      long some = at_most(n - p);
      floats e = exponential(load(scores + p, some) - highest);
      store(scores + p, e, some);
      if (some == WIDTH) sum += e;
      else
        for (long i = 0; i < some; i++) mass += scores[p + i];
    }
    mass += sum_of(sum);
    float *out = z + (row * of.n_heads + head) * d;
    memset(out, 0, sizeof(float) * d);
    for (long p = 0; p < older; p++) add(out, older_values + p * d, scores[p] / mass, d);
    for (long p = 0; p <= recent; p++) add(out, values + p * d, scores[older + p] / mass, d);
  }
}

// relu, relu2, gelu, gelu_tanh, silu, in this order from 1 on.
inline floats activated(long kind, floats x) {
  floats value = x, slope;
  if (kind == 1) return x < 0.f ? floats{} : x;
  if (kind == 2) Relu2::both(x, value, slope);
  if (kind == 3) Gelu::both(x, value, slope);
  if (kind == 4) GeluTanh::both(x, value, slope);
  if (kind == 5) return x * sigmoid(x);
  return value;
}

}  // namespace

// x [batch, d_model], overwritten -> logits [batch, vocab], after `older` and `recent` positions of the cache; the tables
// of turns are those of this position. room: floats [batch, 2 d_model + joined + n_heads d_head + wide + hidden + (n_heads
// (positions + d_head))].
extern "C" void decode(const Sizes *sizes, const Layer *layers, const float *out, const float *out_bias, long older,
                       long recent, float *x, float *logits, float *room) {
  const Sizes &of = *sizes;
  const long d = of.d_model, joined = (of.n_heads + 2 * of.n_kv) * of.d_head, inner = of.n_heads * of.d_head;
  float *y = room, *heads = y + of.batch * d, *z = heads + of.batch * joined, *h = z + of.batch * inner;
  float *gated = h + of.batch * of.wide, *scores = gated + of.batch * of.hidden;
#pragma omp parallel
  {
    for (long l = 0; l < of.layers; l++) {
      const Layer &layer = layers[l];
      normed(of, x, y);
      product(of.batch, y, d, at(layer.qkv), at(layer.qkv_bias), joined,
              [=](long row, long column, floats sum, long n) { store(heads + row * joined + column, sum, n); });
#pragma omp for schedule(static)
      for (long job = 0; job < of.batch * of.n_kv; job++)
        attended(of, layer, job / of.n_kv, job % of.n_kv, older, recent, heads, z,
                 scores + job * (older + recent + 1 + of.d_head));
      auto onto_x = [=](long row, long column, floats sum, long n) {
        float *to = x + row * d + column;
        store(to, load(to, n) + sum, n);
      };
      product(of.batch, z, inner, at(layer.W_O), at(layer.b_O), d, onto_x);
      if (!of.kind) continue;
      normed(of, x, y);
      const bool gate = of.kind == 6;
      product(of.batch, y, d, at(layer.mlp_in), at(layer.mlp_bias), of.wide,
              [=, &of](long row, long column, floats sum, long n) {
                store(h + row * of.wide + column, gate ? sum : activated(of.kind, sum), n);
              });
      if (gate) {
#pragma omp for schedule(static)
        for (long row = 0; row < of.batch; row++)
          for (long i = 0; i < of.hidden; i += WIDTH) {
            long n = at_most(of.hidden - i);
            floats g = load(h + row * of.wide + i, n);
            store(gated + row * of.hidden + i, g * sigmoid(g) * load(h + row * of.wide + of.hidden + i, n), n);
          }
      }
      product(of.batch, gate ? gated : h, of.hidden, at(layer.W_out), at(layer.b_out), d, onto_x);
    }
    normed(of, x, y);
    product(of.batch, y, d, out, out_bias, of.vocab,
            [=, &of](long row, long column, floats sum, long n) { store(logits + row * of.vocab + column, sum, n); });
  }
}
