// Instructions that work on each row for itself.
#pragma once
#include "gemm.h"

namespace LIGHTCONV_ISA {

static inline Vec<float> sigmoid(Vec<float> x) {
  const Vec<float> e = exp_nonpositive((Vec<float>)(x < 0.0f ? x : -x));
  const Vec<float> one = broadcast(1.0f);
  return (Vec<float>)(x < 0.0f ? e : one) / (one + e);
}

static inline float sigmoid(float x) { return 1.0f / (1.0f + std::exp(-x)); }

// to[c] = f(c) for c < n: `vector` for whole vectors, `scalar` for the rest.
template <class Vector, class Scalar>
static inline void each_channel(int64_t n, float* to, Vector vector, Scalar scalar) {
  constexpr int W = kLanes<float>;
  int64_t c = 0;
  for (; c + W <= n; c += W) store(to + c, vector(c));
  for (; c < n; ++c) to[c] = scalar(c);
}

// False when the token is no word.
static bool embed(const Run& run, const Instruction& i, int64_t row) {
  const int64_t token = run.tokens[row], D = i.O;
  if (token < 0 || token >= i.I) return false;
  const float* word = static_cast<const float*>(i.weight) + token * D;
  const int64_t position = run.positions ? run.positions[row] : row - run.begins[row];
  const float* wave = run.sinusoids + position * D;
  const float factor = float(i.factor), here = token == run.pad ? 0.0f : 1.0f;
  each_channel(
      D, place(run, i.to, row),
      [&](int64_t c) { return load(word + c) * factor + load(wave + c) * here; },
      [&](int64_t c) { return word[c] * factor + wave[c] * here; });
  return true;
}

static void norm(const Run& run, const Instruction& i, int64_t row) {
  constexpr int W = kLanes<float>;
  const int64_t D = i.I, whole = D / W * W;
  const float* x = place(run, i.from, row);
  const float mean = sum_of(x, D) / float(D);
  Vec<float> squares{};
  for (int64_t c = 0; c < whole; c += W) {
    const Vec<float> d = load(x + c) - mean;
    squares += d * d;
  }
  float square = sum_lanes<float>(squares)[0];
  for (int64_t c = whole; c < D; ++c) square += (x[c] - mean) * (x[c] - mean);
  const float inverse = 1.0f / std::sqrt(square / float(D) + float(i.factor));
  const float* weight = static_cast<const float*>(i.weight);
  each_channel(
      D, target(run, i, row),
      [&](int64_t c) {
        return (load(x + c) - mean) * inverse * load(weight + c) + load(i.bias + c);
      },
      [&](int64_t c) { return (x[c] - mean) * inverse * weight[c] + i.bias[c]; });
}

static void glu(const Run& run, const Instruction& i, int64_t row) {
  const float *a = place(run, i.from, row), *b = a + i.O;
  each_channel(
      i.O, place(run, i.to, row), [&](int64_t c) { return load(a + c) * sigmoid(load(b + c)); },
      [&](int64_t c) { return a[c] * sigmoid(b[c]); });
}

// sigmoid(a) x + sigmoid(b) g
static void gate(const Run& run, const Instruction& i, int64_t row) {
  const float *x = place(run, i.from, row), *g = x + i.O;
  const float *a = place(run, i.with, row), *b = a + i.O;
  each_channel(
      i.O, place(run, i.to, row),
      [&](int64_t c) {
        return sigmoid(load(a + c)) * load(x + c) + sigmoid(load(b + c)) * load(g + c);
      },
      [&](int64_t c) { return sigmoid(a[c]) * x[c] + sigmoid(b[c]) * g[c]; });
}

// [+ with]
static void copy_row(const Run& run, const Instruction& i, int64_t row) {
  const float* x = place(run, i.from, row);
  const float* other = i.with.column < 0 ? nullptr : place(run, i.with, row);
  each_channel(
      i.O, target(run, i, row),
      [&](int64_t c) { return other ? load(x + c) + load(other + c) : load(x + c); },
      [&](int64_t c) { return other ? x[c] + other[c] : x[c]; });
}

}  // namespace LIGHTCONV_ISA
