// Rows of numbers between memory (float32, float64, bfloat16, float16) and the dtype sums run in.
#pragma once
#include <cstdint>
#include <cstring>

#include "problem.h"
#include "vec.h"

namespace LIGHTCONV_ISA {

static inline float from_bits(uint32_t bits) {
  float f;
  memcpy(&f, &bits, sizeof f);
  return f;
}

static inline uint32_t to_bits(float f) {
  uint32_t bits;
  memcpy(&bits, &f, sizeof bits);
  return bits;
}

static inline float bfloat16_to_float(uint16_t h) { return from_bits(uint32_t(h) << 16); }

static inline uint16_t float_to_bfloat16(float f) {
  uint32_t bits = to_bits(f);
  uint32_t rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16;
  return uint16_t(f != f ? 0x7FC0 : rounded);
}

static inline float float16_to_float(uint16_t h) {
  uint32_t magnitude = h & 0x7FFFu;
  // The exponent moves by 2^112 in a product, which also normalises the subnormals.
  uint32_t bits = to_bits(from_bits(magnitude << 13) * from_bits(0x77800000u));
  bits |= magnitude >= 0x7C00u ? 0x7F800000u : 0u;
  return from_bits(bits | (uint32_t(h & 0x8000u) << 16));
}

static inline uint16_t float_to_float16(float f) {
  uint32_t sign = (to_bits(f) >> 16) & 0x8000u, a = to_bits(f) & 0x7FFFFFFFu;
  uint32_t normal = (a + 0xFFFu + ((a >> 13) & 1) - 0x38000000u) >> 13;
  // Below 2^-14 the sum with 0.5 has the spacing of float16's subnormals and rounds to them.
  uint32_t subnormal = to_bits(from_bits(a) + 0.5f) - 0x3F000000u;
  uint32_t special = a > 0x7F800000u ? 0x7E00u : 0x7C00u;
  uint32_t h = a < 0x38800000u ? subnormal : a >= 0x47800000u ? special : normal;
  return uint16_t(sign | h);
}

static inline int64_t bytes_of(int64_t dtype) {
  return dtype == kFloat64 ? 8 : dtype == kFloat32 ? 4 : 2;
}

template <class S>
static inline bool is_native(int64_t dtype) {
  return dtype == (sizeof(S) == 8 ? kFloat64 : kFloat32);
}

// `n` elements starting `offset` elements into `from`.
template <class S>
static inline void read_row(int64_t dtype, const void* from, int64_t offset, int64_t n, S* to) {
  if (is_native<S>(dtype)) {
    copy(to, static_cast<const S*>(from) + offset, n);
  } else if (dtype == kFloat32) {
    const float* p = static_cast<const float*>(from) + offset;
    for (int64_t i = 0; i < n; ++i) to[i] = S(p[i]);
  } else if (dtype == kFloat64) {
    const double* p = static_cast<const double*>(from) + offset;
    for (int64_t i = 0; i < n; ++i) to[i] = S(p[i]);
  } else {
    const uint16_t* p = static_cast<const uint16_t*>(from) + offset;
    if (dtype == kBfloat16)
      for (int64_t i = 0; i < n; ++i) to[i] = S(bfloat16_to_float(p[i]));
    else
      for (int64_t i = 0; i < n; ++i) to[i] = S(float16_to_float(p[i]));
  }
}

template <class S>
static inline void write_row(int64_t dtype, void* to, int64_t offset, int64_t n, const S* from) {
  if (is_native<S>(dtype)) {
    copy(static_cast<S*>(to) + offset, from, n);
  } else if (dtype == kFloat32) {
    float* p = static_cast<float*>(to) + offset;
    for (int64_t i = 0; i < n; ++i) p[i] = float(from[i]);
  } else if (dtype == kFloat64) {
    double* p = static_cast<double*>(to) + offset;
    for (int64_t i = 0; i < n; ++i) p[i] = double(from[i]);
  } else {
    uint16_t* p = static_cast<uint16_t*>(to) + offset;
    if (dtype == kBfloat16)
      for (int64_t i = 0; i < n; ++i) p[i] = float_to_bfloat16(float(from[i]));
    else
      for (int64_t i = 0; i < n; ++i) p[i] = float_to_float16(float(from[i]));
  }
}

}  // namespace LIGHTCONV_ISA
