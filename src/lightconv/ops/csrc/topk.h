// log_softmax and the k best of each row: one pass for the maximum and a bound, one for the sum of
// exponentials and the candidates. Little reaches the bound, and vectors that do not are not looked
// into. Ties go to the lower index; a task is a row.
#pragma once
#include <algorithm>
#include <functional>
#include <limits>

#include "vec.h"

namespace LIGHTCONV_ISA {

struct Best {
  float* values;
  int64_t* indices;
  int64_t k, count;

  void offer(float value, int64_t index) {
    if (count == k) {
      if (!(value > values[k - 1])) return;
      --count;
    }
    int64_t at = count++;
    for (; at > 0 && value > values[at - 1]; --at)
      values[at] = values[at - 1], indices[at] = indices[at - 1];
    values[at] = value, indices[at] = index;
  }
};

static inline bool any_reaches(Vec<float> x, float bound) {
#if defined(__AVX512F__)
  return _mm512_cmp_ps_mask((__m512)x, _mm512_set1_ps(bound), _CMP_GE_OQ) != 0;
#elif defined(__AVX__)
  return _mm256_movemask_ps(_mm256_cmp_ps((__m256)x, _mm256_set1_ps(bound), _CMP_GE_OQ)) != 0;
#else
  return max_lanes<float>(x)[0] >= bound;
#endif
}

// The k-th largest of n numbers, -inf if there are not so many; n is small, and they are lost.
static inline float kth_largest(float* x, int64_t n, int64_t k) {
  if (k > n) return -std::numeric_limits<float>::infinity();
  std::nth_element(x, x + k - 1, x + n, std::greater<float>());
  return x[k - 1];
}

// What turns the logits of a row into log-probabilities.
struct Softmax {
  float most, norm;  // apart: `most` may be large
  float logprob(float x) const { return x - most - norm; }
};

static Softmax topk_row(const float* x, int64_t V, int64_t k, float* values, int64_t* indices) {
  constexpr int W = kLanes<float>, U = 4;
  const int64_t whole = V / (U * W) * (U * W);
  // The largest number of each of U * W interleaved strands. The k-th largest of these is a bound
  // that the k best reach and little else.
  float most = -std::numeric_limits<float>::infinity(), bound = most;
  if (whole) {
    Vec<float> tops[U];  // never NaN, which is no larger than anything
    unroll<U>([&](auto u) { tops[u] = broadcast(most); });
    for (int64_t i = 0; i < whole; i += U * W)
      unroll<U>([&](auto u) { tops[u] = maximum<float>(load(x + i + u * W), tops[u]); });
    alignas(64) float strands[U * W];
    unroll<U>([&](auto u) { store(strands + u * W, tops[u]); });
    most = *std::max_element(strands, strands + U * W);
    bound = kth_largest(strands, U * W, k);
  }
  for (int64_t i = whole; i < V; ++i) most = x[i] > most ? x[i] : most;
  Best best{values, indices, k, 0};
  Vec<float> totals[U] = {};
  for (int64_t i = 0; i < whole; i += U * W) {
    Vec<float> high = load(x + i);
    unroll<U>([&](auto u) {
      const Vec<float> v = load(x + i + u * W);
      totals[u] += exp_nonpositive(v - most);
      high = maximum<float>(v, high);
    });
    if (any_reaches(high, bound))
      for (int64_t j = i; j < i + U * W; ++j)
        if (x[j] >= bound) best.offer(x[j], j);
  }
  float total = sum_lanes<float>(totals[0] + totals[1] + (totals[2] + totals[3]))[0];
  for (int64_t i = whole; i < V; ++i) best.offer(x[i], i), total += std::exp(x[i] - most);
  if (best.count < k) {  // something is no number: take what comes
    best.count = 0;
    for (int64_t i = 0; i < V; ++i) best.offer(x[i], i);
  }
  const Softmax all{most, std::log(total)};
  for (int64_t j = 0; j < k; ++j) values[j] = all.logprob(values[j]);
  return all;
}

}  // namespace LIGHTCONV_ISA
