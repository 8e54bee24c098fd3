// The sizes of one call of attention, and which keys a query sees.

#pragma once

namespace {

// Heads lie as [batch, head, pos, d], one after another, but for z and its gradient: [batch, pos, head, d].
struct Call {
  long batch, n_q, n_kv, queries, keys, d, causal;
  float scale;
  const float *bias;  // [batch, queries, keys] by these strides, or null
  long bias_batch, bias_row;

  long seen(long after) const { return causal && after < keys ? after : keys; }  // keys that queries before that see
  const float *bias_of(long b, long query) const {
    return bias ? bias + b * bias_batch + query * bias_row : nullptr;
  }
};

}  // namespace

// How a call comes, from outside.
#define SIZES                                                                                                          \
  long batch, long n_q, long n_kv, long queries, long keys, long d, long causal, float scale, const float *bias,       \
      long bias_batch, long bias_row
