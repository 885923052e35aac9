// The frame of a sub-block: dropout, the residual sum and layer normalisation in one pass.
//
//   s = x + inner * factor            factor: 0 or 1 / (1 - p), a hash of (seed, element)
//   y = (s - mean(s)) / sqrt(var(s) + eps) * weight + bias
//
// Without x there is no sum, without weight no normalisation. The backward pass reads s and the
// statistics of its rows, and hashes the factors again. A task is a run of rows; a row stays in the
// first-level cache between its passes. The sums for weight and bias run over parts of the rows
// whose number depends on the shape alone, and are added in a fixed order.
#pragma once
#include "taps.h"

namespace LIGHTCONV_ISA {

constexpr int64_t kRowsOfTask = 8;

// A row widened to whole vectors; the lanes beyond D are zero.
template <class S>
static std::vector<S> widened(int64_t dtype, const void* from, int64_t D) {
  std::vector<S> row(size_t(round_up(D, kLanes<S>)), S(0));
  if (from) read_row(dtype, from, 0, D, row.data());
  return row;
}

template <class S, class Visit>
static inline __attribute__((always_inline)) void for_each_vector(int64_t wide, Visit visit) {
  for (int64_t c = 0; c < wide; c += kLanes<S>) visit(c);
}

template <class S>
static void residual_forward(const Residual& r, ParallelFor parallel) {
  constexpr int W = kLanes<S>;
  const int64_t D = r.D, wide = round_up(D, W);
  const std::vector<S> weight = widened<S>(r.weight_dtype, r.weight, D);
  const std::vector<S> bias = widened<S>(r.weight_dtype, r.bias, D);
  auto body = [&](int64_t task) {
    Scratch scratch(3 * Scratch::room<S>(wide));
    S *s = scratch.take<S>(wide), *inner = scratch.take<S>(wide), *factor = scratch.take<S>(wide);
    std::fill(s, s + wide, S(0));
    std::fill(inner, inner + wide, S(0));
    std::fill(factor, factor + wide, S(1));
    const int64_t end = std::min(r.rows, (task + 1) * kRowsOfTask);
    for (int64_t row = task * kRowsOfTask; row < end; ++row) {
      read_row(r.inner_dtype, r.inner, row * D, D, inner);
      if (r.drop)
        drop_factors(uint64_t(r.seed), uint64_t(row * D), D, uint32_t(r.drop), S(r.keep_scale),
                     factor);
      if (r.x) read_row(r.dtype, r.x, row * D, D, s);
      for_each_vector<S>(wide, [&](int64_t c) {
        const Vec<S> kept = load(inner + c) * load(factor + c);
        store(s + c, r.x ? load(s + c) + kept : kept);
      });
      write_row(r.dtype, r.weight ? r.sum : r.out, row * D, D, s);
      if (!r.weight) continue;
      // What the backward pass will read, so that its rows have this mean and deviation.
      if (!is_native<S>(r.dtype)) read_row(r.dtype, r.sum, row * D, D, s);
      Vec<S> total{};
      for_each_vector<S>(wide, [&](int64_t c) { total += load(s + c); });
      const S mean = sum_lanes<S>(total)[0] / S(D);
      std::fill(s + D, s + wide, mean);  // no part of the variance
      Vec<S> squares{};
      for_each_vector<S>(wide, [&](int64_t c) {
        const Vec<S> away = load(s + c) - mean;
        squares += away * away;
      });
      const S scale = S(1) / std::sqrt(sum_lanes<S>(squares)[0] / S(D) + S(r.eps));
      for_each_vector<S>(wide, [&](int64_t c) {
        store(s + c, (load(s + c) - mean) * scale * load(&weight[size_t(c)]) + load(&bias[size_t(c)]));
      });
      write_row(r.dtype, r.out, row * D, D, s);
      std::fill(s + D, s + wide, S(0));
      static_cast<S*>(r.stats)[2 * row] = mean;
      static_cast<S*>(r.stats)[2 * row + 1] = scale;
    }
  };
  for_each_task(parallel, (r.rows + kRowsOfTask - 1) / kRowsOfTask, 8.0 * r.rows * D, body);
}

template <class S>
static void residual_backward(const Residual& r, ParallelFor parallel) {
  constexpr int W = kLanes<S>;
  const int64_t D = r.D, wide = round_up(D, W);
  const bool affine = r.grad_weight || r.grad_bias;
  const int64_t parts = std::min<int64_t>(r.rows, 64);
  const std::vector<S> weight = widened<S>(r.weight_dtype, r.weight, D);
  std::vector<S> partial(affine ? size_t(std::max<int64_t>(parts, 1) * 2 * wide) : 0, S(0));
  auto body = [&](int64_t part) {
    Scratch scratch(3 * Scratch::room<S>(wide));
    S *g = scratch.take<S>(wide), *s = scratch.take<S>(wide), *factor = scratch.take<S>(wide);
    std::fill(g, g + wide, S(0));
    std::fill(factor, factor + wide, S(1));
    S* of_weight = affine ? &partial[size_t(part * 2 * wide)] : nullptr;
    for (int64_t row = r.rows * part / parts; row < r.rows * (part + 1) / parts; ++row) {
      read_row(r.dtype, r.grad, row * D, D, g);
      if (r.weight) {
        const S mean = static_cast<const S*>(r.stats)[2 * row];
        const S scale = static_cast<const S*>(r.stats)[2 * row + 1];
        read_row(r.dtype, r.sum, row * D, D, s);
        std::fill(s + D, s + wide, mean);
        Vec<S> of_mean{}, of_scale{};
        for_each_vector<S>(wide, [&](int64_t c) {
          const Vec<S> grad = load(g + c), normal = (load(s + c) - mean) * scale;
          const Vec<S> weighted = grad * load(&weight[size_t(c)]);
          if (affine) {
            store(of_weight + c, load(of_weight + c) + grad * normal);
            store(of_weight + wide + c, load(of_weight + wide + c) + grad);
          }
          store(s + c, normal);
          store(g + c, weighted);
          of_mean += weighted;
          of_scale += weighted * normal;
        });
        const S a = sum_lanes<S>(of_mean)[0] / S(D), b = sum_lanes<S>(of_scale)[0] / S(D);
        for_each_vector<S>(wide, [&](int64_t c) {
          store(g + c, (load(g + c) - a - load(s + c) * b) * scale);
        });
      }
      if (r.grad_x) write_row(r.dtype, r.grad_x, row * D, D, g);
      if (r.grad_inner) {
        if (r.drop) {
          drop_factors(uint64_t(r.seed), uint64_t(row * D), D, uint32_t(r.drop), S(r.keep_scale),
                       factor);
          for_each_vector<S>(wide, [&](int64_t c) { store(g + c, load(g + c) * load(factor + c)); });
        }
        write_row(r.inner_dtype, r.grad_inner, row * D, D, g);
      }
      std::fill(g + D, g + wide, S(0));
    }
  };
  for_each_task(parallel, parts, 8.0 * r.rows * D, body);
  if (!affine) return;
  for (int64_t part = 1; part < parts; ++part)
    for_each_vector<S>(2 * wide, [&](int64_t c) {
      store(&partial[size_t(c)], load(&partial[size_t(c)]) + load(&partial[size_t(part * 2 * wide + c)]));
    });
  if (r.grad_weight) write_row(r.weight_dtype, r.grad_weight, 0, D, partial.data());
  if (r.grad_bias) write_row(r.weight_dtype, r.grad_bias, 0, D, partial.data() + wide);
}

}  // namespace LIGHTCONV_ISA
