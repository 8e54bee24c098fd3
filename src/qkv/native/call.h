// The sizes of one call of attention, and which keys a query sees.

#pragma once

namespace {

// Where heads lie: how many numbers one text, head and position is from the next; those of a head are neighbours.
struct Heads {
  long text, head, row;
  long at(long b, long h, long position) const { return b * text + h * head + position * row; }
};

// q and its gradient lie as `of_q` says, k, v and theirs as `of_k`; z and its gradient as [batch, pos, head, d].
struct Call {
  long batch, n_q, n_kv, queries, keys, d;
  Heads of_q, of_k;
  long causal;
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
  long batch, long n_q, long n_kv, long queries, long keys, long d, long q_text, long q_head, long q_row, long k_text, \
      long k_head, long k_row, long causal, float scale, const float *bias, long bias_batch, long bias_row
#define CALLED                                                                                                         \
  { batch, n_q, n_kv, queries, keys, d, {q_text, q_head, q_row}, {k_text, k_head, k_row}, causal, scale, bias,         \
    bias_batch, bias_row }
