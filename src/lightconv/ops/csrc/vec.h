// Vectors of VEC_BYTES bytes through the compiler's vector extensions: one source for every
// instruction set, intrinsics only for streaming stores and the exponential of AVX-512.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace LIGHTCONV_ISA {

// f(0), f(1), ..., f(N - 1) with constant arguments: unrolled before the optimiser looks, so that
// arrays indexed by them live in registers.
template <int... i, class F>
static inline __attribute__((always_inline)) void unroll(std::integer_sequence<int, i...>, F f) {
  (f(std::integral_constant<int, i>{}), ...);
}
template <int N, class F>
static inline __attribute__((always_inline)) void unroll(F f) {
  unroll(std::make_integer_sequence<int, N>{}, f);
}

template <class S>
struct VecOf;
template <>
struct VecOf<float> {
  typedef float Type __attribute__((vector_size(VEC_BYTES)));
  typedef int32_t Ints __attribute__((vector_size(VEC_BYTES)));
};
template <>
struct VecOf<double> {
  typedef double Type __attribute__((vector_size(VEC_BYTES)));
  typedef int64_t Ints __attribute__((vector_size(VEC_BYTES)));
};
template <class S>
using Vec = typename VecOf<S>::Type;
template <class S>
using Ints = typename VecOf<S>::Ints;
template <class S>
constexpr int kLanes = VEC_BYTES / int(sizeof(S));

template <class S>
static inline Vec<S> load(const S* from) {
  Vec<S> v;
  memcpy(&v, from, sizeof v);
  return v;
}

template <class S>
static inline void store(S* to, Vec<S> v) {
  memcpy(to, &v, sizeof v);
}

template <class S>
static inline Vec<S> broadcast(S value) {
  return value - Vec<S>{};
}

// All bits of the lanes from number `first` on.
template <class S, int... l>
static inline Ints<S> lanes_from(int64_t first, std::integer_sequence<int, l...>) {
  using Int = std::conditional_t<sizeof(S) == 4, int32_t, int64_t>;
  return (Ints<S>)(Ints<S>{l...} >= Int(first) + Ints<S>{});
}
template <class S>
static inline Ints<S> lanes_from(int64_t first) {
  return lanes_from<S>(first, std::make_integer_sequence<int, kLanes<S>>{});
}

// Copies n numbers without a call: for the short rows that are copied by the million.
template <class S>
static inline void copy(S* to, const S* from, int64_t n) {
  if (n >= 4) {
    for (int64_t i = 0; i + 4 <= n; i += 4) memcpy(to + i, from + i, 4 * sizeof(S));
    memcpy(to + n - 4, from + n - 4, 4 * sizeof(S));  // overlaps what is already there
    return;
  }
  for (int64_t i = 0; i < n; ++i) to[i] = from[i];
}

// Past the cache, for outputs too large to stay in it. `to` is aligned to the vector, of VEC_BYTES
// bytes or half of them.
template <class E, class V>
static inline void stream(E* to, V v) {
#if defined(__clang__)
  __builtin_nontemporal_store(v, reinterpret_cast<V*>(to));
#elif defined(__x86_64__)
  if constexpr (sizeof v == 16) _mm_stream_si128(reinterpret_cast<__m128i*>(to), (__m128i)v);
#if defined(__AVX__)
  if constexpr (sizeof v == 32) _mm256_stream_si256(reinterpret_cast<__m256i*>(to), (__m256i)v);
#endif
#if defined(__AVX512F__)
  if constexpr (sizeof v == 64) _mm512_stream_si512(reinterpret_cast<__m512i*>(to), (__m512i)v);
#endif
  if constexpr (sizeof v < 16) memcpy(to, &v, sizeof v);
#else
  memcpy(to, &v, sizeof v);
#endif
}

static inline void finish_streams() {
#if defined(__x86_64__)
  _mm_sfence();
#endif
}

template <class S>
static inline Vec<S> maximum(Vec<S> a, Vec<S> b) {
  return (Vec<S>)(a > b ? a : b);
}

// Picks lane kIndex... of the 2 x W lanes of (a, b).
template <class S, int... kIndex>
static inline Vec<S> shuffle(Vec<S> a, Vec<S> b) {
#if defined(__clang__)
  return __builtin_shufflevector(a, b, kIndex...);
#else
  return __builtin_shuffle(a, b, Ints<S>{kIndex...});
#endif
}

// Lane l of what is joined at one level of the tree below: runs of kRun numbers of a and b in turns, from
// the lower or upper (kOdd) halves of their 128 bits; with runs of 128 bits every second one of a, then of
// b. Those are shuffles that need no vector of indices.
template <class S, int kRun, bool kOdd>
constexpr int joined_lane(int l) {
  constexpr int W = kLanes<S>, L = 16 / int(sizeof(S)), kHalf = W / L < 2 ? 1 : W / L / 2;
  const int run = l % L / kRun, piece = l / L;
  if (kRun < L) return run % 2 * W + (piece * L) + run / 2 * kRun + l % kRun + kOdd * (L / 2);
  return piece / kHalf * W + (piece % kHalf * 2 + kOdd) * L + l % L;
}

template <class S, int kRun, class Join, int... l>
static inline Vec<S> merge(Vec<S> a, Vec<S> b, Join join, std::integer_sequence<int, l...>) {
  return join(shuffle<S, joined_lane<S, kRun, false>(l)...>(a, b),
              shuffle<S, joined_lane<S, kRun, true>(l)...>(a, b));
}

// W vectors -> one vector whose lane i joins (adds, say) the lanes of v[i]; destroys v.
template <class S, int kRun = 1, int N = kLanes<S>, class Join>
static inline __attribute__((always_inline)) Vec<S> reduce_each(Vec<S>* v, Join join) {
  if constexpr (N == 1) {
    return v[0];
  } else {
    unroll<N / 2>([&](auto i) {
      v[i] = merge<S, kRun>(v[2 * i], v[2 * i + 1], join,
                            std::make_integer_sequence<int, kLanes<S>>{});
    });
    return reduce_each<S, (kRun < 16 / int(sizeof(S)) ? 2 * kRun : kRun), N / 2>(v, join);
  }
}

template <class S>
static inline __attribute__((always_inline)) Vec<S> sum_each(Vec<S>* v) {
  return reduce_each<S>(v, [](Vec<S> a, Vec<S> b) { return a + b; });
}

// Every second lane of (a, b), from lane kOdd on; and the lanes of a and b in turns, of their lower or
// upper halves.
template <class S, int kOdd, int... l>
static inline Vec<S> every_second(Vec<S> a, Vec<S> b, std::integer_sequence<int, l...>) {
  return shuffle<S, (2 * l + kOdd)...>(a, b);
}
template <class S, int kUpper, int... l>
static inline Vec<S> in_turns(Vec<S> a, Vec<S> b, std::integer_sequence<int, l...>) {
  constexpr int W = kLanes<S>;
  return shuffle<S, (l / 2 + kUpper * (W / 2) + l % 2 * W)...>(a, b);
}
template <class S>
using EachLane = std::make_integer_sequence<int, kLanes<S>>;

// N vectors that hold a matrix [W][N] row by row become its columns; and back. One bit of the place
// moves from the end to the front with each round.
template <class S, int N>
static inline __attribute__((always_inline)) void to_columns(Vec<S>* v) {
  for (int round = 1; round < N; round *= 2) {
    Vec<S> t[N];
    unroll<N / 2>([&](auto j) {
      t[j] = every_second<S, 0>(v[2 * j], v[2 * j + 1], EachLane<S>{});
      t[N / 2 + j] = every_second<S, 1>(v[2 * j], v[2 * j + 1], EachLane<S>{});
    });
    unroll<N>([&](auto j) { v[j] = t[j]; });
  }
}
template <class S, int N>
static inline __attribute__((always_inline)) void to_rows(Vec<S>* v) {
  for (int round = 1; round < N; round *= 2) {
    Vec<S> t[N];
    unroll<N / 2>([&](auto j) {
      t[2 * j] = in_turns<S, 0>(v[j], v[N / 2 + j], EachLane<S>{});
      t[2 * j + 1] = in_turns<S, 1>(v[j], v[N / 2 + j], EachLane<S>{});
    });
    unroll<N>([&](auto j) { v[j] = t[j]; });
  }
}

// Vector number kPart of R that repeat each lane of v R times; and R vectors whose runs of R lanes
// are summed into one lane each.
template <class S, int R, int kPart, int... l>
static inline Vec<S> repeat_lanes(Vec<S> v, std::integer_sequence<int, l...>) {
  if constexpr (R == 1) return v;
  else return shuffle<S, ((kPart * kLanes<S> + l) / R)...>(v, v);
}
template <class S, int R>
static inline __attribute__((always_inline)) Vec<S> sum_runs(Vec<S>* v) {
  if constexpr (R == 1) {
    return v[0];
  } else {
    unroll<R / 2>([&](auto j) {
      const Vec<S> a = v[2 * j], b = v[2 * j + 1];
      v[j] = every_second<S, 0>(a, b, EachLane<S>{}) + every_second<S, 1>(a, b, EachLane<S>{});
    });
    return sum_runs<S, R / 2>(v);
  }
}

template <class S, int kBy, int... l>
static inline Vec<S> rotate(Vec<S> v, std::integer_sequence<int, l...>) {
  return shuffle<S, (l + kBy) % kLanes<S>...>(v, v);
}

// Every lane of the result holds the sum, or the maximum, of all lanes of v.
template <class S, int kBy = kLanes<S> / 2>
static inline Vec<S> sum_lanes(Vec<S> v) {
  if constexpr (kBy == 0) return v;
  else return sum_lanes<S, kBy / 2>(v + rotate<S, kBy>(v, std::make_integer_sequence<int, kLanes<S>>{}));
}

template <class S>
static inline S sum_of(const S* from, int64_t n) {
  Vec<S> total{};
  int64_t i = 0;
  for (; i + kLanes<S> <= n; i += kLanes<S>) total += load(from + i);
  S sum = sum_lanes<S>(total)[0];
  for (; i < n; ++i) sum += from[i];
  return sum;
}

template <class S, int kBy = kLanes<S> / 2>
static inline Vec<S> max_lanes(Vec<S> v) {
  if constexpr (kBy == 0) return v;
  else return max_lanes<S, kBy / 2>(maximum<S>(v, rotate<S, kBy>(v, std::make_integer_sequence<int, kLanes<S>>{})));
}

// exp(x) for x <= 0 (and NaN): 2^n * p(r) with r in [-ln2/2, ln2/2]; about 1e-7 relative.
static inline Vec<float> exp_nonpositive(Vec<float> x) {
  using V = Vec<float>;
  const V shifter = broadcast(12582912.0f);  // 1.5 * 2^23: adding it rounds to an integer
#if defined(__AVX512F__)
  x = (V)_mm512_max_ps((__m512)(V{} - 104.0f), (__m512)x);  // whose exponential is zero; NaN stays
#endif
  V shifted = x * 1.44269504f + shifter;
  V n = shifted - shifter;
  V r = x - n * 0.693359375f;
  r = r + n * 2.12194440e-4f;
  V p = r * 1.3981999e-3f + 8.3334519e-3f;
  p = p * r + 4.1665795e-2f;
  p = p * r + 1.6666665e-1f;
  p = p * r + 0.5f;
  p = p * r * r + r + 1.0f;
#if defined(__AVX512F__)
  return (V)_mm512_scalef_ps((__m512)p, (__m512)n);
#else
  Ints<float> bits;
  memcpy(&bits, &shifted, sizeof bits);
  bits = (bits - 0x4B400000 + 127) << 23;
  V scale;
  memcpy(&scale, &bits, sizeof scale);
  V result = p * scale;
  return (V)(x < -87.0f ? V{} : result);
#endif
}

static inline Vec<double> exp_nonpositive(Vec<double> x) {
  double lanes[kLanes<double>];
  store(lanes, x);
  for (double& lane : lanes) lane = std::exp(lane);
  return load(lanes);
}

}  // namespace LIGHTCONV_ISA
