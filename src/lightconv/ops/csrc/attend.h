// The rows between the two products of attention: softmax over the keys that a query sees, dropout,
// and in the backward pass their gradient. The products are a library's, a block of rows at a time.
//
//   w = softmax(scale * s over visible keys)      p = w * factor      (factor: 0 or 1 / (1 - rate),
//   ds = scale * (g * factor - sum(w * g * factor)) * w                a hash of (seed, element))
//
// A row without a visible key has no weights. Rows are tasks; one stays in the first-level cache.
#pragma once
#include "taps.h"

namespace LIGHTCONV_ISA {

template <class S>
static void attend_rows(const Attend& a, ParallelFor parallel) {
  constexpr int64_t kRows = 16;  // of a task
  const int64_t n = a.keys, wide = round_up(n, kLanes<S>), rows = a.B * a.H * a.rows;
  const S hidden = -std::numeric_limits<S>::infinity();
  auto body = [&](int64_t task) {
    Scratch scratch(3 * Scratch::room<S>(wide));
    S *w = scratch.take<S>(wide), *g = scratch.take<S>(wide), *factor = scratch.take<S>(wide);
    std::fill(factor, factor + wide, S(1));
    std::fill(g, g + wide, S(0));
    for (int64_t row = task * kRows; row < std::min(rows, (task + 1) * kRows); ++row) {
      const int64_t b = row / (a.H * a.rows), h = row / a.rows % a.H, t = row % a.rows;
      read_row(a.dtype, a.scores, row * n, n, w);
      for (int64_t c = 0; c < wide; c += kLanes<S>) store(w + c, load(w + c) * S(a.scale));
      if (a.mask) {
        const uint8_t* mask = static_cast<const uint8_t*>(a.mask) + b * a.mask_batch +
                              h * a.mask_head + t * a.mask_row;
        for (int64_t s = 0; s < n; ++s) w[s] = mask[s] ? w[s] : hidden;
      }
      std::fill(w + (a.causal ? std::min(n, a.first_row + t + 1) : n), w + wide, hidden);
      if (*std::max_element(w, w + n) == hidden) std::fill(w, w + wide, S(0));
      else Taps<S>::soften(w, wide);
      if (a.drop)
        drop_factors(uint64_t(a.seed),
                     uint64_t((((a.first_batch + b) * a.H + h) * a.T + a.first_row + t) * a.S), n,
                     uint32_t(a.drop), S(a.keep_scale), factor);
      if (a.grad) {
        read_row(a.dtype, a.grad, row * n, n, g);
        Vec<S> sum{};
        for (int64_t c = 0; c < wide; c += kLanes<S>) {
          const Vec<S> kept = load(g + c) * load(factor + c);
          sum += kept * load(w + c);
          store(g + c, kept);
        }
        const Vec<S> mean = sum_lanes<S>(sum);
        for (int64_t c = 0; c < wide; c += kLanes<S>)
          store(g + c, (load(g + c) - mean) * load(w + c) * S(a.scale));
        write_row(a.dtype, a.grad, row * n, n, g);
      }
      for (int64_t c = 0; c < wide; c += kLanes<S>) store(w + c, load(w + c) * load(factor + c));
      write_row(a.dtype, a.scores, row * n, n, w);
    }
  };
  for_each_task(parallel, (rows + kRows - 1) / kRows, 40.0 * rows * n, body);
}

}  // namespace LIGHTCONV_ISA
