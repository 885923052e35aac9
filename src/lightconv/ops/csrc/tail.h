// The tail of a convolution in one pass: out = gate * silu(y + bias) + x, each part optional.
//
// The backward pass computes z = y + bias and its sigmoid s again: keeping s would cost more.
//   a = z * s,  da/dz = s * (1 + z * (1 - s)),  grad_gate = grad * a,  grad_y = grad * gate * da/dz
// A task is a run of rows, read and written in place if they are whole vectors of the dtype of sums,
// else through scratch that stays in the first-level cache. The sums for the bias run over parts of
// the rows whose number depends on the shape alone, in a fixed order.
#pragma once
#include <type_traits>

#include "residual.h"

namespace LIGHTCONV_ISA {

template <class S>
static inline Vec<S> sigmoid(Vec<S> z) {
  const Vec<S> e = exp_nonpositive((Vec<S>)(z > S(0) ? -z : z));
  return (Vec<S>)(z > S(0) ? broadcast(S(1)) : e) / (S(1) + e);
}

// Row `row` of a tensor: in place if its numbers need no widening, else a copy in `room`. Lanes of
// a copy beyond D hold what was there.
template <class S>
static inline const S* read(const Tail& t, const void* from, int64_t row, S* room) {
  if (is_native<S>(t.dtype) && t.D % kLanes<S> == 0) return static_cast<const S*>(from) + row * t.D;
  read_row(t.dtype, from, row * t.D, t.D, room);
  return room;
}

// The reverse: memory for row `row`, and what brings it there.
template <class S>
static inline S* place(const Tail& t, void* to, int64_t row, S* room) {
  return is_native<S>(t.dtype) && t.D % kLanes<S> == 0 ? static_cast<S*>(to) + row * t.D : room;
}
template <class S>
static inline void bring(const Tail& t, void* to, int64_t row, const S* from) {
  if (!is_native<S>(t.dtype) || t.D % kLanes<S> != 0) write_row(t.dtype, to, row * t.D, t.D, from);
}

template <class S, bool kSilu, bool kGate, bool kResidual>
static void tail_forward(const Tail& t, ParallelFor parallel) {
  const int64_t wide = round_up(t.D, kLanes<S>);
  const std::vector<S> bias = widened<S>(t.bias_dtype, t.bias, t.D);
  auto body = [&](int64_t task) {
    Scratch scratch(4 * Scratch::room<S>(wide));
    S* rooms[4];
    for (S*& room : rooms) std::fill_n(room = scratch.take<S>(wide), wide, S(0));
    const int64_t end = std::min(t.rows, (task + 1) * kRowsOfTask);
    for (int64_t row = task * kRowsOfTask; row < end; ++row) {
      const S* y = read(t, t.y, row, rooms[0]);
      const S* gate = kGate ? read(t, t.gate, row, rooms[1]) : nullptr;
      const S* x = kResidual ? read(t, t.x, row, rooms[2]) : nullptr;
      S* out = place(t, t.out, row, rooms[3]);
      for_each_vector<S>(wide, [&](int64_t c) {
        Vec<S> z = load(y + c) + load(&bias[size_t(c)]);
        if constexpr (kSilu) z *= sigmoid<S>(z);
        if constexpr (kGate) z *= load(gate + c);
        if constexpr (kResidual) z += load(x + c);
        store(out + c, z);
      });
      bring(t, t.out, row, out);
    }
  };
  for_each_task(parallel, (t.rows + kRowsOfTask - 1) / kRowsOfTask, 16.0 * t.rows * t.D, body);
}

template <class S, bool kSilu, bool kGate>
static void tail_backward(const Tail& t, ParallelFor parallel) {
  const int64_t wide = round_up(t.D, kLanes<S>), parts = std::min<int64_t>(t.rows, 64);
  const std::vector<S> bias = widened<S>(t.bias_dtype, t.bias, t.D);
  std::vector<S> partial(size_t(std::max<int64_t>(parts, 1) * wide), S(0));
  auto body = [&](int64_t part) {
    Scratch scratch(5 * Scratch::room<S>(wide));
    S *rooms[5], *sum = &partial[size_t(part * wide)];
    for (S*& room : rooms) std::fill_n(room = scratch.take<S>(wide), wide, S(0));
    for (int64_t row = t.rows * part / parts; row < t.rows * (part + 1) / parts; ++row) {
      const S *grad = read(t, t.grad, row, rooms[0]), *y = read(t, t.y, row, rooms[1]);
      const S* gate = kGate ? read(t, t.gate, row, rooms[2]) : nullptr;
      S *of_y = place(t, t.grad_y, row, rooms[3]), *of_gate = place(t, t.grad_gate, row, rooms[4]);
      for_each_vector<S>(wide, [&](int64_t c) {
        Vec<S> value = load(y + c) + load(&bias[size_t(c)]), slope = broadcast(S(1));
        if constexpr (kSilu) {
          const Vec<S> s = sigmoid<S>(value);
          value *= s;
          slope = s + value * (S(1) - s);
        }
        if constexpr (kGate) {
          slope *= load(gate + c);
          if (t.grad_gate) store(of_gate + c, load(grad + c) * value);
        }
        const Vec<S> g = load(grad + c) * slope;
        store(of_y + c, g);
        store(sum + c, load(sum + c) + g);
      });
      bring(t, t.grad_y, row, of_y);
      if (kGate && t.grad_gate) bring(t, t.grad_gate, row, of_gate);
    }
  };
  for_each_task(parallel, parts, 16.0 * t.rows * t.D, body);
  if (!t.grad_bias) return;
  for (int64_t part = 1; part < parts; ++part)
    for_each_vector<S>(wide, [&](int64_t c) {
      store(&partial[size_t(c)], load(&partial[size_t(c)]) + load(&partial[size_t(part * wide + c)]));
    });
  write_row(t.bias_dtype, t.grad_bias, 0, t.D, partial.data());
}

// run(flags...) with each flag a constant.
template <class Run>
static void choose(Run run) {
  run();
}
template <class Run, class... Flags>
static void choose(Run run, bool flag, Flags... rest) {
  if (flag)
    choose([&](auto... more) { run(std::true_type{}, more...); }, rest...);
  else
    choose([&](auto... more) { run(std::false_type{}, more...); }, rest...);
}

template <class S>
static void tail_forward(const Tail& t, ParallelFor parallel) {
  auto run = [&](auto silu, auto gate, auto residual) {
    tail_forward<S, silu.value, gate.value, residual.value>(t, parallel);
  };
  choose(run, t.silu != 0, t.gate != nullptr, t.x != nullptr);
}

template <class S>
static void tail_backward(const Tail& t, ParallelFor parallel) {
  auto run = [&](auto silu, auto gate) {
    tail_backward<S, silu.value, gate.value>(t, parallel);
  };
  choose(run, t.silu != 0, t.gate != nullptr);
}

}  // namespace LIGHTCONV_ISA
