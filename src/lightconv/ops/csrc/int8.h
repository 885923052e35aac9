// The same product with both sides in int8 and sums in int32.
//
// Rows: q = round(x * 127 / max|x|), weights likewise per output, so both lie in [-127, 127] and
//   y[o] = scale[o] * (max|x| / 127) * sum_k q[k] w[o, k] + bias[o].
// Panels hold four inputs of every output side by side. Three kernels give the same sums: VNNI
// multiplies unsigned by signed bytes, so its rows are stored as q + 128 and offset[o] =
// -128 * sum_k w[o, k] takes that back; AVX2 moves q's sign to w, so that pairs of products fit in
// 16 bits; elsewhere plain C++.
#pragma once
#include "gemm.h"

namespace LIGHTCONV_ISA {

constexpr int kSignedLanes = (VEC_BYTES < 32 ? VEC_BYTES : 32) / 4;
constexpr int kSignedColumns = 2 * kSignedLanes;
constexpr int64_t round_to_four(int64_t n) { return (n + 3) / 4 * 4; }

// A quantised row: its bytes (whole groups of four), in `width` floats, the last of them the scale.
static inline const int8_t* bytes_of_row(const float* row) {
  return reinterpret_cast<const int8_t*>(row);
}

// q = round(x / scale) + zero for n numbers; returns the scale, which makes the largest 127.
static inline float to_bytes(const float* x, int64_t n, int32_t zero, int8_t* q) {
  constexpr int W = kLanes<float>;
  const int64_t whole = n / W * W;
  Vec<float> most{};
  for (int64_t k = 0; k < whole; k += W) {
    const Vec<float> v = load(x + k);
    most = maximum<float>(most, maximum<float>(v, -v));
  }
  float top = max_lanes<float>(most)[0];
  for (int64_t k = whole; k < n; ++k) top = std::max(top, std::fabs(x[k]));
  const float factor = top > 0.0f ? 127.0f / top : 0.0f;
  const float shifter = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer, ties to even
  for (int64_t k = 0; k < whole; k += W) {
    const Vec<float> shifted = load(x + k) * factor + shifter;
    Ints<float> bits;
    memcpy(&bits, &shifted, sizeof bits);
    bits = bits - 0x4B400000 + zero;
    typedef int8_t Bytes __attribute__((vector_size(VEC_BYTES / 4)));
    const Bytes bytes = __builtin_convertvector(bits, Bytes);
    memcpy(q + k, &bytes, sizeof bytes);
  }
  for (int64_t k = whole; k < n; ++k) {
    const float shifted = x[k] * factor + shifter;
    int32_t bits;
    memcpy(&bits, &shifted, sizeof bits);
    q[k] = int8_t(bits - 0x4B400000 + zero);
  }
  return top / 127.0f;
}

static void quantize(const Run& run, const Instruction& i, int64_t row) {
  float* to = place(run, i.to, row);
  int8_t* q = reinterpret_cast<int8_t*>(to);
  to[i.to.width - 1] = to_bytes(place(run, i.from, row), i.I, i.is_unsigned ? 128 : 0, q);
  for (int64_t k = i.I; k < round_to_four(i.I); ++k) q[k] = 0;  // their weights are zero
}

static inline void finish_int8(const Run& run, const Instruction& i, int64_t row, int64_t column,
                               const int32_t* sums, int columns) {
  constexpr int W = kLanes<float>;
  const float* from = place(run, i.from, row);
  const float own = from[i.from.width - 1];
  for (int c = 0; c < columns; c += W) {
    Ints<float> whole;
    memcpy(&whole, sums + c, sizeof whole);
    const Vec<float> y = __builtin_convertvector(whole, Vec<float>) *
                             (load(i.scale + column + c) * own) +
                         load(i.bias + column + c);
    finish(run, i, row, column + c, i.O - column - c, &y, 1);
  }
}

#if defined(__AVX2__)
template <int M>
static inline void signed_block(const Run& run, const Instruction& i, int64_t row, int64_t panel,
                                NextPanel& next) {
  const int64_t I = round_to_four(i.I), column = panel * kSignedColumns;
  const int8_t* w = static_cast<const int8_t*>(i.weight) + column * I;
  const int8_t* x[M];
  __m256i sums[M][2];
  for (int m = 0; m < M; ++m) {
    x[m] = bytes_of_row(place(run, i.from, row + m));
    sums[m][0] = sums[m][1] = _mm256_setzero_si256();
  }
  const __m256i ones = _mm256_set1_epi16(1);
  for (int64_t k = 0; k < I; k += 4, w += 4 * kSignedColumns) {
    if (k % (4 * kStretch) == 0) next.fetch();
    const __m256i w0 = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(w));
    const __m256i w1 = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(w + 32));
    unroll<M>([&](auto m) {
      int32_t four;
      memcpy(&four, x[m] + k, 4);
      const __m256i q = _mm256_set1_epi32(four), size = _mm256_abs_epi8(q);
      const __m256i p0 = _mm256_maddubs_epi16(size, _mm256_sign_epi8(w0, q));
      const __m256i p1 = _mm256_maddubs_epi16(size, _mm256_sign_epi8(w1, q));
      sums[m][0] = _mm256_add_epi32(sums[m][0], _mm256_madd_epi16(p0, ones));
      sums[m][1] = _mm256_add_epi32(sums[m][1], _mm256_madd_epi16(p1, ones));
    });
  }
  alignas(64) int32_t each[kSignedColumns];
  for (int m = 0; m < M; ++m) {
    memcpy(each, sums[m], sizeof each);
    finish_int8(run, i, row + m, column, each, kSignedColumns);
  }
}
#else
template <int M>
static inline void signed_block(const Run& run, const Instruction& i, int64_t row, int64_t panel,
                                NextPanel& next) {
  const int64_t I = round_to_four(i.I), column = panel * kSignedColumns;
  const int8_t* w = static_cast<const int8_t*>(i.weight) + column * I;
  int32_t sums[M][kSignedColumns] = {};
  for (int64_t k = 0; k < I; k += 4, w += 4 * kSignedColumns) {
    if (k % (4 * kStretch) == 0) next.fetch();
    for (int m = 0; m < M; ++m) {
      const int8_t* x = bytes_of_row(place(run, i.from, row + m)) + k;
      for (int c = 0; c < kSignedColumns; ++c)
        sums[m][c] += x[0] * w[4 * c] + x[1] * w[4 * c + 1] + x[2] * w[4 * c + 2] +
                      x[3] * w[4 * c + 3];
    }
  }
  for (int m = 0; m < M; ++m) finish_int8(run, i, row + m, column, sums[m], kSignedColumns);
}
#endif

#if defined(__AVX512BW__)
#define LIGHTCONV_VNNI 1
constexpr int kUnsignedColumns = 32;

template <int M>
__attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,fma,avx512vnni"))) static void
unsigned_block(const Run& run, const Instruction& i, int64_t row, int64_t panel, NextPanel& next) {
  const int64_t I = round_to_four(i.I), column = panel * kUnsignedColumns;
  const int8_t* w = static_cast<const int8_t*>(i.weight) + column * I;
  const int8_t* x = bytes_of_row(place(run, i.from, row));
  const int64_t stride = i.from.width * 4;
  __m512i sums[M][2];
  const __m512i start0 = _mm512_loadu_si512(i.offset + column);
  const __m512i start1 = _mm512_loadu_si512(i.offset + column + 16);
#pragma GCC unroll 12
  for (int m = 0; m < M; ++m) sums[m][0] = start0, sums[m][1] = start1;
  for (int64_t k = 0; k < I;) {
    next.fetch();
    for (const int64_t end = std::min(I, k + 4 * kStretch); k < end; k += 4, w += 128) {
      const __m512i w0 = _mm512_loadu_si512(w), w1 = _mm512_loadu_si512(w + 64);
      if (M <= 4) {
        __builtin_prefetch(w + 2048);
        __builtin_prefetch(w + 2112);
      }
#pragma GCC unroll 12
      for (int m = 0; m < M; ++m) {
        int32_t four;
        memcpy(&four, x + m * stride + k, 4);
        const __m512i q = _mm512_set1_epi32(four);
        sums[m][0] = _mm512_dpbusd_epi32(sums[m][0], q, w0);
        sums[m][1] = _mm512_dpbusd_epi32(sums[m][1], q, w1);
      }
    }
  }
  alignas(64) int32_t each[kUnsignedColumns];
#pragma GCC unroll 12
  for (int m = 0; m < M; ++m) {
    _mm512_store_si512(each, sums[m][0]);
    _mm512_store_si512(each + 16, sums[m][1]);
    finish_int8(run, i, row + m, column, each, kUnsignedColumns);
  }
}
#endif

static inline bool has_vnni() {
#if defined(LIGHTCONV_VNNI)
  return __builtin_cpu_supports("avx512vnni");
#else
  return false;
#endif
}

static int64_t panel_columns(int64_t kind) {
  if (kind == kFloatPanel) return kFloatColumns;
  if (kind == kSignedPanel) return kSignedColumns;
#if defined(LIGHTCONV_VNNI)
  if (kind == kUnsignedPanel && has_vnni()) return kUnsignedColumns;
#endif
  return 0;
}

static inline int64_t columns_of(const Instruction& i) {
  if (i.op == kLinear) return kFloatColumns;
  if (i.op != kLinearInt8) return 0;
  return panel_columns(i.is_unsigned ? kUnsignedPanel : kSignedPanel);
}

static void linear_int8(const Run& run, const Instruction& i, Range rows, Range panels) {
  const int64_t I = round_to_four(i.I), columns = columns_of(i);
  each_panel(i, rows, panels, columns, columns * I, I / 4,
             [&](auto m, int64_t row, int64_t panel, NextPanel& next) {
               constexpr int M = decltype(m)::value;
#if defined(LIGHTCONV_VNNI)
               if (i.is_unsigned) return unsigned_block<M>(run, i, row, panel, next);
#endif
               signed_block<M>(run, i, row, panel, next);
             });
}

}  // namespace LIGHTCONV_ISA
