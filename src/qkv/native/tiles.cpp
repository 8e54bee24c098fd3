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

#include "attention.h"
#include "polar.h"
#include "products.h"

namespace {

// 16 rows of W' from their tiles.
void unlay(const float *tiles, long rows, long b, float *w) {
  for (long row = 0; row < rows; row++)
    for (long j = 0; j * SIDE < b; j++)
      _mm512_mask_storeu_ps(w + row * b + j * SIDE, columns(b, j), _mm512_load_ps(tiles + j * TILE + row * SIDE));
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

// See `multiplied`: how says what is made of a product, in the order of this list.
extern "C" void multiply(long how, long n, long k, long m, const uint16_t *x, const float *w, const uint16_t *x2,
                         const float *w2, long turned, float factor, const float *bias, const float *stream_in,
                         const bf16 *a, const bf16 *b, bf16 *out, bf16 *second, bf16 *third, float *stream,
                         uint32_t *room) {
  Into to{m, factor, bias, stream_in, a, b, out, second, third, stream};
  auto made = how == 0   ? multiplied<Written>
              : how == 1 ? multiplied<Activated<Relu2>>
              : how == 2 ? multiplied<Activated<GeluTanh>>
              : how == 3 ? multiplied<Activated<Gelu>>
              : how == 4 ? multiplied<Plus>
              : how == 5 ? multiplied<Sloped>
              : how == 6 ? multiplied<Gated>
                         : multiplied<GatedBack>;
  made(n, k, m, x, w, x2, w2, turned, to, room);
}

#else

extern "C" long tiles() { return 0; }

extern "C" void weight_gradient(long, long, long, const uint16_t *, const uint16_t *, float *, float *, uint32_t *) {}

extern "C" void attend() {}

extern "C" void attend_back() {}

extern "C" void orthogonalise() {}

extern "C" void multiply() {}

#endif
