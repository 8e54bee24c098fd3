// Passes over activations between the products of a training step, each reading and writing its rows once.
//
// Numbers are float or bfloat16 in memory and float in between; sums over rows (gradients of gains and biases) are made
// in CHUNKS shares whatever the number of threads, so that results do not depend on it. The formulas of
// `qkv.kernels.elementwise` are what each of these must equal.

#include <stdlib.h>

#include "numbers.h"

namespace {

constexpr long CHUNKS = 32;
constexpr long RUN = 1024;  // numbers that are summed as floats before they join a double
constexpr long WIDEST_HEAD = 4096;  // numbers of a head that are worked on at a time

// Of rows [n, m], plus the bias [m] where there is one.
template <class Act, class T>
void activate(long n, long m, T *__restrict c, const float *__restrict bias, T *__restrict s) {
#pragma omp parallel for schedule(static)
  for (long row = 0; row < n; row++)
    for (long i = 0; i < m; i += WIDTH) {
      long at = row * m + i, some = at_most(m - i);
      floats x = load(c + at, some), value, slope;
      if (bias) x += load(bias + i, some);
      Act::both(x, value, slope);
      store(s + at, value, some);
      store(c + at, slope, some);
    }
}

// s = silu(g) c.
template <class T>
void gate(long size, const T *__restrict g, const T *__restrict c, T *__restrict s) {
  each(size, [=](long i, long n) {
    floats x = load(g + i, n);
    store(s + i, x * sigmoid(x) * load(c + i, n), n);
  });
}

// dc = silu(g) ds, in ds; dg = silu'(g) c ds.
template <class T>
void gate_back(long size, T *__restrict ds, const T *__restrict g, const T *__restrict c, T *__restrict dg) {
  each(size, [=](long i, long n) {
    floats x = load(g + i, n), d = load(ds + i, n), y = sigmoid(x);
    store(dg + i, y * (1.f + x * (1.f - y)) * load(c + i, n) * d, n);
    store(ds + i, x * y * d, n);
  });
}

// y = x + p [+ b]: the residual stream x [n, d] and a product p, with its bias [d].
template <class T>
void plus(long n, long d, const float *__restrict x, const T *p, const float *__restrict bias, float *y) {
#pragma omp parallel for schedule(static)
  for (long row = 0; row < n; row++)
    for (long i = 0; i < d; i += WIDTH) {
      long at = row * d + i, some = at_most(d - i);
      floats sum = load(x + at, some) + load(p + at, some);
      store(y + at, bias ? sum + load(bias + i, some) : sum, some);
    }
}

// The sums [size] of CHUNKS shares of them, in their order.
void add_up(const float *shares, long size, float *__restrict sums) {
#pragma omp parallel for schedule(static) if (size > 8192)
  for (long block = 0; block < (size + 1023) / 1024; block++) {
    long end = (block + 1) * 1024 < size ? (block + 1) * 1024 : size;
    memcpy(sums + block * 1024, shares + block * 1024, sizeof(float) * (end - block * 1024));
    for (long chunk = 1; chunk < CHUNKS; chunk++)
#pragma omp simd
      for (long i = block * 1024; i < end; i++) sums[i] += shares[chunk * size + i];
  }
}

// d *= a, rows [n, m]; and the sums [m] of its rows, where asked. Here and below shares [CHUNKS, ...] of sums are room.
template <class T>
void slope(long n, long m, T *__restrict d, const T *__restrict a, float *__restrict shares, float *sums) {
#pragma omp parallel for schedule(static)
  for (long chunk = 0; chunk < CHUNKS; chunk++) {
    float *share = shares ? shares + chunk * m : nullptr;
    if (share) memset(share, 0, sizeof(float) * m);
    for (long row = chunk * n / CHUNKS; row < (chunk + 1) * n / CHUNKS; row++) {
      T *__restrict dr = d + row * m;
      const T *__restrict ar = a + row * m;
      if (share) {
#pragma omp simd
        for (long i = 0; i < m; i++) {
          float x = get(dr[i]) * get(ar[i]);
          put(dr[i], x);
          share[i] += x;
        }
      } else {
#pragma omp simd
        for (long i = 0; i < m; i++) put(dr[i], get(dr[i]) * get(ar[i]));
      }
    }
  }
  if (sums) add_up(shares, m, sums);
}

// The sum of what `of` makes of d numbers, some at a time, in four sums that do not wait for each other.
template <class Of>
inline float summed(long d, Of of) {
  floats sums[4] = {};
  long i = 0;
  for (; i + 4 * WIDTH <= d; i += 4 * WIDTH)
    for (long k = 0; k < 4; k++) sums[k] += of(i + k * WIDTH, WIDTH);
  for (long k = 0; i < d; i += WIDTH, k++) {
    floats last = of(i, at_most(d - i));
    for (long past = d - i; past < WIDTH; past++) last[past] = 0.f;
    sums[k] += last;
  }
  return total(sums[0] + sums[1] + (sums[2] + sums[3]));
}

// y = (x - mean) r g + b, r = 1 / sqrt(mean((x - mean)^2) + eps); without centring, mean = 0 (RMSNorm). stats: r, mean.
template <class T>
void norm(long n, long d, long centred, const float *__restrict x, const float *__restrict gain,
          const float *__restrict bias, float eps, T *__restrict y, float *__restrict stats) {
#pragma omp parallel for schedule(static)
  for (long row = 0; row < n; row++) {
    const float *__restrict xr = x + row * d;
    T *__restrict yr = y + row * d;
    float mean = centred ? summed(d, [=](long i, long some) { return load(xr + i, some); }) / d : 0.f;
    float square = summed(d, [=](long i, long some) {
      floats u = load(xr + i, some) - mean;
      return u * u;
    });
    float r = 1.f / sqrtf(square / d + eps);
    stats[2 * row] = r;
    stats[2 * row + 1] = mean;
    for (long i = 0; i < d; i += WIDTH) {
      long some = at_most(d - i);
      floats u = (load(xr + i, some) - mean) * r * load(gain + i, some);
      store(yr + i, bias ? u + load(bias + i, some) : u, some);
    }
  }
}

// dx = r (g dy - [mean(g dy)] - u mean(g dy u)) [+ onto], u = (x - mean) r; sums [2, d] of dy u and of dy.
template <class T>
void norm_back(long n, long d, long centred, const T *__restrict dy, const float *__restrict x,
               const float *__restrict stats, const float *__restrict gain, const float *__restrict onto,
               float *__restrict dx, float *__restrict shares, float *sums) {
#pragma omp parallel for schedule(static)
  for (long chunk = 0; chunk < CHUNKS; chunk++) {
    float *__restrict d_gain = shares + chunk * 2 * d, *__restrict d_bias = d_gain + d;
    memset(d_gain, 0, sizeof(float) * 2 * d);
    for (long row = chunk * n / CHUNKS; row < (chunk + 1) * n / CHUNKS; row++) {
      const T *__restrict dyr = dy + row * d;
      const float *__restrict xr = x + row * d;
      float *__restrict dxr = dx + row * d;
      float r = stats[2 * row], mean = stats[2 * row + 1], along = 0.f, level = 0.f;
#pragma omp simd reduction(+ : along, level)
      for (long i = 0; i < d; i++) {
        float s = get(dyr[i]), u = (xr[i] - mean) * r;
        d_gain[i] += s * u;
        d_bias[i] += s;
        along += s * gain[i] * u;
        level += s * gain[i];
      }
      along /= d;
      level = centred ? level / d : 0.f;
      if (onto) {
        const float *__restrict or_ = onto + row * d;
#pragma omp simd
        for (long i = 0; i < d; i++)
          dxr[i] = r * (get(dyr[i]) * gain[i] - level - (xr[i] - mean) * r * along) + or_[i];
      } else {
#pragma omp simd
        for (long i = 0; i < d; i++) dxr[i] = r * (get(dyr[i]) * gain[i] - level - (xr[i] - mean) * r * along);
      }
    }
  }
  add_up(shares, 2 * d, sums);
}

// Where head `head` of position p of text b lies in q, k or v; null where that one is.
template <class T>
inline T *place_of(long head, long b, long p, long pos, long n_q, long n_kv, long d, T *q, T *k, T *v) {
  if (head < n_q) return q ? q + ((b * n_q + head) * pos + p) * d : nullptr;
  head -= n_q;
  if (head < n_kv) return k ? k + ((b * n_kv + head) * pos + p) * d : nullptr;
  return v ? v + ((b * n_kv + head - n_kv) * pos + p) * d : nullptr;
}

// cos and sin of one position, each by itself.
inline void part(const float *__restrict turn, long half, float *__restrict cosine, float *__restrict sine) {
  for (long i = 0; i < half; i++) cosine[i] = turn[2 * i], sine[i] = turn[2 * i + 1];
}

// The joined products h [batch, pos, n_q + 2 n_kv, d], plus their biases in place where there are any [n_q + 2 n_kv, d],
// cut into q [batch, n_q, pos, d] and k, v [batch, n_kv, pos, d].
// q and k are normed where there are gains (rs [batch, pos, n_q + n_kv]: 1 / rms) and turned where there are turns
// [pos, d / 2] (cos, sin): coordinates i and i + d / 2 are a pair.
template <class T>
void heads(long batch, long pos, long n_q, long n_kv, long d, T *__restrict h, const float *__restrict biases,
           const float *__restrict gains, float eps, const float *__restrict turns, T *__restrict q, T *__restrict k,
           T *__restrict v, float *__restrict rs) {
#pragma omp parallel for schedule(static)
  for (long row = 0; row < batch * pos; row++) {
    long b = row / pos, p = row % pos, n_qk = n_q + n_kv, half = d / 2;
    float cosine[WIDEST_HEAD / 2], sine[WIDEST_HEAD / 2];
    if (turns) part(turns + p * d, half, cosine, sine);
    for (long head = 0; head < n_qk + n_kv; head++) {
      T *__restrict from = h + (row * (n_qk + n_kv) + head) * d;
      T *__restrict to = place_of(head, b, p, pos, n_q, n_kv, d, q, k, v);
      const bool moved = head >= n_qk || (!gains && !turns);  // and nothing else
      if (moved && !biases) memcpy(to, from, sizeof(T) * d);
      if (biases)
        for (long i = 0; i < d; i += WIDTH) {
          long n = at_most(d - i);
          store((moved ? to : from) + i, load(from + i, n) + load(biases + head * d + i, n), n);
        }
      if (moved) continue;
      const float *__restrict gain = gains ? gains + (head < n_q ? 0 : d) : nullptr;
      float r = 1.f;
      if (gain) {
        floats square = {};
        for (long i = 0; i < d; i += WIDTH) {
          floats x = load(from + i, at_most(d - i));
          square += x * x;
        }
        r = rs[row * n_qk + head] = 1.f / sqrtf(total(square) / d + eps);
      }
      if (!turns) {
        for (long i = 0; i < d; i += WIDTH) {
          long n = at_most(d - i);
          store(to + i, load(from + i, n) * r * load(gain + i, n), n);
        }
        continue;
      }
      for (long i = 0; i < half; i += WIDTH) {
        long n = at_most(half - i);
        floats x = load(from + i, n), y = load(from + half + i, n), c = load(cosine + i, n), s = load(sine + i, n);
        if (gain) x *= r * load(gain + i, n), y *= r * load(gain + half + i, n);
        store(to + i, x * c - y * s, n);
        store(to + half + i, y * c + x * s, n);
      }
    }
  }
}

// The gradient dh of h, from those of q, k and v (null: zero); those of the gains [2, d].
template <class T>
void heads_back(long batch, long pos, long n_q, long n_kv, long d, const T *__restrict dq, const T *__restrict dk,
                const T *__restrict dv, const T *__restrict h, const float *__restrict gains,
                const float *__restrict turns, const float *__restrict rs, T *__restrict dh,
                float *__restrict shares, float *d_gains) {
#pragma omp parallel for schedule(static)
  for (long chunk = 0; chunk < CHUNKS; chunk++) {
    long n = batch * pos, n_qk = n_q + n_kv, half = d / 2;
    float e[WIDEST_HEAD], cosine[WIDEST_HEAD / 2], sine[WIDEST_HEAD / 2];
    if (gains) memset(shares + chunk * 2 * d, 0, sizeof(float) * 2 * d);
    for (long row = chunk * n / CHUNKS; row < (chunk + 1) * n / CHUNKS; row++) {
      long b = row / pos, p = row % pos;
      if (turns) part(turns + p * d, half, cosine, sine);
      for (long head = 0; head < n_qk + n_kv; head++) {
        T *__restrict to = dh + (row * (n_qk + n_kv) + head) * d;
        const T *from = place_of(head, b, p, pos, n_q, n_kv, d, dq, dk, dv);
        if (!from) {
          memset(to, 0, sizeof(T) * d);
          continue;
        }
        if (head >= n_qk || (!gains && !turns)) {
          memcpy(to, from, sizeof(T) * d);
          continue;
        }
        if (turns) {
          for (long i = 0; i < half; i += WIDTH) {
            long some = at_most(half - i);
            floats x = load(from + i, some), y = load(from + half + i, some);
            floats c = load(cosine + i, some), s = load(sine + i, some);
            store(e + i, x * c + y * s, some);
            store(e + half + i, y * c - x * s, some);
          }
        } else {
          for (long i = 0; i < d; i += WIDTH) store(e + i, load(from + i, at_most(d - i)), at_most(d - i));
        }
        if (!gains) {
          for (long i = 0; i < d; i += WIDTH) store(to + i, load(e + i, at_most(d - i)), at_most(d - i));
          continue;
        }
        const T *__restrict hr = h + (row * (n_qk + n_kv) + head) * d;
        const float *__restrict gain = gains + (head < n_q ? 0 : d);
        float *__restrict d_gain = shares + (chunk * 2 + (head < n_q ? 0 : 1)) * d;
        float r = rs[row * n_qk + head];
        floats sum = {};
        for (long i = 0; i < d; i += WIDTH) {
          long some = at_most(d - i);
          floats u = load(hr + i, some) * r, eu = load(e + i, some) * u;
          store(d_gain + i, load(d_gain + i, some) + eu, some);
          sum += eu * load(gain + i, some);
        }
        float along = total(sum) / d;
        for (long i = 0; i < d; i += WIDTH) {
          long some = at_most(d - i);
          store(to + i, r * (load(e + i, some) * load(gain + i, some) - load(hr + i, some) * r * along), some);
        }
      }
    }
  }
  if (gains) add_up(shares, 2 * d, d_gains);
}

constexpr uint64_t GOLDEN = 0x9E3779B97F4A7C15u;
constexpr long DRAWS = 128;  // of 64 bits at a time: four numbers each

inline uint64_t mixed(uint64_t z) {  // SplitMix64's finaliser
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

// y [+ onto] = x times `scale` where a draw of 16 bits is at least `limit`, times 0 where it is not; rows [n, width], whose
// draws are those of the stream of a row, from a place in it on (places null: from its start), see
// `qkv.training.dropout`. x and the product are rounded to T.
template <class T, class In, class Out>
void drop(long n, long width, const uint64_t *__restrict streams, const uint64_t *__restrict places, long limit,
          float scale, const In *__restrict x, const float *__restrict onto, Out *__restrict y) {
  typedef int16_t shorts __attribute__((vector_size(2 * WIDTH)));
  const long draws = (width + 3) / 4, parts = (draws + DRAWS - 1) / DRAWS;
#pragma omp parallel for schedule(static)
  for (long job = 0; job < n * parts; job++) {
    const long row = job / parts, first = job % parts * DRAWS, count = draws - first < DRAWS ? draws - first : DRAWS;
    const uint64_t start = streams[row] + (1 + first + (places ? places[row] * draws : 0)) * GOLDEN;
    uint64_t bits64[DRAWS];
    for (long i = 0; i < count; i++) bits64[i] = mixed(start + i * GOLDEN);
    const char *at_bits = reinterpret_cast<const char *>(bits64);
    const long end = 4 * (first + count) < width ? 4 * (first + count) : width;
    for (long i = 4 * first; i < end; i += WIDTH, at_bits += sizeof(shorts)) {
      shorts drawn;
      memcpy(&drawn, at_bits, sizeof(drawn));
      ints kept = __builtin_convertvector(drawn, ints) >= static_cast<int32_t>(limit);
      long at = row * width + i, some = at_most(end - i);
      floats value = rounded<T>(rounded<T>(load(x + at, some)) * (kept ? floats{} + scale : floats{}));
      store(y + at, onto ? value + load(onto + at, some) : value, some);
    }
  }
}

// Row after row of logits [m], plus a bias [m] where there is one: 16 of them from i on, or n and -inf after them.
template <class T>
struct Logits {
  const T *row;
  const float *bias;

  floats operator()(long i, long n) const {
    floats x = load(row + i, n);
    if (bias) x += load(bias + i, n);
    for (long k = n; k < WIDTH; k++) x[k] = -INFINITY;
    return x;
  }

  float at(long i) const { return get(row[i]) + (bias ? bias[i] : 0.f); }

  float highest(long m) const {
    floats most = floats{} - INFINITY;
    for (long i = 0; i < m; i += WIDTH) {
      floats x = (*this)(i, at_most(m - i));
      most = x > most ? x : most;
    }
    float one = most[0];
    for (long k = 1; k < WIDTH; k++) one = most[k] > one ? most[k] : one;
    return one;
  }

  // The sum of e^(x - highest), each of them also written where asked; NaN where one of them is NaN.
  double mass(long m, float highest, float *each) const {
    double sum = 0.;
    for (long start = 0; start < m; start += RUN) {
      floats part = {};
      long end = start + RUN < m ? start + RUN : m;
      for (long i = start; i < end; i += WIDTH) {
        floats e = exponential((*this)(i, at_most(end - i)) - highest);
        part += e;
        if (each) store(each + i, e);
      }
      sum += total(part);
    }
    return sum;
  }

  double mean(long m, float highest) const {  // of x - highest
    double sum = 0.;
    for (long start = 0; start < m; start += RUN) {
      float part = 0.f;
      long end = start + RUN < m ? start + RUN : m;
#pragma omp simd reduction(+ : part)
      for (long i = start; i < end; i++) part += at(i) - highest;
      sum += part;
    }
    return sum / m;
  }
};

// Of targets that are no index of m logits, how many.
long wrong(long n, long m, const long *targets) {
  long count = 0;
  for (long row = 0; row < n; row++) count += targets[row] < 0 || targets[row] >= m;
  return count;
}

// nats [n]: the loss of each row of logits [n, m] on its target, log sum e^x - x[target], whose slope takes the logits'
// place: softmax, less one at the target. With smoothing e the target is 1 - e there and e / m everywhere. sums [m]
// of the slope over rows, where asked. Returns how many targets are none; then nothing is done.
template <class T>
long loss_slope(long n, long m, T *logits, const float *__restrict bias, const long *__restrict targets,
                float smoothing, float *__restrict nats, float *__restrict shares, float *sums) {
  if (long count = wrong(n, m, targets)) return count;
#pragma omp parallel
  {
    float *each = static_cast<float *>(malloc(sizeof(float) * (m + WIDTH)));
    if (!each) abort();
#pragma omp for schedule(static)
    for (long chunk = 0; chunk < CHUNKS; chunk++) {
      float *share = shares ? shares + chunk * m : nullptr;
      if (share) memset(share, 0, sizeof(float) * m);
      for (long row = chunk * n / CHUNKS; row < (chunk + 1) * n / CHUNKS; row++) {
        T *to = logits + row * m;
        Logits<T> x{to, bias};
        float highest = x.highest(m);
        double mass = x.mass(m, highest, each), wanted = x.at(targets[row]) - highest;
        if (smoothing) wanted = (1. - smoothing) * wanted + smoothing * x.mean(m, highest);
        nats[row] = static_cast<float>(log(mass) - wanted);
        float scale = static_cast<float>(1. / mass), level = smoothing / m;
        for (long i = 0; i < m; i += WIDTH) {
          long some = at_most(m - i);
          floats slope = load(each + i) * scale - level;
          store(to + i, slope, some);
          if (share) store(share + i, load(share + i, some) + slope, some);
        }
        float at_target = each[targets[row]] * scale - level - (1.f - smoothing);
        if (share) share[targets[row]] -= 1.f - smoothing;
        put(to[targets[row]], at_target);
      }
    }
    free(each);
  }
  if (sums) add_up(shares, m, sums);
  return 0;
}

// nats [n] as above, and whether the first of a row's largest logits is the target's. The logits stay.
template <class T>
long scores(long n, long m, const T *__restrict logits, const float *__restrict bias, const long *__restrict targets,
            float *__restrict nats, bool *__restrict correct) {
  if (long count = wrong(n, m, targets)) return count;
#pragma omp parallel for schedule(static)
  for (long row = 0; row < n; row++) {
    Logits<T> x{logits + row * m, bias};
    long target = targets[row], before = 0;
    float highest = x.highest(m), at_target = x.at(target);
    double mass = x.mass(m, highest, nullptr);
    if (at_target >= highest) {
#pragma omp simd reduction(+ : before)
      for (long i = 0; i < target; i++) before += x.at(i) >= highest;
    }
    correct[row] = at_target >= highest && before == 0 && mass == mass;
    nats[row] = static_cast<float>(log(mass) - (at_target - highest));
  }
  return 0;
}

constexpr long SHARE = 32 * RUN;  // numbers of a tensor that are summed by one thread

// sums [n] of the squares of n tensors of so many floats.
void squares(long n, const float *const *tensors, const long *sizes, double *sums) {
  long shares = 0;
  for (long i = 0; i < n; i++) shares += (sizes[i] + SHARE - 1) / SHARE;
  double *parts = static_cast<double *>(malloc(sizeof(double) * shares + 8));
  long *firsts = static_cast<long *>(malloc(sizeof(long) * (n + 1)));
  if (!parts || !firsts) abort();
  firsts[0] = 0;
  for (long i = 0; i < n; i++) firsts[i + 1] = firsts[i] + (sizes[i] + SHARE - 1) / SHARE;
#pragma omp parallel
  {
    long tensor = 0;
#pragma omp for schedule(static)
    for (long share = 0; share < shares; share++) {
      while (share >= firsts[tensor + 1]) tensor++;
      const long start = (share - firsts[tensor]) * SHARE, left = sizes[tensor] - start;
      const float *x = tensors[tensor] + start;
      double sum = 0.;
      for (long run = 0; run < left && run < SHARE; run += RUN)
        sum += summed(left - run < RUN ? left - run : RUN, [=](long i, long some) {
          floats g = load(x + run + i, some);
          return g * g;
        });
      parts[share] = sum;
    }
  }
  for (long i = 0; i < n; i++) {
    sums[i] = 0.;
    for (long share = firsts[i]; share < firsts[i + 1]; share++) sums[i] += parts[share];
  }
  free(parts), free(firsts);
}

constexpr long SUMS = 9, PARTS = 5;

// What an observer sums over numbers w of a matrix beside those before an update, their gradient, those at the start and
// the optimizer's mean of squares: |w|^2, |grad|^2, |dw|^2, |w - start|^2, (w - start) start, |start|^2, dw grad,
// (w - start) grad, the mean of squares. Where a part is not there (null), so are its sums: they are 0.
struct Parts {
  const float *w, *before, *grad, *start, *moment;

  inline void add(long at, long n, floats *sums) const {
    floats x = load(w + at, n), g = {};
    sums[0] += x * x;
    if (grad) {
      g = load(grad + at, n);
      sums[1] += g * g;
    }
    if (before) {
      floats moved = x - load(before + at, n);
      sums[2] += moved * moved;
      sums[6] += moved * g;
    }
    if (start) {
      floats from = load(start + at, n), way = x - from;
      sums[3] += way * way;
      sums[4] += way * from;
      sums[5] += from * from;
      sums[7] += way * g;
    }
    if (moment) sums[8] += load(moment + at, n);
  }
};

// The sums [n, heads, SUMS] of n pieces of matrices, piece by piece; of each its PARTS, and its shape [outer, heads, inner].
void look(long n, const float *const *parts, const long *shapes, double *sums) {
  long *firsts = static_cast<long *>(malloc(sizeof(long) * (n + 1)));
  if (!firsts) abort();
  firsts[0] = 0;
  for (long i = 0; i < n; i++) firsts[i + 1] = firsts[i] + shapes[3 * i + 1];
#pragma omp parallel for schedule(dynamic)
  for (long i = 0; i < n; i++) {
    const float *const *at = parts + PARTS * i;
    const Parts of = {at[0], at[1], at[2], at[3], at[4]};
    const long outer = shapes[3 * i], heads = shapes[3 * i + 1], inner = shapes[3 * i + 2];
    double *found = sums + SUMS * firsts[i];
    for (long j = 0; j < SUMS * heads; j++) found[j] = 0.;
    if (outer == 1) {
      for (long head = 0; head < heads; head++)
        for (long run = 0; run < inner; run += RUN) {
          floats some[SUMS] = {};
          const long end = run + RUN < inner ? run + RUN : inner;
          for (long k = run; k < end; k += WIDTH) of.add(head * inner + k, at_most(end - k), some);
          for (long j = 0; j < SUMS; j++) found[SUMS * head + j] += total(some[j]);
        }
      continue;
    }
    floats *some = static_cast<floats *>(aligned_alloc(sizeof(floats), sizeof(floats) * SUMS * heads));
    if (!some) abort();
    const long rows = inner < RUN ? RUN / inner : 1;  // of a head's part of so many rows before floats join a double
    for (long first = 0; first < outer; first += rows) {
      memset(some, 0, sizeof(floats) * SUMS * heads);
      for (long row = first; row < outer && row < first + rows; row++)
        for (long head = 0; head < heads; head++) {
          floats mine[SUMS];
          memcpy(mine, some + SUMS * head, sizeof(mine));
          const long from = (row * heads + head) * inner;
          for (long k = 0; k < inner; k += WIDTH) of.add(from + k, at_most(inner - k), mine);
          memcpy(some + SUMS * head, mine, sizeof(mine));
        }
      for (long j = 0; j < SUMS * heads; j++) found[j] += total(some[j]);
    }
    free(some);
  }
  free(firsts);
}

struct Pass {
  const char *name;
  void *function;
};

template <class To, class... Of>
void *at(To (*pass)(Of...)) {
  return reinterpret_cast<void *>(pass);
}

#define ALL_OF(T, NAME)                                                                                                \
  {"activate_relu2_" NAME, at(activate<Relu2, T>)}, {"activate_gelu_tanh_" NAME, at(activate<GeluTanh, T>)},           \
  {"activate_gelu_" NAME, at(activate<Gelu, T>)}, {"plus_" NAME, at(plus<T>)}, {"gate_" NAME, at(gate<T>)},            \
  {"gate_back_" NAME, at(gate_back<T>)}, {"slope_" NAME, at(slope<T>)}, {"norm_" NAME, at(norm<T>)},                   \
  {"norm_back_" NAME, at(norm_back<T>)}, {"heads_" NAME, at(heads<T>)}, {"heads_back_" NAME, at(heads_back<T>)},       \
  {"drop_" NAME, at(drop<T, T, T>)}, {"drop_onto_" NAME, at(drop<T, T, float>)},                                       \
  {"drop_onto_back_" NAME, at(drop<T, float, T>)}, {"loss_slope_" NAME, at(loss_slope<T>)},                            \
  {"scores_" NAME, at(scores<T>)}

const Pass PASSES[] = {{"look_f32", at(look)}, {"squares_f32", at(squares)}, ALL_OF(float, "f32"), ALL_OF(bf16, "bf16")};

}  // namespace

// The address of a pass; null where there is none of that name.
extern "C" void *find_pass(const char *name) {
  for (const Pass &one : PASSES)
    if (strcmp(one.name, name) == 0) return one.function;
  return nullptr;
}
