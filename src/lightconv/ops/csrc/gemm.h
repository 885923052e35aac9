// y = x W^T + b for few or many rows, float32.
//
// W is packed in panels of two vectors of outputs: all inputs of a panel lie end to end. A block of
// kRowsAtOnce rows times one panel is summed in registers over all inputs; the panel stays in the
// second-level cache while the rows pass, and meanwhile the next panel is asked for. A task is some
// panels and a range of rows.
#pragma once
#include <algorithm>

#include "program.h"
#include "vec.h"

namespace LIGHTCONV_ISA {

constexpr int kFloatColumns = 2 * kLanes<float>;
constexpr int kRowsAtOnce = VEC_BYTES == 64 ? 12 : 6;  // so that the sums fill the registers

static inline float* place(const Run& run, const Place& p, int64_t row) {
  return run.workspace + p.column * run.rows + row * p.width + p.shift;
}

static inline float* target(const Run& run, const Instruction& i, int64_t row) {
  if (!i.output) return place(run, i.to, row);
  return static_cast<float*>(run.outputs[i.output - 1]) + row * i.to.width + i.to.shift;
}

// One row's part of a panel: [relu] [+ residual], of which `columns` exist.
static inline __attribute__((always_inline)) void finish(const Run& run, const Instruction& i,
                                                         int64_t row, int64_t column,
                                                         int64_t columns, const Vec<float>* sums,
                                                         int vectors) {
  constexpr int W = kLanes<float>;
  const float* residual = i.with.column < 0 ? nullptr : place(run, i.with, row) + column;
  float* to = target(run, i, row) + column;
  for (int v = 0; v < vectors; ++v, columns -= W, to += W) {
    Vec<float> y = sums[v];
    if (i.relu) y = maximum<float>(y, Vec<float>{});
    if (columns >= W) {
      if (residual) y += load(residual + v * W);
      store(to, y);
    } else {
      for (int64_t c = 0; c < columns; ++c) to[c] = residual ? y[c] + residual[v * W + c] : y[c];
    }
  }
}

// The next panel, fetched a few cache lines at a time between the blocks of arithmetic.
struct NextPanel {
  const char* at;
  int64_t lines;  // for every kStretch steps of a block's loop

  void fetch() {
    for (int64_t i = 0; i < lines; ++i, at += 64) __builtin_prefetch(at, 0, 2);
  }
};

constexpr int64_t kStretch = 16;

template <int M>
static inline void linear_block(const Run& run, const Instruction& i, int64_t row, int64_t panel,
                                NextPanel& next) {
  constexpr int W = kLanes<float>;
  const float* w = static_cast<const float*>(i.weight) + panel * kFloatColumns * i.I;
  const float* bias = i.bias + panel * kFloatColumns;
  const float* x = place(run, i.from, row);
  const int64_t stride = i.from.width;
  Vec<float> sums[M][2];
  for (int m = 0; m < M; ++m) sums[m][0] = load(bias), sums[m][1] = load(bias + W);
  for (int64_t k = 0; k < i.I;) {
    next.fetch();
    for (const int64_t end = std::min(i.I, k + kStretch); k < end; ++k, w += kFloatColumns) {
      const Vec<float> w0 = load(w), w1 = load(w + W);
      if (M <= 4) {  // few rows: all there is to do is to fetch the weights
        __builtin_prefetch(w + 32 * W);
        __builtin_prefetch(w + 33 * W);
      }
      unroll<M>([&](auto m) {
        const Vec<float> each = broadcast(x[m * stride + k]);
        sums[m][0] += each * w0;
        sums[m][1] += each * w1;
      });
    }
  }
  const int64_t column = panel * kFloatColumns;
  for (int m = 0; m < M; ++m) finish(run, i, row + m, column, i.O - column, sums[m], 2);
}

// Calls block(rows at once, first row) until [begin, end) is covered, with few sizes of blocks.
template <class Block>
static inline void in_blocks(int64_t begin, int64_t end, Block block) {
  for (; begin + kRowsAtOnce <= end; begin += kRowsAtOnce)
    block(std::integral_constant<int, kRowsAtOnce>{}, begin);
  if constexpr (kRowsAtOnce > 8)
    for (; begin + 8 <= end; begin += 8) block(std::integral_constant<int, 8>{}, begin);
  for (; begin + 4 <= end; begin += 4) block(std::integral_constant<int, 4>{}, begin);
  for (; begin + 2 <= end; begin += 2) block(std::integral_constant<int, 2>{}, begin);
  for (; begin < end; ++begin) block(std::integral_constant<int, 1>{}, begin);
}

struct Range {
  int64_t begin, end;
};

// Panels of so many columns and bytes; `steps` is how long a block's loop is. The thread that does a
// panel usually does the next one too, be it another task.
template <class Block>
static inline void each_panel(const Instruction& i, Range rows, Range panels, int64_t columns,
                              int64_t bytes, int64_t steps, Block block) {
  const int64_t blocks = (rows.end - rows.begin) / kRowsAtOnce;
  const int64_t stretches = std::max<int64_t>(1, blocks * ((steps + kStretch - 1) / kStretch));
  for (int64_t panel = panels.begin; panel < panels.end; ++panel) {
    const bool more = blocks > 0 && (panel + 1) * columns < i.O;
    NextPanel next{static_cast<const char*>(i.weight) + (panel + 1) * bytes,
                   more ? (bytes / 64 + stretches - 1) / stretches : 0};
    in_blocks(rows.begin, rows.end, [&](auto m, int64_t row) { block(m, row, panel, next); });
  }
}

}  // namespace LIGHTCONV_ISA
