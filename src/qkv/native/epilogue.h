// What is made of a product before it is written: a bias is added, an activation and its slope are made, a gate, a sum onto
// the stream; so that it does not go to memory and back.

#pragma once

#include "numbers.h"
#include "workspace.h"

namespace {

// What a product meets before it is written.
template <class T>
struct Into {
  long m;             // numbers of a row
  float factor;
  const float *bias;  // [m], or null
  const float *x;     // the stream [n, m] that a product is added to
  const T *a, *b;     // what a gradient meets on its way back: a slope; or g and c of a gate
  T *out, *second, *third;
  float *stream;

  floats biased(floats r, long i, long n) const { return bias ? r + load(bias + i, n) : r; }
};

struct Made {  // of 16 numbers of a product
  floats first, second = floats{}, third = floats{};
};

// What is made of 16 numbers (or n) of a product, and of those of a second one beside it: MADE of them as activations, or
// one in float32 where it goes to the stream.
template <int made, bool two = false>
struct Makes {
  static constexpr int MADE = made;
  static constexpr bool TWO = two;
};

struct Written : Makes<1> {  // r factor + bias
  template <class To>
  HERE static Made of(const To &to, long, long i, long n, floats r, floats) {
    return {to.biased(r * to.factor, i, n)};
  }
};

template <class Act>
struct Activated : Makes<2> {  // act(r + bias), and its slope
  template <class To>
  HERE static Made of(const To &to, long, long i, long n, floats r, floats) {
    Made made{floats{}};
    Act::both(to.biased(r, i, n), made.first, made.second);
    return made;
  }
};

struct Plus : Makes<0> {  // x + r + bias
  template <class To>
  HERE static Made of(const To &to, long at, long i, long n, floats r, floats) {
    return {to.biased(r + load(to.x + at, n), i, n)};
  }
};

struct Sloped : Makes<1> {  // r factor a
  template <class To>
  HERE static Made of(const To &to, long at, long, long n, floats r, floats) {
    return {r * to.factor * load(to.a + at, n)};
  }
};

struct Gated : Makes<3, true> {  // silu(g) c with c = r + bias, g = r2; then c and g
  template <class To>
  HERE static Made of(const To &to, long, long i, long n, floats r, floats g) {
    floats c = to.biased(r, i, n);
    return {g * sigmoid(g) * c, c, g};
  }
};

struct GatedBack : Makes<2> {  // dc = silu(g) r and dg = silu'(g) c r
  template <class To>
  HERE static Made of(const To &to, long at, long, long n, floats r, floats) {
    floats g = load(to.a + at, n), y = sigmoid(g);
    return {g * y * r, y * (1.f + g * (1.f - y)) * load(to.b + at, n) * r};
  }
};

// What is made of a product, by its number, as `qkv.kernels.gemm` counts it: given to `call`.
template <class Call>
void by_number(long how, Call call) {
  if (how == 0) call(Written{});
  if (how == 1) call(Activated<Relu2>{});
  if (how == 2) call(Activated<GeluTanh>{});
  if (how == 3) call(Activated<Gelu>{});
  if (how == 4) call(Plus{});
  if (how == 5) call(Sloped{});
  if (how == 6) call(Gated{});
  if (how == 7) call(GatedBack{});
}

}  // namespace
