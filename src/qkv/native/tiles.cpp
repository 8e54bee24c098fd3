// Products by tiles of bfloat16, summed in float32, where torch's own are slow: the gradients of weights, and attention.
//
// A library's W' = x^T d reads x and d across their rows, one number at a time, and takes two to three times as long as a
// product that lies well; and softmax(q k^T) v by single products goes through memory at every step, where the scores
// of a few queries fit next to the processor. Here operands are laid into tiles once, what follows reads memory in order,
// and a head's scores never leave it. For processors with tiles (Intel's AMX); `tiles` says whether this is one.
// Results do not depend on the number of threads.

#include <stdint.h>
#include <string.h>

#if defined(__linux__) && defined(__x86_64__) && defined(__AMX_BF16__) && defined(__AVX512BW__)

#include <immintrin.h>
#include <math.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace {

constexpr long SIDE = 16;       // rows of a tile, and its columns of 32 bits
constexpr long DEPTH = 32;      // rows of x and d that one tile holds, two in each 32 bits
constexpr long BLOCK = 256;    // rows of x and d laid out at a time: both then stay near the processor
constexpr long TOGETHER = 4;    // tiles laid side by side: what one line of memory holds of a row, twice
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

inline void transpose(__m512i r[SIDE]) {
  __m512i t[SIDE];
  for (int i = 0; i < 16; i += 2) {
    t[i] = _mm512_unpacklo_epi32(r[i], r[i + 1]);
    t[i + 1] = _mm512_unpackhi_epi32(r[i], r[i + 1]);
  }
  for (int i = 0; i < 16; i += 4) {
    r[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
    r[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
    r[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
    r[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
  }
  for (int i = 0; i < 4; i++) {
    t[i] = _mm512_shuffle_i32x4(r[i], r[i + 4], 0x88);
    t[i + 4] = _mm512_shuffle_i32x4(r[i], r[i + 4], 0xdd);
    t[i + 8] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0x88);
    t[i + 12] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0xdd);
  }
  for (int i = 0; i < 4; i++) {
    r[i] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0x88);
    r[i + 4] = _mm512_shuffle_i32x4(t[i + 4], t[i + 12], 0x88);
    r[i + 8] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0xdd);
    r[i + 12] = _mm512_shuffle_i32x4(t[i + 4], t[i + 12], 0xdd);
  }
}

inline __m512 upper_rows(__m512i pairs) { return _mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16)); }

inline __m512 lower_rows(__m512i pairs) {
  return _mm512_castsi512_ps(_mm512_and_si512(pairs, _mm512_set1_epi32(static_cast<int>(0xffff0000u))));
}

// Tiles of the columns from 16 c, `count` times 16 of them, over `n` rows: those of the same columns one after another.
// Onto `sums`, if asked, the sums of the columns.
void lay(const uint16_t *from, long width, long n, long c, long count, bool across, uint32_t *to, float *sums) {
  long depth = (n + DEPTH - 1) / DEPTH;
  __m512 sum[TOGETHER];
  for (long g = 0; g < count; g++)
    sum[g] = sums ? _mm512_maskz_loadu_ps(columns(width, c + g), sums + (c + g) * SIDE) : _mm512_setzero_ps();
  for (long k = 0; k < depth; k++) {
    for (long g = 0; g < count; g++) {
      __m512i pairs[SIDE];
      long row = k * DEPTH;
      pair_rows(from + row * width + (c + g) * SIDE, width, n - row, columns(width, c + g), pairs);
      if (sums)
        for (long i = 0; i < SIDE; i++)
          sum[g] = _mm512_add_ps(sum[g], _mm512_add_ps(upper_rows(pairs[i]), lower_rows(pairs[i])));
      if (across) transpose(pairs);
      uint32_t *tile = to + ((c + g) * depth + k) * TILE;
      for (long i = 0; i < SIDE; i++) _mm512_store_si512(tile + i * SIDE, pairs[i]);
    }
  }
  if (sums)
    for (long g = 0; g < count; g++) _mm512_mask_storeu_ps(sums + (c + g) * SIDE, columns(width, c + g), sum[g]);
}

// How the tiles of an operand or a result lie: bytes from a row of a tile to its next, and from a tile to the one right
// of it (`step`) and below it (`down`).
struct Lie {
  long row, step, down;
};

// Two by two tiles of c, or one of either side: c (+)= the products of `depth` tiles of a and b; tiles of b follow each
// other in `depth`, and those of its next columns are `next` bytes on.
template <bool TWO_A, bool TWO_B>
void multiply(long depth, bool fresh, const char *a, Lie of_a, const char *b, long next, char *c, Lie of_c) {
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
  }
  _tile_stored(0, c, of_c.row);
  if (TWO_B) _tile_stored(1, c + of_c.step, of_c.row);
  if (TWO_A) _tile_stored(2, low, of_c.row);
  if (TWO_A && TWO_B) _tile_stored(3, low + of_c.step, of_c.row);
}

// c (+)= a b of tiles [rows, depth] and [depth, columns].
void product(long rows, long columns, long depth, bool fresh, const void *a, Lie of_a, const void *b, long next, void *c,
             Lie of_c) {
  for (long j = 0; j < columns; j += 2)
    for (long i = 0; i < rows; i += 2) {
      auto two_by_two = i + 1 < rows ? (j + 1 < columns ? multiply<true, true> : multiply<true, false>)
                                     : (j + 1 < columns ? multiply<false, true> : multiply<false, false>);
      two_by_two(depth, fresh, static_cast<const char *>(a) + i * of_a.down, of_a,
                 static_cast<const char *>(b) + j * next, next,
                 static_cast<char *>(c) + i * of_c.down + j * of_c.step, of_c);
    }
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

// 16 rows of W' from their tiles.
void unlay(const float *tiles, long rows, long b, float *w) {
  for (long row = 0; row < rows; row++)
    for (long j = 0; j * SIDE < b; j++)
      _mm512_mask_storeu_ps(w + row * b + j * SIDE, columns(b, j), _mm512_load_ps(tiles + j * TILE + row * SIDE));
}

// Attention ----------------------------------------------------------------------------------------------------------

constexpr long QUERIES = 32;   // whose scores are worked on at a time
constexpr long SPAN = 256;     // queries whose patterns are kept on the way back until keys and values take them

struct Room {  // of one thread, kept from call to call
  char *at = nullptr;
  long size = 0;
  char *of(long wanted) {
    if (wanted > size) {
      free(at);
      at = static_cast<char *>(aligned_alloc(64, static_cast<size_t>(wanted)));
      size = at ? wanted : 0;
      if (!at) abort();
    }
    return at;
  }
  ~Room() { free(at); }
};

thread_local Room room_of_thread;

inline long up(long n, long to) { return (n + to - 1) / to * to; }

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
inline __m512 exponential(__m512 x) {
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

inline void put_bf16(uint16_t *to, __mmask16 there, __m512 x) {
  _mm256_mask_storeu_epi16(to, there, (__m256i)_mm512_cvtneps_pbh(x));
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

// The sizes of one call, and where what it is given lies: heads [batch, head, pos, d] one after another but for z and
// its gradient, [batch, pos, head, d].
struct Call {
  long batch, n_q, n_kv, queries, keys, d, causal;
  float scale;
  const float *bias;  // [batch, queries, keys] by these strides, or null
  long bias_batch, bias_row;

  long d_deep() const { return up(d, DEPTH); }
  long d_wide() const { return up(d, SIDE); }
  long k_deep() const { return up(keys, DEPTH); }
  long k_wide() const { return up(keys, SIDE); }
  long seen(long after) const { return causal && after < keys ? after : keys; }  // keys that queries before that see
  const float *bias_of(long b, long query) const {
    return bias ? bias + b * bias_batch + query * bias_row : nullptr;
  }
};

void forward(const Call &of, long b, long group, const uint16_t *q, const uint16_t *k, const uint16_t *v, uint16_t *z,
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
          __m512 e = exponential(_mm512_sub_ps(_mm512_load_ps(row + j), _mm512_set1_ps(highest)));
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
void backward(const Call &of, long b, long group, const uint16_t *q, const uint16_t *k, const uint16_t *v,
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
            __m512 p = _mm512_maskz_mov_ps(first(seen - j), exponential(_mm512_sub_ps(_mm512_load_ps(row + j), less)));
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

// The nearest orthonormal matrix ------------------------------------------------------------------------------------

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

extern "C" long tiles() {  // the system is asked once for the room that tiles take
  return syscall(SYS_arch_prctl, 0x1023, 18) == 0;
}

// W' [a, b] of x [n, a] and d [n, b]; the sums over rows of d [b], if asked. Numbers do not depend on threads.
// room: 64-byte aligned, 32 bits each: ceil(a / 16) ceil(b / 16) tiles of W' and those of a block of rows of x and d.
extern "C" void weight_gradient(long n, long a, long b, const uint16_t *x, const uint16_t *d, float *w, float *sums,
                                uint32_t *room) {
  long across = (a + SIDE - 1) / SIDE, along = (b + SIDE - 1) / SIDE;
  long pairs_x = (across + 1) / 2, pairs_d = (along + 1) / 2, most = (BLOCK < n ? BLOCK : n + DEPTH - 1) / DEPTH;
  bool x_inside = across <= along;
  float *of_w = reinterpret_cast<float *>(room);
  uint32_t *of_x = room + across * along * TILE, *of_d = of_x + across * most * TILE;
#pragma omp parallel
  {
    Tiles mine;
#pragma omp single
    if (sums) memset(sums, 0, sizeof(float) * b);
    for (long start = 0; start < n; start += BLOCK) {
      long rows = n - start < BLOCK ? n - start : BLOCK, depth = (rows + DEPTH - 1) / DEPTH;
#pragma omp for schedule(static) nowait
      for (long c = 0; c < across; c += TOGETHER)
        lay(x + start * a, a, rows, c, across - c < TOGETHER ? across - c : TOGETHER, true, of_x, nullptr);
#pragma omp for schedule(static)
      for (long c = 0; c < along; c += TOGETHER)
        lay(d + start * b, b, rows, c, along - c < TOGETHER ? along - c : TOGETHER, false, of_d, sums);
#pragma omp for schedule(static)
      for (long job = 0; job < pairs_x * pairs_d; job++) {
        long i = 2 * (x_inside ? job % pairs_x : job / pairs_d), j = 2 * (x_inside ? job / pairs_x : job % pairs_d);
        product(i + 1 < across ? 2 : 1, j + 1 < along ? 2 : 1, depth, start == 0, of_x + i * depth * TILE,
                {64, BYTES, depth * BYTES}, of_d + j * depth * TILE, depth * BYTES, of_w + (i * along + j) * TILE,
                {64, BYTES, along * BYTES});
      }
    }
#pragma omp for schedule(static)
    for (long i = 0; i < across; i++)
      unlay(of_w + i * along * TILE, a - i * SIDE < SIDE ? a - i * SIDE : SIDE, b, w + i * SIDE * b);
  }
}

#define SIZES                                                                                                          \
  long batch, long n_q, long n_kv, long queries, long keys, long d, long causal, float scale, const float *bias,       \
      long bias_batch, long bias_row

// z [batch, queries, n_q, d] and the log of each query's mass [batch, n_q, queries] of q [batch, n_q, queries, d] and k, v
// [batch, n_kv, keys, d]: a query sees the keys up to its own position where `causal`; bias 0 or -inf, or null.
extern "C" void attend(SIZES, const uint16_t *q, const uint16_t *k, const uint16_t *v, uint16_t *z, float *mass) {
  Call call{batch, n_q, n_kv, queries, keys, d, causal, scale, bias, bias_batch, bias_row};
#pragma omp parallel
  {
    Tiles mine;
#pragma omp for schedule(dynamic)
    for (long job = 0; job < batch * n_kv; job++) forward(call, job / n_kv, job % n_kv, q, k, v, z, mass);
  }
}

// The gradients of q, k and v, as they lie, of that of z, as it lies.
extern "C" void attend_back(SIZES, const uint16_t *q, const uint16_t *k, const uint16_t *v, const float *mass,
                            const uint16_t *dz, uint16_t *dq, uint16_t *dk, uint16_t *dv) {
  Call call{batch, n_q, n_kv, queries, keys, d, causal, scale, bias, bias_batch, bias_row};
#pragma omp parallel
  {
    Tiles mine;
#pragma omp for schedule(dynamic)
    for (long job = 0; job < batch * n_kv; job++)
      backward(call, job / n_kv, job % n_kv, q, k, v, mass, dz, dq, dk, dv);
  }
}

// The polar factors of `count` matrices [rows, cols], one after another.
extern "C" void orthogonalise(long count, long rows, long cols, const uint16_t *from, uint16_t *to, long n_steps,
                              const float *steps, float rounding, float tiny) {
#pragma omp parallel
  {
    Tiles mine;
#pragma omp for schedule(dynamic)
    for (long i = 0; i < count; i++)
      polar(rows, cols, from + i * rows * cols, to + i * rows * cols, n_steps, steps, rounding, tiny);
  }
}

#else

extern "C" long tiles() { return 0; }

extern "C" void weight_gradient(long, long, long, const uint16_t *, const uint16_t *, float *, float *, uint32_t *) {}

extern "C" void attend() {}

extern "C" void attend_back() {}

extern "C" void orthogonalise() {}

#endif
