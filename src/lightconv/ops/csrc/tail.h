// The tail of a convolution in one pass: out = gate * silu(y + bias) + x, each part optional.
//
// The backward pass computes z = y + bias and its sigmoid s again:
//   a = z * s,  da/dz = s * (1 + z * (1 - s)),  grad_gate = grad * a,  grad_y = grad * gate * da/dz
// A task is a run of rows, widened into scratch that stays in the first-level cache. The sums for
// the bias run over parts of the rows whose number depends on the shape alone, in a fixed order.
#pragma once
#include "residual.h"

namespace LIGHTCONV_ISA {

template <class S>
static inline Vec<S> sigmoid(Vec<S> z) {
  const Vec<S> e = exp_nonpositive((Vec<S>)(z > S(0) ? -z : z));
  return (Vec<S>)(z > S(0) ? broadcast(S(1)) : e) / (S(1) + e);
}

// Rows of a task, widened; lanes beyond D are zero. `ones` if there is no such tensor.
template <class S>
static S* take_row(Scratch& scratch, int64_t wide, bool ones) {
  S* row = scratch.take<S>(wide);
  std::fill(row, row + wide, ones ? S(1) : S(0));
  return row;
}

template <class S>
static void tail_forward(const Tail& t, ParallelFor parallel) {
  const int64_t D = t.D, wide = round_up(D, kLanes<S>);
  const std::vector<S> bias = widened<S>(t.bias_dtype, t.bias, D);
  auto body = [&](int64_t task) {
    Scratch scratch(3 * Scratch::room<S>(wide));
    S *y = take_row<S>(scratch, wide, false), *gate = take_row<S>(scratch, wide, true),
      *x = take_row<S>(scratch, wide, false);
    const int64_t end = std::min(t.rows, (task + 1) * kRowsOfTask);
    for (int64_t row = task * kRowsOfTask; row < end; ++row) {
      read_row(t.dtype, t.y, row * D, D, y);
      if (t.gate) read_row(t.dtype, t.gate, row * D, D, gate);
      if (t.x) read_row(t.dtype, t.x, row * D, D, x);
      for_each_vector<S>(wide, [&](int64_t c) {
        Vec<S> z = load(y + c) + load(&bias[size_t(c)]);
        if (t.silu) z *= sigmoid<S>(z);
        if (t.gate) z *= load(gate + c);
        store(y + c, t.x ? z + load(x + c) : z);
      });
      write_row(t.dtype, t.out, row * D, D, y);
    }
  };
  for_each_task(parallel, (t.rows + kRowsOfTask - 1) / kRowsOfTask, 16.0 * t.rows * D, body);
}

template <class S>
static void tail_backward(const Tail& t, ParallelFor parallel) {
  const int64_t D = t.D, wide = round_up(D, kLanes<S>), parts = std::min<int64_t>(t.rows, 64);
  const std::vector<S> bias = widened<S>(t.bias_dtype, t.bias, D);
  std::vector<S> partial(size_t(std::max<int64_t>(parts, 1) * wide), S(0));
  auto body = [&](int64_t part) {
    Scratch scratch(3 * Scratch::room<S>(wide));
    S *y = take_row<S>(scratch, wide, false), *gate = take_row<S>(scratch, wide, true),
      *g = take_row<S>(scratch, wide, false), *sum = &partial[size_t(part * wide)];
    for (int64_t row = t.rows * part / parts; row < t.rows * (part + 1) / parts; ++row) {
      read_row(t.dtype, t.grad, row * D, D, g);
      if (t.silu || t.grad_gate) read_row(t.dtype, t.y, row * D, D, y);
      if (t.gate) read_row(t.dtype, t.gate, row * D, D, gate);
      for_each_vector<S>(wide, [&](int64_t c) {
        const Vec<S> z = load(y + c) + load(&bias[size_t(c)]), grad = load(g + c);
        Vec<S> value = z, slope = broadcast(S(1));
        if (t.silu) {
          const Vec<S> s = sigmoid<S>(z);
          value = z * s;
          slope = s + value * (S(1) - s);
        }
        if (t.gate) slope *= load(gate + c);
        const Vec<S> of_y = grad * slope;
        store(g + c, of_y);
        store(y + c, grad * value);
        store(sum + c, load(sum + c) + of_y);
      });
      write_row(t.dtype, t.grad_y, row * D, D, g);
      if (t.grad_gate) write_row(t.dtype, t.grad_gate, row * D, D, y);
    }
  };
  for_each_task(parallel, parts, 16.0 * t.rows * D, body);
  if (!t.grad_bias) return;
  for (int64_t part = 1; part < parts; ++part)
    for_each_vector<S>(wide, [&](int64_t c) {
      store(&partial[size_t(c)], load(&partial[size_t(c)]) + load(&partial[size_t(part * wide + c)]));
    });
  write_row(t.bias_dtype, t.grad_bias, 0, D, partial.data());
}

}  // namespace LIGHTCONV_ISA
