// The same product with both sides in int8 and sums in int32, or in bfloat16 and sums in float32.
//
// Rows: q = round(x * 127 / max|x|), weights likewise per output, so both lie in [-127, 127] and
//   y[o] = scale[o] * (max|x| / 127) * sum_k q[k] w[o, k] + bias[o].
// Panels hold four inputs of every output side by side. Three kernels give the same sums: VNNI
// multiplies unsigned by signed bytes, so its rows are stored as q + 128 and offset[o] =
// -128 * sum_k w[o, k] takes that back; AVX2 moves q's sign to w, so that pairs of products fit in
// 16 bits; elsewhere plain C++. bfloat16 panels hold pairs of inputs; AVX512-BF16 alone has their product.
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

#if defined(__AVX512BW__)
#define LIGHTCONV_VNNI 1
constexpr int kUnsignedColumns = 32;
#define LIGHTCONV_WITH(feature) \
  __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,fma," feature)))

LIGHTCONV_WITH("avx512bf16")
static void to_pairs(const float* x, int64_t n, int16_t* q) {
  for (int64_t k = 0; k < n + n % 2; k += 16) {
    const int64_t left = n - k;
    const auto some = __mmask16(left >= 16 ? 0xFFFF : (1u << left) - 1);
    const __m256bh pairs = _mm512_cvtneps_pbh(_mm512_maskz_loadu_ps(some, x + k));
    const auto whole = __mmask16(some | some << left % 2);  // a last one without a pair
    _mm256_mask_storeu_epi16(q + k, whole, (__m256i)pairs);
  }
}
#endif

static void quantize(const Run& run, const Instruction& i, int64_t row) {
  float* to = place(run, i.to, row);
#if defined(LIGHTCONV_VNNI)
  if (i.panel == kBf16Panel)
    return to_pairs(place(run, i.from, row), i.I, reinterpret_cast<int16_t*>(to));
#endif
  int8_t* q = reinterpret_cast<int8_t*>(to);
  const int32_t zero = i.panel == kUnsignedPanel ? 128 : 0;
  to[i.to.width - 1] = to_bytes(place(run, i.from, row), i.I, zero, q);
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

#if defined(LIGHTCONV_VNNI)
// `m...` are the rows of a block: expanded, not looped over, so that the sums stay in registers.
#define LIGHTCONV_INLINE(feature) LIGHTCONV_WITH(feature) static inline __attribute__((always_inline))
using Pair = Ints<float>[2];  // as __m512i GCC moves them to and fro
using FloatPair = __m512[2];

LIGHTCONV_INLINE("avx512vnni") void add_row(Pair& sums, const int8_t* x, __m512i w0, __m512i w1) {
  int32_t four;
  memcpy(&four, x, 4);
  const __m512i q = _mm512_set1_epi32(four);
  sums[0] = (Ints<float>)_mm512_dpbusd_epi32((__m512i)sums[0], q, w0);
  sums[1] = (Ints<float>)_mm512_dpbusd_epi32((__m512i)sums[1], q, w1);
}

LIGHTCONV_INLINE("avx512bf16")
void add_row(FloatPair& sums, const int8_t* x, __m512i w0, __m512i w1) {
  int32_t two;
  memcpy(&two, x, 4);
  const __m512bh q = (__m512bh)_mm512_set1_epi32(two);
  sums[0] = _mm512_dpbf16_ps(sums[0], q, (__m512bh)w0);
  sums[1] = _mm512_dpbf16_ps(sums[1], q, (__m512bh)w1);
}

// Sums over all inputs, from what `sums` begins with.
#define LIGHTCONV_SUM_ROWS(steps)                                                    \
  const int8_t* x = bytes_of_row(place(run, i.from, row));                           \
  const int8_t* w = static_cast<const int8_t*>(i.weight) + column * (steps) * 4;     \
  const int64_t stride = i.from.width * 4;                                           \
  for (int64_t k = 0; k < (steps);) {                                                \
    next.fetch();                                                                    \
    for (const int64_t end = std::min((steps), k + kStretch); k < end; ++k, w += 128) { \
      const __m512i w0 = _mm512_loadu_si512(w), w1 = _mm512_loadu_si512(w + 64);     \
      if (sizeof...(m) <= 4) {                                                       \
        __builtin_prefetch(w + 2048);                                                \
        __builtin_prefetch(w + 2112);                                                \
      }                                                                              \
      (add_row(sums[m], x + m * stride + 4 * k, w0, w1), ...);                       \
    }                                                                                \
  }

template <int... m>
LIGHTCONV_WITH("avx512vnni")
static void unsigned_block(std::integer_sequence<int, m...>, const Run& run, const Instruction& i,
                           int64_t row, int64_t panel, NextPanel& next) {
  const int64_t steps = (i.I + 3) / 4, column = panel * kUnsignedColumns;
  Pair sums[sizeof...(m)];
  Ints<float> begin0, begin1;
  memcpy(&begin0, i.offset + column, sizeof begin0);
  memcpy(&begin1, i.offset + column + 16, sizeof begin1);
  ((sums[m][0] = begin0, sums[m][1] = begin1), ...);
  LIGHTCONV_SUM_ROWS(steps)
  const Vec<float> scale0 = load(i.scale + column), scale1 = load(i.scale + column + 16);
  const Vec<float> bias0 = load(i.bias + column), bias1 = load(i.bias + column + 16);
  auto end = [&](int64_t at, Vec<float> one, Vec<float> other) {
    const float own = place(run, i.from, at)[i.from.width - 1];
    const Vec<float> y[2] = {one * (scale0 * own) + bias0, other * (scale1 * own) + bias1};
    finish(run, i, at, column, i.O - column, y, 2);
  };
  (end(row + m, __builtin_convertvector(sums[m][0], Vec<float>),
       __builtin_convertvector(sums[m][1], Vec<float>)),
   ...);
}

template <int... m>
LIGHTCONV_WITH("avx512bf16")
static void bf16_block(std::integer_sequence<int, m...>, const Run& run, const Instruction& i,
                       int64_t row, int64_t panel, NextPanel& next) {
  const int64_t steps = (i.I + 1) / 2, column = panel * kFloatColumns;
  FloatPair sums[sizeof...(m)];
  const __m512 bias0 = _mm512_loadu_ps(i.bias + column);
  const __m512 bias1 = _mm512_loadu_ps(i.bias + column + 16);
  ((sums[m][0] = bias0, sums[m][1] = bias1), ...);
  LIGHTCONV_SUM_ROWS(steps)
  auto end = [&](int64_t at, Vec<float> one, Vec<float> other) {
    const Vec<float> y[2] = {one, other};
    finish(run, i, at, column, i.O - column, y, 2);
  };
  (end(row + m, (Vec<float>)sums[m][0], (Vec<float>)sums[m][1]), ...);
}
#endif

static int64_t panel_columns(int64_t kind) {
  if (kind == kFloatPanel) return kFloatColumns;
  if (kind == kSignedPanel) return kSignedColumns;
#if defined(LIGHTCONV_VNNI)
  if (kind == kUnsignedPanel && __builtin_cpu_supports("avx512vnni")) return kUnsignedColumns;
  if (kind == kBf16Panel && __builtin_cpu_supports("avx512bf16")) return kFloatColumns;
#endif
  return 0;
}

static inline int64_t columns_of(const Instruction& i) {
  return i.op == kLinear ? panel_columns(i.panel) : 0;
}

static void linear(const Run& run, const Instruction& i, Range rows, Range panels) {
  const int64_t kind = i.panel, columns = columns_of(i);
  // Four bytes of inputs lie side by side.
  const int64_t group = kind == kFloatPanel ? 1 : kind == kBf16Panel ? 2 : 4;
  const int64_t steps = (i.I + group - 1) / group;
  each_panel(i, rows, panels, columns, columns * steps * 4, steps,
             [&](auto m, int64_t row, int64_t panel, NextPanel& next) {
               constexpr int M = decltype(m)::value;
               if (kind == kFloatPanel) return linear_block<M>(run, i, row, panel, next);
#if defined(LIGHTCONV_VNNI)
               constexpr std::make_integer_sequence<int, M> each{};
               if (kind == kUnsignedPanel) return unsigned_block(each, run, i, row, panel, next);
               if (kind == kBf16Panel) return bf16_block(each, run, i, row, panel, next);
#endif
               signed_block<M>(run, i, row, panel, next);
             });
}

// The outputs that each row's sentence has chosen.
static void linear_chosen(const Run& run, const Instruction& i, Range rows) {
  const int64_t columns = columns_of(i);
  for (int64_t row = rows.begin, end; row < rows.end; row = end) {
    const int64_t sentence = run.sentences[row];
    for (end = row + 1; end < rows.end && run.sentences[end] == sentence;) ++end;
    const char* const* choice = run.sources + sentence * run.layers + run.choice;
    Instruction own = i;
    own.weight = choice[0];
    own.scale = reinterpret_cast<const float*>(choice[1]);
    own.offset = reinterpret_cast<const int32_t*>(choice[2]);
    own.O = int64_t(choice[3]);
    own.to.width = run.width;
    linear(run, own, {row, end}, {0, (own.O + columns - 1) / columns});
  }
}

}  // namespace LIGHTCONV_ISA
