// Numbers between memory (float32, float64, bfloat16, float16) and the dtype sums run in, by vectors.
#pragma once
#include <algorithm>
#include <cstdint>
#include <cstring>

#include "problem.h"
#include "vec.h"

namespace LIGHTCONV_ISA {

// Element types of memory beside float and double.
struct Bfloat16 {
  uint16_t bits;
};
struct Float16 {
  uint16_t bits;
};

typedef uint32_t Bits __attribute__((vector_size(VEC_BYTES)));       // of a Vec<float>
typedef uint16_t Halves __attribute__((vector_size(VEC_BYTES / 2)));  // as many of 16 bits

static inline Vec<float> widen(Halves h, Bfloat16) {
  return (Vec<float>)(__builtin_convertvector(h, Bits) << 16);
}

static inline Halves narrow(Vec<float> f, Bfloat16) {
  // Not vcvtneps2bf16, which takes subnormal numbers for zero.
  const Bits bits = (Bits)f, rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16;
  return __builtin_convertvector((Bits)(f == f ? rounded : Bits{} + 0x7FC0), Halves);
}

#if defined(__AVX512F__)
static inline Vec<float> widen(Halves h, Float16) { return (Vec<float>)_mm512_cvtph_ps((__m256i)h); }
static inline Halves narrow(Vec<float> f, Float16) {
  return (Halves)_mm512_cvtps_ph((__m512)f, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
#elif defined(__F16C__)
static inline Vec<float> widen(Halves h, Float16) { return (Vec<float>)_mm256_cvtph_ps((__m128i)h); }
static inline Halves narrow(Vec<float> f, Float16) {
  return (Halves)_mm256_cvtps_ph((__m256)f, _MM_FROUND_TO_NEAREST_INT);
}
#else
static inline Vec<float> widen(Halves half, Float16) {
  const Bits h = __builtin_convertvector(half, Bits), magnitude = h & 0x7FFF;
  // The exponent moves by 2^112 in a product, which also normalises the subnormals.
  const Bits bits = (Bits)((Vec<float>)(magnitude << 13) * 0x1p112f);
  const Bits special = (Bits)(magnitude >= 0x7C00 ? Bits{} + 0x7F800000 : Bits{});
  return (Vec<float>)(bits | special | ((h & 0x8000) << 16));
}
static inline Halves narrow(Vec<float> f, Float16) {
  const Bits sign = ((Bits)f >> 16) & 0x8000, a = (Bits)f & 0x7FFFFFFF;
  const Bits normal = (a + 0xFFF + ((a >> 13) & 1) - 0x38000000) >> 13;
  // Below 2^-14 the sum with 0.5 has the spacing of float16's subnormals and rounds to them.
  const Bits subnormal = (Bits)((Vec<float>)a + 0.5f) - 0x3F000000;
  const Bits special = (Bits)(a > 0x7F800000 ? Bits{} + 0x7E00 : Bits{} + 0x7C00);
  const Bits large = (Bits)(a >= 0x47800000 ? special : normal);
  return __builtin_convertvector(sign | (Bits)(a < 0x38800000 ? subnormal : large), Halves);
}
#endif

static inline int64_t bytes_of(int64_t dtype) {
  return dtype == kFloat64 ? 8 : dtype == kFloat32 ? 4 : 2;
}

template <class S>
static inline bool is_native(int64_t dtype) {
  return dtype == (sizeof(S) == 8 ? kFloat64 : kFloat32);
}

// The first n <= W elements of memory as a vector V of W, the others zero; and back.
template <class V, class E>
static inline V load_first(const E* from, int64_t n) {
#if defined(__AVX512F__)
  const __mmask16 mask = __mmask16((1u << n) - 1);
  if constexpr (sizeof(E) == 8) return (V)_mm512_maskz_loadu_pd(__mmask8(mask), from);
  else if constexpr (sizeof(E) == 4) return (V)_mm512_maskz_loadu_ps(mask, from);
  else return (V)_mm256_maskz_loadu_epi16(mask, from);
#else
  alignas(sizeof(V)) E lanes[sizeof(V) / sizeof(E)] = {};
  copy(lanes, from, n);
  V v;
  memcpy(&v, lanes, sizeof v);
  return v;
#endif
}

template <class V, class E>
static inline void store_first(E* to, V v, int64_t n) {
#if defined(__AVX512F__)
  const __mmask16 mask = __mmask16((1u << n) - 1);
  if constexpr (sizeof(E) == 8) _mm512_mask_storeu_pd(to, __mmask8(mask), (__m512d)v);
  else if constexpr (sizeof(E) == 4) _mm512_mask_storeu_ps(to, mask, (__m512)v);
  else _mm256_mask_storeu_epi16(to, mask, (__m256i)v);
#else
  alignas(sizeof(V)) E lanes[sizeof(V) / sizeof(E)];
  memcpy(lanes, &v, sizeof v);
  copy(to, lanes, n);
#endif
}

// A vector of sums from n elements of memory, zero beyond them; n = W is a constant where it can be.
template <class S, class E>
static inline Vec<S> load_as(const E* from, int64_t n = kLanes<S>) {
  const bool whole = n == kLanes<S>;
  if constexpr (std::is_same_v<S, E>) {
    return whole ? load(from) : load_first<Vec<S>>(from, n);
  } else if constexpr (sizeof(E) == 2 && sizeof(S) == 4) {
    Halves h;
    if (whole) memcpy(&h, from, sizeof h);
    else h = load_first<Halves>(from, n);
    return widen(h, E{});
  } else {  // rare: float64 with a narrower operand
    alignas(64) S lanes[kLanes<S>] = {};
    for (int64_t i = 0; i < n; ++i) {
      if constexpr (sizeof(E) == 2) lanes[i] = S(load_as<float>(from + i, 1)[0]);
      else lanes[i] = S(from[i]);
    }
    return load(lanes);
  }
}

template <class S, class E>
static inline void store_as(E* to, Vec<S> v, int64_t n = kLanes<S>) {
  const bool whole = n == kLanes<S>;
  if constexpr (std::is_same_v<S, E>) {
    whole ? store(to, v) : store_first(to, v, n);
  } else if constexpr (sizeof(E) == 2 && sizeof(S) == 4) {
    const Halves h = narrow(v, E{});
    if (whole) memcpy(to, &h, sizeof h);
    else store_first(to, h, n);
  } else {
    for (int64_t i = 0; i < n; ++i) {
      if constexpr (sizeof(E) == 2) store_as<float>(to + i, broadcast(float(v[i])), 1);
      else to[i] = E(v[i]);
    }
  }
}

// Calls visit(pointer) with the pointer's element type.
template <class S, class Visit>
static inline __attribute__((always_inline)) void with_elements(int64_t dtype, const void* data,
                                                               Visit visit) {
  if (is_native<S>(dtype)) visit(static_cast<const S*>(data));
  else if (dtype == kBfloat16) visit(static_cast<const Bfloat16*>(data));
  else if (dtype == kFloat16) visit(static_cast<const Float16*>(data));
  else if (dtype == kFloat32) visit(static_cast<const float*>(data));
  else visit(static_cast<const double*>(data));
}

template <class S, class Visit>
static inline __attribute__((always_inline)) void with_elements(int64_t dtype, void* data,
                                                               Visit visit) {
  with_elements<S>(dtype, const_cast<const void*>(data), [&](const auto* p) {
    visit(const_cast<std::remove_const_t<std::remove_pointer_t<decltype(p)>>*>(p));
  });
}

// The same for what has the dtype of x: that of the sums, or 16 bits.
template <class S, class Visit>
static inline __attribute__((always_inline)) void with_numbers(int64_t dtype, const void* data,
                                                               Visit visit) {
  if (is_native<S>(dtype)) return visit(static_cast<const S*>(data));
  if constexpr (sizeof(S) == 4) {
    if (dtype == kBfloat16) visit(static_cast<const Bfloat16*>(data));
    else visit(static_cast<const Float16*>(data));
  }
}

// `n` elements starting `offset` elements into `from`.
template <class S>
static inline void read_row(int64_t dtype, const void* from, int64_t offset, int64_t n, S* to) {
  with_elements<S>(dtype, from, [&](const auto* p) {
    constexpr int W = kLanes<S>;
    int64_t i = 0;
    for (p += offset; i + W <= n; i += W) store(to + i, load_as<S>(p + i));
    if (i < n) store_first(to + i, load_as<S>(p + i, n - i), n - i);
  });
}

template <class S>
static inline void write_row(int64_t dtype, void* to, int64_t offset, int64_t n, const S* from) {
  with_elements<S>(dtype, to, [&](auto* p) {
    constexpr int W = kLanes<S>;
    int64_t i = 0;
    for (p += offset; i + W <= n; i += W) store_as<S>(p + i, load(from + i));
    if (i < n) store_as<S>(p + i, load_first<Vec<S>>(from + i, n - i), n - i);
  });
}

}  // namespace LIGHTCONV_ISA
