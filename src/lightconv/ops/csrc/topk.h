// log_softmax and the k best of each row: one pass for the maximum, one for the sum of exponentials
// and the candidates. Few numbers beat the k-th best so far, so a vector is looked into only when
// one of its lanes does. Ties go to the lower index; a task is a row.
#pragma once
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

static inline bool any_above(Vec<float> x, float bound) {
#if defined(__AVX512F__)
  return _mm512_cmp_ps_mask((__m512)x, _mm512_set1_ps(bound), _CMP_GT_OQ) != 0;
#elif defined(__AVX__)
  return _mm256_movemask_ps(_mm256_cmp_ps((__m256)x, _mm256_set1_ps(bound), _CMP_GT_OQ)) != 0;
#else
  return max_lanes<float>(x)[0] > bound;
#endif
}

static void topk_row(const float* x, int64_t V, int64_t k, float* values, int64_t* indices) {
  constexpr int W = kLanes<float>, U = 4;
  const int64_t whole = V / W * W;
  float most = x[0];
  if (whole) {
    Vec<float> tops = load(x);
    for (int64_t i = W; i < whole; i += W) tops = maximum<float>(load(x + i), tops);
    most = max_lanes<float>(tops)[0];
  }
  for (int64_t i = whole; i < V; ++i) most = x[i] > most ? x[i] : most;
  Best best{values, indices, k, 0};
  float total = 0.0f;
  Vec<float> totals[U] = {};
  int64_t i = 0;
  for (; i < k && i < V; ++i) best.offer(x[i], i), total += std::exp(x[i] - most);
  for (; i + U * W <= V; i += U * W) {
    Vec<float> high = load(x + i);
    unroll<U>([&](auto u) {
      const Vec<float> v = load(x + i + u * W);
      totals[u] += exp_nonpositive(v - most);
      high = maximum<float>(v, high);
    });
    if (any_above(high, values[k - 1]))
      for (int64_t j = i; j < i + U * W; ++j) best.offer(x[j], j);
  }
  for (; i < V; ++i) best.offer(x[i], i), total += std::exp(x[i] - most);
  total += sum_lanes<float>(totals[0] + totals[1] + (totals[2] + totals[3]))[0];
  const float norm = std::log(total);  // not added to `most`, which may be large
  for (int64_t j = 0; j < k; ++j) values[j] = values[j] - most - norm;
}

}  // namespace LIGHTCONV_ISA
