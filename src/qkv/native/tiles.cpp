// Products by tiles of bfloat16, summed in float32, where torch's own are slow: the gradients of weights, and attention.
//
// A library's W' = x^T d reads x and d across their rows, one number at a time, and takes two to three times as long as a
// product that lies well; and softmax(q k^T) v by single products goes through memory at every step, where the scores
// of a few queries fit next to the processor. Here operands are laid into tiles once, what follows reads memory in order,
// and a head's scores never leave it. For processors with tiles (Intel's AMX); `tiles` says whether this is one.
// Results do not depend on the number of threads.

#include <omp.h>
#include <stdint.h>
#include <string.h>

#if defined(__linux__) && defined(__x86_64__) && defined(__AMX_BF16__) && defined(__AVX512BW__)

#include "attention.h"
#include "newton_schulz.h"
#include "products.h"

namespace {

constexpr long NEAR = 1l << 20;  // bytes of a gradient that a thread makes at once; of a larger one half as many

// Rows of W' [a, b], from 16 `row` on and columns from 16 `column`, of a tile of it or of its transpose.
void unlay(const float *tile, float factor, bool turned, long row, long column, long a, long b, float *w) {
  __m512i r[SIDE];
  for (long i = 0; i < SIDE; i++)
    r[i] = _mm512_castps_si512(_mm512_mul_ps(_mm512_load_ps(tile + i * SIDE), _mm512_set1_ps(factor)));
  if (turned) transpose(r);
  for (long i = 0; i < SIDE && row * SIDE + i < a; i++)
    _mm512_mask_storeu_epi32(w + (row * SIDE + i) * b + column * SIDE, columns(b, column), r[i]);
}

}  // namespace

extern "C" long tiles() {  // the system is asked once for the room that tiles take
  return syscall(SYS_arch_prctl, 0x1023, 18) == 0;
}

// W' [a, b] of x [n, a] and d [n, b], times `factor`; the sums over rows of d [b], if asked. Numbers do not depend on
// threads: each has columns of the wider operand to itself, and lays the narrower one for itself, so that none waits for
// another. Of a matrix that leaves a core's cache it makes some columns at a time, all rows of them.
extern "C" void weight_gradient(long n, long a, long b, const uint16_t *x, const uint16_t *d, float factor, float *w,
                                float *sums) {
  const bool turned = a > b;  // then W'^T = d^T x is what tiles make
  const uint16_t *narrow = turned ? d : x, *wide = turned ? x : d;
  const long narrower = turned ? b : a, wider = turned ? a : b, most = up(n < BLOCK ? n : BLOCK, DEPTH) / DEPTH;
  const long high = up(narrower, SIDE) / SIDE, along = up(wider, SIDE) / SIDE, pairs = (along + 1) / 2;
  if (sums) memset(sums, 0, sizeof(float) * b);
#pragma omp parallel
  {
    Tiles mine;
    const long me = omp_get_thread_num(), threads = omp_get_num_threads();
    const long from = 2 * (pairs * me / threads), end = 2 * (pairs * (me + 1) / threads), to = end < along ? end : along;
    const bool many = high * (to - from) * BYTES > NEAR;
    const long few = NEAR / 2 / (high * BYTES) / 2 * 2, at_once = !many ? to - from : few ? few : 2;
    const long blocks = n ? (n + BLOCK - 1) / BLOCK : 1, laid = many ? blocks : 1, size = high * most * TILE;
    uint32_t *left =
        reinterpret_cast<uint32_t *>(room_of_thread.of(BYTES * (high * most * laid + at_once * (most + high))));
    uint32_t *right = left + size * laid;
    float *of_w = reinterpret_cast<float *>(right + at_once * most * TILE);
    for (long first = from; first < to; first += at_once) {
      const long last = first + at_once < to ? first + at_once : to, count = last - first;
      for (long block = 0; block < blocks; block++) {
        const long start = block * BLOCK, rows = n - start < BLOCK ? n - start : BLOCK, depth = up(rows, DEPTH) / DEPTH;
        uint32_t *here = many ? left + block * size : left;
        if (first == from)
          lay(narrow + start * narrower, narrower, rows, 0, high, true, here, turned && from == 0 ? sums : nullptr);
        lay(wide + start * wider, wider, rows, first, last, false, right, turned ? nullptr : sums);
        product(high, count, depth, start == 0, here, {64, BYTES, depth * BYTES}, right, depth * BYTES, of_w,
                {64, BYTES, count * BYTES});
      }
      for (long i = 0; i < high; i++)
        for (long c = 0; c < count; c++)
          unlay(of_w + (i * count + c) * TILE, factor, turned, turned ? first + c : i, turned ? i : first + c, a, b, w);
    }
  }
}

// z [batch, queries, n_q, d] and the log of each query's mass [batch, n_q, queries] of q [batch, n_q, queries, d] and k, v
// [batch, n_kv, keys, d]: a query sees the keys up to its own position where `causal`; bias 0 or -inf, or null.
extern "C" void attend(SIZES, const uint16_t *q, const uint16_t *k, const uint16_t *v, uint16_t *z, float *mass) {
  TileCall call{{batch, n_q, n_kv, queries, keys, d, causal, scale, bias, bias_batch, bias_row}};
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
  TileCall call{{batch, n_q, n_kv, queries, keys, d, causal, scale, bias, bias_batch, bias_row}};
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

// See `multiplied`: `how` says what is made of a product, as `by_number` counts it.
extern "C" void multiply(long how, long n, long k, long m, const uint16_t *x, const float *w, const uint16_t *x2,
                         const float *w2, long turned, float factor, const float *bias, const float *stream_in,
                         const bf16 *a, const bf16 *b, bf16 *out, bf16 *second, bf16 *third, float *stream,
                         uint32_t *room) {
  const Into<bf16> to{m, factor, bias, stream_in, a, b, out, second, third, stream};
  by_number(how, [&](auto of) { multiplied<decltype(of)>(n, k, m, x, w, x2, w2, turned, to, room); });
}

#else

extern "C" long tiles() { return 0; }

extern "C" void weight_gradient() {}

extern "C" void attend() {}

extern "C" void attend_back() {}

extern "C" void orthogonalise() {}

extern "C" void multiply() {}

#endif
