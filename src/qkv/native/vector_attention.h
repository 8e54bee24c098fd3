// Attention in float32 by vectors: the scores of some queries stay next to the processor, and none go through memory.

#pragma once

#include <math.h>

#include "call.h"
#include "vectors.h"

namespace {

constexpr long QUERIES = 32;                // whose scores are worked on at a time

// Rows [n, d] that can be read in whole vectors: as they lie, or in `to` with room after each.
struct Whole {
  const float *at;
  long row;
  Whole(const float *from, long stride, long n, long d, float *to) : at(from), row(stride) {
    if (d % WIDTH == 0) return;
    at = to, row = up(d, WIDTH);
    for (long i = 0; i < n; i++) {
      memcpy(to + i * row, from + i * stride, sizeof(float) * d);
      for (long c = d; c < row; c++) to[i * row + c] = 0.f;
    }
  }
};

// The first n of some numbers, zeros after them.
HERE floats only(floats x, long n) {
  static const int32_t places[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  ints place;
  memcpy(&place, places, sizeof(place));
  return n >= WIDTH ? x : (place < static_cast<int32_t>(n) ? x : floats{});
}

HERE floats exponential_or_0(floats x) { return x < -87.f ? floats{} : exponential(x); }

HERE float sum_of(floats x) {
#ifdef __AVX512F__
  return _mm512_reduce_add_ps(bits<__m512>(x));
#else
  return total(x);
#endif
}

// s <- scale s + bias over n keys (bias null: none); the highest of them.
HERE float scaled(float *s, const float *bias, float scale, long n) {
  floats highest = floats{} - INFINITY;
  for (long i = 0; i < n; i += WIDTH) {
    const long some = at_most(n - i);
    floats x = load(s + i) * scale;
    if (bias) x += load(bias + i, some);
    store(s + i, x);
    if (some < WIDTH) {
      floats there = only(floats{} + 1.f, some);
      x = there > 0.f ? x : highest;
    }
    highest = highest > x ? highest : x;
  }
#ifdef __AVX512F__
  return _mm512_reduce_max_ps(bits<__m512>(highest));
#else
  float numbers[WIDTH], most = -INFINITY;
  store(numbers, highest);
  for (long i = 0; i < WIDTH; i++) most = most > numbers[i] ? most : numbers[i];
  return most;
#endif
}

void forward(const Call &of, long b, long group, const float *q, const float *k, const float *v, float *z, float *mass) {
  const long d = of.d, wide = up(d, WIDTH), kp = up(of.keys, WIDTH), per = of.n_q / of.n_kv;
  float *turned = reinterpret_cast<float *>(
      room_of_thread.of(up(sizeof(float) * (d * kp + of.keys * wide + QUERIES * (kp + wide)), 64)));
  float *spare = turned + d * kp, *s = spare + of.keys * wide, *out = s + QUERIES * kp;
  const long at_keys = (b * of.n_kv + group) * of.keys * d;
  across(k + at_keys, of.keys, d, turned, kp);
  const Whole values(v + at_keys, d, of.keys, d, spare);
  for (long head = group * per; head < (group + 1) * per; head++)
    for (long start = 0; start < of.queries; start += QUERIES) {
      const long n = of.queries - start < QUERIES ? of.queries - start : QUERIES, keys = of.seen(start + n);
      const float *rows = q + ((b * of.n_q + head) * of.queries + start) * d;
      product<false>(n, up(keys, WIDTH), d, rows, d, turned, kp, true, s, kp);
      float shares[QUERIES];
      for (long i = 0; i < n; i++) {
        const long seen = of.seen(start + i + 1);
        float *row = s + i * kp;
        const float highest = scaled(row, of.bias_of(b, start + i), of.scale, seen);
        floats sums = {};
        long j = 0;
        for (; j < seen; j += WIDTH) {
          const floats e = only(exponential_or_0(load(row + j) - highest), seen - j);
          sums += e;
          store(row + j, e);
        }
        for (; j < keys; j += WIDTH) store(row + j, floats{});
        const float whole = sum_of(sums);
        shares[i] = 1.f / whole;
        mass[(b * of.n_q + head) * of.queries + start + i] = highest + logf(whole);
      }
      product<false>(n, wide, keys, s, kp, values.at, values.row, true, out, wide);
      for (long i = 0; i < n; i++) {
        float *to = z + ((b * of.queries + start + i) * of.n_q + head) * d;
        for (long c = 0; c < d; c += WIDTH) store(to + c, load(out + i * wide + c) * shares[i], at_most(d - c));
      }
    }
}

// With P the pattern: dV = P^T dZ, dP = dZ V^T, dS = scale P (dP - rowsum(P dP)), dQ = dS K, dK = dS^T Q.
void backward(const Call &of, long b, long group, const float *q, const float *k, const float *v, const float *mass,
              const float *dz, float *dq, float *dk, float *dv) {
  const long d = of.d, wide = up(d, WIDTH), kp = up(of.keys, WIDTH), per = of.n_q / of.n_kv, z_row = of.n_q * d;
  float *k_turned = reinterpret_cast<float *>(room_of_thread.of(
      up(sizeof(float) * (2 * d * kp + of.keys * wide + 2 * kp * wide + QUERIES * (2 * kp + 3 * wide)), 64)));
  float *v_turned = k_turned + d * kp, *spare = v_turned + d * kp, *of_k = spare + of.keys * wide;
  float *of_v = of_k + kp * wide, *s = of_v + kp * wide, *dp = s + QUERIES * kp, *out = dp + QUERIES * kp;
  float *spare_q = out + QUERIES * wide, *spare_z = spare_q + QUERIES * wide;
  const long at_keys = (b * of.n_kv + group) * of.keys * d;
  across(k + at_keys, of.keys, d, k_turned, kp);
  across(v + at_keys, of.keys, d, v_turned, kp);
  const Whole by_key(k + at_keys, d, of.keys, d, spare);
  memset(of_k, 0, sizeof(float) * 2 * kp * wide);
  for (long head = group * per; head < (group + 1) * per; head++)
    for (long start = 0; start < of.queries; start += QUERIES) {
      const long n = of.queries - start < QUERIES ? of.queries - start : QUERIES, keys = of.seen(start + n);
      const float *qh = q + ((b * of.n_q + head) * of.queries + start) * d;
      const float *dzh = dz + ((b * of.queries + start) * of.n_q + head) * d;
      product<false>(n, up(keys, WIDTH), d, qh, d, k_turned, kp, true, s, kp);
      product<false>(n, up(keys, WIDTH), d, dzh, z_row, v_turned, kp, true, dp, kp);
      for (long i = 0; i < n; i++) {
        const long seen = of.seen(start + i + 1);
        float *row = s + i * kp, *slope = dp + i * kp;
        scaled(row, of.bias_of(b, start + i), of.scale, seen);
        const float less = mass[(b * of.n_q + head) * of.queries + start + i];
        floats sums = {};
        long j = 0;
        for (; j < seen; j += WIDTH) {
          const floats p = only(exponential_or_0(load(row + j) - less), seen - j);
          sums += p * load(slope + j);
          store(row + j, p);
        }
        const float level = sum_of(sums);
        for (j = 0; j < seen; j += WIDTH)
          store(slope + j, only(load(row + j) * of.scale * (load(slope + j) - level), seen - j));
        for (; j < keys; j += WIDTH) store(row + j, floats{}), store(slope + j, floats{});
      }
      product<false>(n, wide, keys, dp, kp, by_key.at, by_key.row, true, out, wide);
      for (long i = 0; i < n; i++)
        memcpy(dq + ((b * of.n_q + head) * of.queries + start + i) * d, out + i * wide, sizeof(float) * d);
      const Whole by_query(qh, d, n, d, spare_q), of_z(dzh, z_row, n, d, spare_z);
      product<true>(keys, wide, n, s, kp, of_z.at, of_z.row, false, of_v, wide);
      product<true>(keys, wide, n, dp, kp, by_query.at, by_query.row, false, of_k, wide);
    }
  for (long i = 0; i < of.keys; i++) {
    memcpy(dk + at_keys + i * d, of_k + i * wide, sizeof(float) * d);
    memcpy(dv + at_keys + i * d, of_v + i * wide, sizeof(float) * d);
  }
}

}  // namespace

