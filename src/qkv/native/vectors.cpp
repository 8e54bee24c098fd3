// Products and attention in float32 by vectors, where a library's go through memory between one pass and the next.
//
// A step of a small model is made of products that a library makes at half of the processor's speed: their operands come
// from far off and their results go there, once for the product and once for each pass that follows. Here rows are read
// once, meet weights that lie near, and are written with all that is made of them; a head's scores never leave the
// processor. Results do not depend on the number of threads.

#include <omp.h>

#include "vector_attention.h"
#include "vector_products.h"

// W' [a, b] of x [n, a] and d [n, b], times `factor`; the sums over rows of d [b], if asked.
extern "C" void weight_gradient(long n, long a, long b, const float *x, const float *d, float factor, float *w,
                                float *sums) {
  gradient(n, a, b, x, d, factor, w, sums);
}

// See `multiplied`: `how` says what is made of a product, as `by_number` counts it.
extern "C" void multiply(long how, long n, long k, long m, const float *x, const float *w, const float *x2,
                         const float *w2, long turned, float factor, const float *bias, const float *stream_in,
                         const float *a, const float *b, float *out, float *second, float *third, float *stream,
                         float *room) {
  const Into<float> to{m, factor, bias, stream_in, a, b, out, second, third, stream};
  by_number(how, [&](auto of) { multiplied<decltype(of)>(n, k, m, x, w, x2, w2, turned, to, room); });
}

// z [batch, queries, n_q, d] and the log of each query's mass [batch, n_q, queries] of q [batch, n_q, queries, d] and k, v
// [batch, n_kv, keys, d]: a query sees the keys up to its own position where `causal`; bias 0 or -inf, or null.
extern "C" void attend(SIZES, const float *q, const float *k, const float *v, float *z, float *mass) {
  const Call call{batch, n_q, n_kv, queries, keys, d, causal, scale, bias, bias_batch, bias_row};
#pragma omp parallel for schedule(dynamic)
  for (long job = 0; job < batch * n_kv; job++) forward(call, job / n_kv, job % n_kv, q, k, v, z, mass);
}

// The gradients of q, k and v, as they lie, of that of z, as it lies.
extern "C" void attend_back(SIZES, const float *q, const float *k, const float *v, const float *mass, const float *dz,
                            float *dq, float *dk, float *dv) {
  const Call call{batch, n_q, n_kv, queries, keys, d, causal, scale, bias, bias_batch, bias_row};
#pragma omp parallel for schedule(dynamic)
  for (long job = 0; job < batch * n_kv; job++) backward(call, job / n_kv, job % n_kv, q, k, v, mass, dz, dq, dk, dv);
}
