// The next n positions of a causal convolution, given a ring of the K - 1 inputs before them.
//
// A task is one batch row: it lists where the K - 1 + n input rows are (ring, then x), and for each
// head and position sums K rows of C vectors in registers, straight from memory; half precision is
// converted to scratch first. Narrow heads go W at a time, as in narrow.h. Then the newest rows go
// into the ring.
#pragma once
#include "narrow.h"

namespace LIGHTCONV_ISA {

template <class S, int C>
static inline void step_block(const S* const* rows, int64_t channel, const S* w, int64_t K, S* to) {
  constexpr int W = kLanes<S>;
  Vec<S> acc[2][C] = {};  // two sums, so that additions need not wait for each other
  int64_t j = 0;
  for (; j + 2 <= K; j += 2)
#pragma GCC unroll 8
    for (int half = 0; half < 2; ++half)
#pragma GCC unroll 8
      for (int c = 0; c < C; ++c)
        acc[half][c] += broadcast(w[j + half]) * load(rows[j + half] + channel + c * W);
  if (j < K)
    for (int c = 0; c < C; ++c) acc[0][c] += broadcast(w[j]) * load(rows[j] + channel + c * W);
  for (int c = 0; c < C; ++c) store(to + c * W, acc[0][c] + acc[1][c]);
}

template <class S>
static void step(const Step& s, ParallelFor parallel) {
  constexpr int W = kLanes<S>;
  const int64_t K = s.K, ring = K - 1, R = s.D / s.H;
  const int64_t bytes = bytes_of(s.dtype);
  const bool narrow = with_narrow<S>(R, [](auto) {});  // whole powers of two
  const int64_t width = round_up(s.D, (narrow ? R : 4) * W) + 4 * W;
  const bool direct = is_native<S>(s.dtype) && (narrow ? s.H : R) % W == 0;
  const Sink<S> sink{s.out, s.dtype, s.D, false};
  const Taps<S> taps{s.weight, s.weight_dtype, s.H, K, s.shared, s.softmax, 0, S(1), 0};
  auto body = [&](int64_t b) {
    const int64_t count = ring + s.n;
    Scratch scratch(Scratch::room<const S*>(count) + Scratch::room<S>(kSets * Taps<S>::width(K) * W) +
                    Scratch::room<S>(kVectors * W) +
                    (direct ? 0 : Scratch::room<S>(count * width)));
    const S** rows = scratch.take<const S*>(count);
    S* w = scratch.take<S>(kSets * Taps<S>::width(K) * W);
    S* staged = scratch.take<S>(kVectors * W);
    S* converted = direct ? nullptr : scratch.take<S>(count * width);
    for (int64_t i = 0; i < count; ++i) {
      const bool old = i < ring;
      const void* from = old ? s.window : s.x;
      const int64_t offset =
          (old ? b * ring + (s.position + i) % ring : b * s.n + i - ring) * s.D;
      if (direct) {
        rows[i] = static_cast<const S*>(from) + offset;
      } else {
        S* to = converted + i * width;
        read_row(s.dtype, from, offset, s.D, to);
        std::fill(to + s.D, to + width, S(0));
        rows[i] = to;
      }
    }
    with_narrow<S>(R, [&](auto channels) {
      constexpr int r = decltype(channels)::value;
      for (int64_t i = 0; i < s.n; ++i)
        for (int64_t h = 0, set = 0, sets = 0; h < s.H; h += W, ++set) {
          const int64_t heads = std::min<int64_t>(W, s.H - h), at = (b * s.n + i) * s.D + h * r;
          if (set == sets) {
            set = 0, sets = std::clamp<int64_t>((s.H - h) / W, 1, kSets);
            TapsAcross<S>{taps, h, heads, nullptr}.normalized(b * s.n + i, sets, w, true);
          }
          Vec<S> acc[r];
          unroll<r>([&](auto v) { acc[v] = Vec<S>{}; });
          for (int64_t j = 0; j < K; ++j)
            add_across<S, r>(rows[i + j] + h * r, load(w + (set * K + j) * W), acc);
          put_across<S, r>(sink, at, heads, r, acc);
        }
    });
    for (int64_t i = 0; i < s.n && !narrow; ++i)
      for (int64_t h = 0; h < s.H; ++h) {
        taps.normalized(b * s.n + i, 1, h, w);
        for_each_chunk<S>(R, [&](auto vectors, int64_t c, int64_t channels) {
          constexpr int C = decltype(vectors)::value;
          const int64_t channel = h * R + c, at = (b * s.n + i) * s.D + channel;
          if (direct) {
            step_block<S, C>(rows + i, channel, w, K, static_cast<S*>(s.out) + at);
          } else {
            step_block<S, C>(rows + i, channel, w, K, staged);
            write_row(s.dtype, s.out, at, channels, staged);
          }
        });
      }
    for (int64_t i = std::max<int64_t>(0, s.n - ring); i < s.n; ++i)
      memcpy(static_cast<char*>(s.window) + (b * ring + (s.position + i) % ring) * s.D * bytes,
             static_cast<const char*>(s.x) + (b * s.n + i) * s.D * bytes, size_t(s.D * bytes));
  };
  // Weights for every few channels take as long as the products.
  const double work = (narrow ? 4.0 : 1.0) * double(s.B) * s.n * s.D * K;
  for_each_task(parallel, s.n ? s.B : 0, work, body);
}

}  // namespace LIGHTCONV_ISA
