// Attention by tiles: a head's scores stay next to the processor.

#pragma once

#include "call.h"
#include "tiles.h"

namespace {

constexpr long QUERIES = 32;   // whose scores are worked on at a time
constexpr long SPAN = 256;     // queries whose patterns are kept on the way back until keys and values take them

// Columns of 32 rows of float32 as the left side of a product over those rows: tiles, `next` numbers apart.
void lay_columns(const float *from, long stride, long n_columns, uint32_t *to, long next) {
  for (long c = 0; c < n_columns; c++) {
    __m512i pairs[SIDE];
    for (long i = 0; i < SIDE; i++) {
      const float *at = from + 2 * i * stride + c * SIDE;
      __m512i a = _mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh(_mm512_load_ps(at)));
      __m512i b = _mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh(_mm512_load_ps(at + stride)));
      pairs[i] = _mm512_or_si512(a, _mm512_slli_epi32(b, 16));
    }
    transpose(pairs);
    for (long i = 0; i < SIDE; i++) _mm512_store_si512(to + c * next + i * SIDE, pairs[i]);
  }
}

// e^x, 0 below -87; to 2 units in the last place (Cephes, Moshier 1989: expf).
inline __m512 exponential_or_0(__m512 x) {
  __mmask16 there = _mm512_cmp_ps_mask(x, _mm512_set1_ps(-87.f), _CMP_NLT_UQ);  // NaN is there
  __m512 n = _mm512_roundscale_ps(_mm512_mul_ps(x, _mm512_set1_ps(1.44269504088896341f)), 8);
  __m512 r = _mm512_fnmadd_ps(n, _mm512_set1_ps(0.693359375f), x);
  r = _mm512_fnmadd_ps(n, _mm512_set1_ps(-2.12194440e-4f), r);
  __m512 p = _mm512_set1_ps(1.9875691500e-4f);
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.3981999507e-3f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(8.3334519073e-3f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(4.1665795894e-2f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.6666665459e-1f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(5.0000001201e-1f));
  p = _mm512_fmadd_ps(p, _mm512_mul_ps(r, r), _mm512_add_ps(r, _mm512_set1_ps(1.f)));
  return _mm512_maskz_scalef_ps(there, p, n);
}

// s <- scale s + bias over n keys (bias null: none); the highest of them.
inline float scaled(float *s, const float *bias, float scale, long n) {
  __m512 highest = _mm512_set1_ps(-INFINITY), by = _mm512_set1_ps(scale);
  for (long i = 0; i < n; i += SIDE) {
    __mmask16 there = first(n - i);
    __m512 x = _mm512_mul_ps(_mm512_load_ps(s + i), by);
    if (bias) x = _mm512_add_ps(x, _mm512_maskz_loadu_ps(there, bias + i));
    highest = _mm512_mask_max_ps(highest, there, highest, x);
    _mm512_store_ps(s + i, x);
  }
  return _mm512_reduce_max_ps(highest);
}

struct TileCall : Call {
  long d_deep() const { return up(d, DEPTH); }
  long d_wide() const { return up(d, SIDE); }
  long k_deep() const { return up(keys, DEPTH); }
  long k_wide() const { return up(keys, SIDE); }
};

void forward(const TileCall &of, long b, long group, const uint16_t *q, const uint16_t *k, const uint16_t *v, uint16_t *z,
             float *mass) {
  const long d = of.d, dd = of.d_deep(), dw = of.d_wide(), kd = of.k_deep(), per = of.n_q / of.n_kv;
  const long tiles_k = up(of.keys, DEPTH) * dd / 2, tiles_v = dw * kd / 2;
  char *room = room_of_thread.of(4 * (tiles_k + tiles_v) + QUERIES * (2 * dd + 4 * kd + 2 * kd + 4 * dw));
  uint32_t *turned = reinterpret_cast<uint32_t *>(room), *pairs = turned + tiles_k;
  float *s = reinterpret_cast<float *>(pairs + tiles_v), *out = s + QUERIES * kd;
  uint16_t *rows = reinterpret_cast<uint16_t *>(out + QUERIES * dw), *pattern = rows + QUERIES * dd;
  const uint16_t *kh = k + (b * of.n_kv + group) * of.keys * d, *vh = v + (b * of.n_kv + group) * of.keys * d;
  lay_turned(kh, d, of.keys, d, turned);
  lay_pairs(vh, d, of.keys, d, pairs);
  for (long head = group * per; head < (group + 1) * per; head++)
    for (long start = 0; start < of.queries; start += QUERIES) {
      long n = of.queries - start < QUERIES ? of.queries - start : QUERIES, keys = of.seen(start + n);
      long tall = up(n, SIDE) / SIDE, deep = up(keys, DEPTH) / DEPTH;
      copy_rows(q + ((b * of.n_q + head) * of.queries + start) * d, d, n, d, rows, QUERIES, dd);
      product(tall, up(keys, SIDE) / SIDE, dd / DEPTH, true, rows, {2 * dd, 64, 32 * dd}, turned,
              dd / DEPTH * BYTES, s, {4 * kd, 64, 64 * kd});
      memset(pattern, 0, 2 * QUERIES * kd);
      for (long i = 0; i < n; i++) {
        long seen = of.seen(start + i + 1);
        float *row = s + i * kd, highest = scaled(row, of.bias_of(b, start + i), of.scale, seen);
        __m512 sum = _mm512_setzero_ps();
        for (long j = 0; j < seen; j += SIDE) {
          __m512 e = exponential_or_0(_mm512_sub_ps(_mm512_load_ps(row + j), _mm512_set1_ps(highest)));
          sum = _mm512_mask_add_ps(sum, first(seen - j), sum, e);
          _mm512_store_ps(row + j, e);
        }
        float total = _mm512_reduce_add_ps(sum);
        for (long j = 0; j < seen; j += SIDE)
          put_bf16(pattern + i * kd + j, first(seen - j), _mm512_mul_ps(_mm512_load_ps(row + j), _mm512_set1_ps(1.f / total)));
        mass[(b * of.n_q + head) * of.queries + start + i] = highest + logf(total);
      }
      product(tall, dw / SIDE, deep, true, pattern, {2 * kd, 64, 32 * kd}, pairs, kd / DEPTH * BYTES, out,
              {4 * dw, 64, 64 * dw});
      for (long i = 0; i < n; i++)
        for (long c = 0; c * SIDE < d; c++)
          put_bf16(z + ((b * of.queries + start + i) * of.n_q + head) * d + c * SIDE, columns(d, c),
                   _mm512_load_ps(out + i * dw + c * SIDE));
    }
}

// With P the pattern: dV = P^T dZ, dP = dZ V^T, dS = scale P (dP - rowsum(P dP)), dQ = dS K, dK = dS^T Q.
void backward(const TileCall &of, long b, long group, const uint16_t *q, const uint16_t *k, const uint16_t *v,
              const float *mass, const uint16_t *dz, uint16_t *dq, uint16_t *dk, uint16_t *dv) {
  const long d = of.d, dd = of.d_deep(), dw = of.d_wide(), kd = of.k_deep(), kw = of.k_wide(), per = of.n_q / of.n_kv;
  const long turned = kd * dd / 2, paired = dw * kd / 2, span = SPAN / DEPTH, of_span = dw * SPAN / 2;
  char *room = room_of_thread.of(4 * (2 * turned + paired + 2 * of_span + kw * SPAN + 2 * kd * dw) +
                                 QUERIES * (4 * dd + 8 * kd + 2 * kd + 4 * dw));
  uint32_t *k_turned = reinterpret_cast<uint32_t *>(room), *v_turned = k_turned + turned;
  uint32_t *k_pairs = v_turned + turned, *q_pairs = k_pairs + paired, *dz_pairs = q_pairs + of_span;
  uint32_t *p_columns = dz_pairs + of_span, *ds_columns = p_columns + kw * SPAN / 2;
  float *of_k = reinterpret_cast<float *>(ds_columns + kw * SPAN / 2), *of_v = of_k + kd * dw;
  float *s = of_v + kd * dw, *dp = s + QUERIES * kd, *out = dp + QUERIES * kd;
  uint16_t *q_rows = reinterpret_cast<uint16_t *>(out + QUERIES * dw), *dz_rows = q_rows + QUERIES * dd;
  uint16_t *ds_rows = dz_rows + QUERIES * dd;
  const long at_keys = (b * of.n_kv + group) * of.keys * d, z_row = of.n_q * d;
  lay_turned(k + at_keys, d, of.keys, d, k_turned);
  lay_turned(v + at_keys, d, of.keys, d, v_turned);
  lay_pairs(k + at_keys, d, of.keys, d, k_pairs);
  memset(of_k, 0, 4 * 2 * kd * dw);
  for (long head = group * per; head < (group + 1) * per; head++)
    for (long begin = 0; begin < of.queries; begin += SPAN) {
      const long n_span = of.queries - begin < SPAN ? of.queries - begin : SPAN, steps = up(n_span, DEPTH) / DEPTH;
      const uint16_t *qh = q + ((b * of.n_q + head) * of.queries + begin) * d;
      const uint16_t *dzh = dz + ((b * of.queries + begin) * of.n_q + head) * d;
      lay_pairs(qh, d, n_span, d, q_pairs);
      lay_pairs(dzh, z_row, n_span, d, dz_pairs);
      for (long step = 0; step < steps; step++) {
        long start = step * QUERIES, n = n_span - start < QUERIES ? n_span - start : QUERIES;
        long keys = of.seen(begin + start + n), tall = up(n, SIDE) / SIDE, wide = up(keys, SIDE) / SIDE;
        copy_rows(qh + start * d, d, n, d, q_rows, QUERIES, dd);
        copy_rows(dzh + start * z_row, z_row, n, d, dz_rows, QUERIES, dd);
        Lie deep_rows{2 * dd, 64, 32 * dd}, of_scores{4 * kd, 64, 64 * kd};
        product(tall, wide, dd / DEPTH, true, q_rows, deep_rows, k_turned, dd / DEPTH * BYTES, s, of_scores);
        product(tall, wide, dd / DEPTH, true, dz_rows, deep_rows, v_turned, dd / DEPTH * BYTES, dp, of_scores);
        memset(ds_rows, 0, 2 * QUERIES * kd);
        for (long i = 0; i < QUERIES; i++) {
          float *row = s + i * kd, *slope = dp + i * kd;
          long seen = i < n ? of.seen(begin + start + i + 1) : 0;
          scaled(row, i < n ? of.bias_of(b, begin + start + i) : nullptr, of.scale, seen);
          __m512 less = _mm512_set1_ps(i < n ? mass[(b * of.n_q + head) * of.queries + begin + start + i] : 0.f);
          __m512 sum = _mm512_setzero_ps();
          for (long j = 0; j < seen; j += SIDE) {
            __m512 p = _mm512_maskz_mov_ps(first(seen - j), exponential_or_0(_mm512_sub_ps(_mm512_load_ps(row + j), less)));
            sum = _mm512_mask3_fmadd_ps(p, _mm512_load_ps(slope + j), sum, first(seen - j));
            _mm512_store_ps(row + j, p);
          }
          __m512 level = _mm512_set1_ps(_mm512_reduce_add_ps(sum)), by = _mm512_set1_ps(of.scale);
          for (long j = 0; j < wide * SIDE; j += SIDE) {
            __mmask16 there = first(seen - j);
            __m512 p = _mm512_maskz_load_ps(there, row + j);
            __m512 ds = _mm512_maskz_mul_ps(there, _mm512_mul_ps(p, by), _mm512_sub_ps(_mm512_load_ps(slope + j), level));
            _mm512_store_ps(row + j, p);
            _mm512_store_ps(slope + j, ds);
            put_bf16(ds_rows + i * kd + j, 0xffff, ds);
          }
        }
        lay_columns(s, kd, wide, p_columns + step * TILE, span * TILE);
        lay_columns(dp, kd, wide, ds_columns + step * TILE, span * TILE);
        product(tall, dw / SIDE, up(keys, DEPTH) / DEPTH, true, ds_rows, {2 * kd, 64, 32 * kd}, k_pairs,
                kd / DEPTH * BYTES, out, {4 * dw, 64, 64 * dw});
        for (long i = 0; i < n; i++)
          for (long c = 0; c * SIDE < d; c++)
            put_bf16(dq + ((b * of.n_q + head) * of.queries + begin + start + i) * d + c * SIDE, columns(d, c),
                     _mm512_load_ps(out + i * dw + c * SIDE));
      }
      for (long j = 0; j * SIDE < of.keys; j += 2) {  // keys that no query of the span sees have nothing laid there
        long from = of.causal && j * SIDE > begin ? (j * SIDE - begin) / DEPTH : 0;
        if (from >= steps) break;
        long tall = (j + 1) * SIDE < of.keys ? 2 : 1, next = up(n_span, DEPTH) / DEPTH * BYTES;
        Lie columns_lie{64, BYTES, span * BYTES}, sums{4 * dw, 64, 64 * dw};
        product(tall, dw / SIDE, steps - from, false, p_columns + (j * span + from) * TILE, columns_lie,
                dz_pairs + from * TILE, next, of_v + j * SIDE * dw, sums);
        product(tall, dw / SIDE, steps - from, false, ds_columns + (j * span + from) * TILE, columns_lie,
                q_pairs + from * TILE, next, of_k + j * SIDE * dw, sums);
      }
    }
  for (long i = 0; i < of.keys; i++)
    for (long c = 0; c * SIDE < d; c++) {
      put_bf16(dk + at_keys + i * d + c * SIDE, columns(d, c), _mm512_load_ps(of_k + i * dw + c * SIDE));
      put_bf16(dv + at_keys + i * d + c * SIDE, columns(d, c), _mm512_load_ps(of_v + i * dw + c * SIDE));
    }
}

}  // namespace
