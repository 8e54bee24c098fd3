// Numbers as they lie in memory, float or bfloat16, and some of them at a time as floats; the functions of an MLP on them.

#pragma once

#include <math.h>
#include <stdint.h>
#include <string.h>

#ifdef __AVX2__
#include <immintrin.h>
#endif

namespace {

struct bf16 {
  uint16_t bits;
};

inline float get(float x) { return x; }

inline float get(bf16 x) {
  uint32_t wide = static_cast<uint32_t>(x.bits) << 16;
  float y;
  memcpy(&y, &wide, 4);
  return y;
}

inline void put(float &to, float x) { to = x; }

inline void put(bf16 &to, float x) {  // to the nearest, ties to even; NaN stays NaN
  uint32_t wide;
  memcpy(&wide, &x, 4);
  uint32_t rounded = (wide + 0x7fffu + ((wide >> 16) & 1u)) >> 16;
  to.bits = static_cast<uint16_t>(x != x ? 0x7fc0u : rounded);
}

// As many numbers at a time as a register of this processor holds: a compiler makes little of wider vectors.
#if defined(__AVX512F__)
constexpr long WIDTH = 16;
#elif defined(__AVX__)
constexpr long WIDTH = 8;
#else
constexpr long WIDTH = 4;
#endif
typedef float floats __attribute__((vector_size(4 * WIDTH)));
typedef int32_t ints __attribute__((vector_size(4 * WIDTH)));
typedef uint32_t words __attribute__((vector_size(4 * WIDTH)));
typedef uint16_t halves __attribute__((vector_size(2 * WIDTH)));

template <class To, class From>
inline To bits(From from) {
  To to;
  static_assert(sizeof(to) == sizeof(from), "as many bits");
  memcpy(&to, &from, sizeof(to));
  return to;
}

inline floats load(const float *from) {
  floats x;
  memcpy(&x, from, sizeof(x));
  return x;
}

inline floats load(const bf16 *from) {
  halves x;
  memcpy(&x, from, sizeof(x));
#if defined(__AVX512F__)  // as below: a compiler widens each half of a register by itself, in five instructions for one
  return bits<floats>(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits<__m256i>(x)), 16));
#elif defined(__AVX2__)
  return bits<floats>(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits<__m128i>(x)), 16));
#else
  return bits<floats>(__builtin_convertvector(x, words) << 16);
#endif
}

inline void store(float *to, floats x) { memcpy(to, &x, sizeof(x)); }

inline void store(bf16 *to, floats x) {  // as `put`
#if defined(__AVX512BF16__) && defined(__AVX512F__)
  __m256bh rounded = _mm512_cvtneps_pbh(bits<__m512>(x));
#else
  words wide = bits<words>(x), up = (wide + 0x7fffu + ((wide >> 16) & 1u)) >> 16;
  halves rounded = __builtin_convertvector(x != x ? words{} + 0x7fc0u : up, halves);
#endif
  memcpy(to, &rounded, sizeof(rounded));
}

// x as a T holds it. Of floats too a product is rounded before it meets a sum, which a compiler would make one of them.
template <class T>
inline floats rounded(floats x);

template <>
inline floats rounded<float>(floats x) {
#if defined(__x86_64__)
  asm("" : "+x"(x));
#else
  asm("" : "+m"(x));
#endif
  return x;
}

template <>
inline floats rounded<bf16>(floats x) {
  bf16 some[WIDTH];
  store(some, x);
  return load(some);
}

// Calls `of(first, WIDTH or fewer)` for all of `size` numbers, in blocks that threads share.
template <class Of>
inline void each(long size, Of of) {
#pragma omp parallel for schedule(static)
  for (long block = 0; block < (size + 4095) / 4096; block++) {
    long end = (block + 1) * 4096 < size ? (block + 1) * 4096 : size, i = block * 4096;
    for (; i + WIDTH <= end; i += WIDTH) of(i, WIDTH);
    if (i < end) of(i, end - i);
  }
}

template <class T>
inline floats load(const T *from, long n) {
  if (n == WIDTH) return load(from);
  T some[WIDTH] = {};
  memcpy(some, from, n * sizeof(T));
  return load(some);
}

template <class T>
inline void store(T *to, floats x, long n) {
  if (n == WIDTH) return store(to, x);
  T some[WIDTH];
  store(some, x);
  memcpy(to, some, n * sizeof(T));
}

// e^x to 2 units in the last place, e^-87 below -87, e^88 above 88 (Cephes, Moshier 1989: expf).
inline floats exponential(floats x) {
  constexpr float NEAREST = 12582912.f;  // 1.5 2^23: what is added to it is rounded to a whole number
#ifdef __AVX512F__
  x = bits<floats>(_mm512_max_ps(_mm512_set1_ps(-87.f), bits<__m512>(x)));  // of a NaN and a number, the second
  x = bits<floats>(_mm512_min_ps(_mm512_set1_ps(88.f), bits<__m512>(x)));
#else
  x = x < -87.f ? floats{} - 87.f : (x > 88.f ? floats{} + 88.f : x);
#endif
  floats n = x * 1.44269504088896341f + NEAREST - NEAREST;
  floats r = x - n * 0.693359375f;
  r = r - n * -2.12194440e-4f;
  floats p = floats{} + 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * (r * r) + r + 1.f;
#ifdef __AVX512F__
  return bits<floats>(_mm512_scalef_ps(bits<__m512>(p), bits<__m512>(n)));
#else
  return p * bits<floats>((__builtin_convertvector(n, ints) + 127) << 23);
#endif
}

// 1 / x of x from 1 to e^88 + 1, to a unit in the last place: a division of 16 numbers takes as long as 16 products.
inline floats inverse(floats x) {
#ifdef __AVX512F__
  __m512 wide = bits<__m512>(x), near = _mm512_rcp14_ps(wide);
  return bits<floats>(_mm512_fmadd_ps(near, _mm512_fnmadd_ps(near, wide, _mm512_set1_ps(1.f)), near));
#else
  return 1.f / x;
#endif
}

inline floats sigmoid(floats x) { return inverse(1.f + exponential(-x)); }

// erfc(z) for z >= 0, fractional error below 1.2e-7 (Press et al., Numerical Recipes 2nd ed., 6.2.2: Chebyshev).
inline floats erfc_positive(floats z) {
  floats t = 1.f / (1.f + 0.5f * z);
  floats p = floats{} + 0.17087277f;
  p = p * t - 0.82215223f;
  p = p * t + 1.48851587f;
  p = p * t - 1.13520398f;
  p = p * t + 0.27886807f;
  p = p * t - 0.18628806f;
  p = p * t + 0.09678418f;
  p = p * t + 0.37409196f;
  p = p * t + 1.00002368f;
  return t * exponential(p * t - z * z - 1.26551223f);
}

// s = act(c), and its slope in c's place.
struct Relu2 {  // the slope is twice what is kept: the factor is inside the product that follows
  static inline void both(floats c, floats &s, floats &a) {
    a = c < 0.f ? floats{} : c;
    s = a * a;
  }
};

struct GeluTanh {  // c sigmoid(v), v = sqrt(8 / pi) (c + 0.044715 c^3)
  static inline void both(floats c, floats &s, floats &a) {
    constexpr float rate = 1.5957691216057308f;
    floats v = rate * (c + 0.044715f * c * c * c), w = v - (2.f / 3.f) * rate * c, g = sigmoid(v);
    s = c * g;
    a = g + 3.f * w * g * (1.f - g);
  }
};

struct Gelu {  // c Phi(c)
  static inline void both(floats c, floats &s, floats &a) {
    floats tail = 0.5f * erfc_positive((c < 0.f ? -c : c) * 0.70710678118654752f);
    floats phi = c < 0.f ? tail : 1.f - tail;
    s = c * phi;
    a = phi + c * 0.39894228040143268f * exponential(-0.5f * c * c);
  }
};

#ifdef __AVX512F__
// 16 rows of 32 bits, turned over.
inline void transpose(__m512i r[16]) {
  __m512i t[16];
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
#endif

inline float total(floats x) {
  float numbers[WIDTH], sum = 0.f;
  store(numbers, x);
  for (long i = 0; i < WIDTH; i++) sum += numbers[i];
  return sum;
}

inline long at_most(long left) { return left < WIDTH ? left : WIDTH; }

}  // namespace
