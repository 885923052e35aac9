// Convolution with one kernel per head for every position (no DropConnect: dynamic.h has that).
//
//   out[t, c]    = sum_j w[h, j] x[t + j - left, c]
//   grad_x       = the same sum over grad with the taps reversed
//   grad_w[h, j] = sum_t,c grad[t, c] x[t + j - left, c]
//
// The weights are spread out once, one number per channel, so that any number of heads (also
// H = D, a depthwise convolution) runs the same loop. A task is one tile of positions and one chunk
// of channels; it packs its rows, unless few taps read them, and computes both gradients of a chunk
// while it is in the cache. Taps that no position reaches (K > T) are left out before.
// Innermost, kPositions sums of one vector of channels stay in registers while the taps run, of two in
// 16 bits, so that whole lines are written; for grad_w the sums of kTaps taps, while the positions run.
// Taps come a few at a time, so that a row is loaded once for as many.
#pragma once
#include "dynamic.h"

namespace LIGHTCONV_ISA {

constexpr int kPositions = 8;
constexpr int kTaps = 8;

// Calls visit(chunk, first channel within it, channels) for the chunks that [begin, end) touches.
template <class Visit>
static inline void for_each_run(int64_t begin, int64_t end, int64_t chunk, Visit visit) {
  for (int64_t c = begin; c < end;) {
    const int64_t n = std::min(end - c, chunk - c % chunk);
    visit(c / chunk, c % chunk, n);
    c += n;
  }
}

// Calls run(problem) with only the taps that some position of the longest sequence reaches; the
// gradients of the others are zero.
template <class S, class Run>
static void with_reached_taps(const Problem& p, Run run) {
  int64_t longest = p.offsets ? 0 : p.T;
  for (int64_t i = 0; p.offsets && i < p.sequences; ++i)
    longest = std::max(longest, p.offsets[i + 1] - p.offsets[i]);
  const int64_t from = std::clamp<int64_t>(p.left - longest + 1, 0, p.K - 1);
  const int64_t to = std::clamp<int64_t>(p.left + longest, from + 1, p.K), K = to - from;
  if (K == p.K) return run(p);
  std::vector<S> weight(size_t(p.H * K)), grad(p.grad_weight ? weight.size() : 0);
  for (int64_t h = 0; h < p.H; ++h)
    read_row(p.weight_dtype, p.weight, h * p.K + from, K, &weight[size_t(h * K)]);
  Problem reached = p;
  reached.K = K;
  reached.left -= from;
  reached.weight = weight.data();
  reached.weight_dtype = sizeof(S) == 8 ? kFloat64 : kFloat32;
  if (p.grad_weight) reached.grad_weight = grad.data();
  run(reached);
  std::vector<S> row(static_cast<size_t>(p.K), S(0));
  for (int64_t h = 0; p.grad_weight && h < p.H; ++h) {
    std::copy_n(&grad[size_t(h * K)], K, &row[size_t(from)]);
    write_row(p.weight_dtype, p.grad_weight, h * p.K, p.K, row.data());
  }
}

template <class S>
struct alignas(64) Line {
  S numbers[64 / sizeof(S)];
};

// [chunk][K][chunk width]; `reversed` for grad_x.
template <class S>
static std::vector<Line<S>> spread(const Problem& p, int64_t chunk, bool reversed) {
  const int64_t K = p.K, R = p.D / p.H, chunks = (p.D + chunk - 1) / chunk;
  std::vector<Line<S>> wide((size_t(chunks * K * chunk) * sizeof(S) + 63) / 64);
  std::vector<S> row(static_cast<size_t>(K));
  for (int64_t h = 0; h < p.H; ++h) {
    read_row(p.weight_dtype, p.weight, h * K, K, row.data());
    for_each_run(h * R, (h + 1) * R, chunk, [&](int64_t which, int64_t begin, int64_t n) {
      for (int64_t k = 0; k < K; ++k)
        std::fill_n(reinterpret_cast<S*>(wide.data()) + (which * K + k) * chunk + begin, n,
                    row[size_t(reversed ? K - 1 - k : k)]);
    });
  }
  return wide;
}

// Positions [0, n) of a tile and `channels` of a chunk, from rows `row` apart: position i reads rows
// i .. i + K - 1. There are rows up to round_up(n, kPositions) + K - 1.
template <class S, class E>
static void convolve_chunk(const Problem& p, const E* x, int64_t row, const S* w, int64_t n,
                           int64_t channels, const Sink<S>& sink, int64_t origin, Ahead& ahead) {
  constexpr int W = kLanes<S>;
  constexpr int64_t chunk = kVectors * W;
  auto block = [&](int64_t i, int64_t c, auto abreast) __attribute__((always_inline)) {
    constexpr int A = decltype(abreast)::value, P = VEC_BYTES == 64 ? kPositions : kPositions / A;
    for (int64_t end = i + kPositions; i < end; i += P) {
      for (int call = 0; call < A * P / kPositions; ++call) ahead.some();
      Vec<S> acc[P][A];
      unroll<P>([&](auto q) { unroll<A>([&](auto v) { acc[q][v] = Vec<S>{}; }); });
      int64_t j = 0;
      auto add_taps = [&](auto taps) __attribute__((always_inline)) {
        constexpr int Q = decltype(taps)::value;
        for (; j + Q <= p.K; j += Q)
          unroll<A>([&](auto v) __attribute__((always_inline)) {
            const E* rows = x + (i + j) * row + c + v * W;
            Vec<S> weight[Q];
            unroll<Q>([&](auto q) { weight[q] = load(w + (j + q) * chunk + c + v * W); });
            unroll<P + Q - 1>([&](auto r) __attribute__((always_inline)) {
              const Vec<S> one = load_as<S>(rows + r * row);
              unroll<Q>([&](auto q) {
                constexpr int at = decltype(r)::value - decltype(q)::value;
                if constexpr (at >= 0 && at < P) acc[at][v] += weight[q] * one;
              });
            });
          });
      };
      if constexpr (VEC_BYTES == 64) {  // smaller vectors are fewer, too
        add_taps(std::integral_constant<int, 8>{});
        add_taps(std::integral_constant<int, 7>{});
        add_taps(std::integral_constant<int, 3>{});
      }
      add_taps(std::integral_constant<int, 1>{});
      sink.open([&](auto put) __attribute__((always_inline)) {
        if (i + P <= n && c + A * W <= channels)
          return unroll<P>([&](auto q) __attribute__((always_inline)) {
            unroll<A>([&](auto v) __attribute__((always_inline)) {
              put(origin + (i + q) * p.D + c + v * W, acc[q][v], W);
            });
          });
        unroll<P>([&](auto q) __attribute__((always_inline)) {
          if (i + q >= n) return;
          unroll<A>([&](auto v) __attribute__((always_inline)) {
            const int64_t from = c + v * W;
            put(origin + (i + q) * p.D + from, acc[q][v], std::min<int64_t>(W, channels - from));
          });
        });
      });
    }
  };
  const bool half = bytes_of(p.dtype) == 2;
  for (int64_t i = 0; i < n; i += kPositions)
    for (int64_t c = 0; c < channels; c += W)
      if (half && channels - c > W) block(i, c, std::integral_constant<int, 2>{}), c += W;
      else block(i, c, std::integral_constant<int, 1>{});
}

// sums[j] += grad[t] * x[t + j] over positions [0, n), channel by channel, for K taps; there are
// packed rows of x up to n + round_up(K, kTaps) - 1.
template <class S>
static void add_products(const S* x, const S* grad, int64_t n, int64_t K, int64_t channels, S* sums,
                         Ahead& ahead) {
  constexpr int W = kLanes<S>;
  constexpr int64_t chunk = kVectors * W;
  for (int64_t c = 0; c < channels; c += W)
    for (int64_t j = 0; j < K; j += kTaps) {
      ahead.some();
      Vec<S> acc[kTaps];
      unroll<kTaps>([&](auto q) { acc[q] = load(sums + (j + q) * chunk + c); });
      int64_t t = 0;
      auto add_positions = [&](auto positions) __attribute__((always_inline)) {
        constexpr int P = decltype(positions)::value;
        for (; t + P <= n; t += P) {
          Vec<S> g[P];
          unroll<P>([&](auto q) { g[q] = load(grad + (t + q) * chunk + c); });
          unroll<P + kTaps - 1>([&](auto r) __attribute__((always_inline)) {
            const Vec<S> one = load(x + (t + j + r) * chunk + c);
            unroll<kTaps>([&](auto q) {
              constexpr int at = decltype(r)::value - decltype(q)::value;
              if constexpr (at >= 0 && at < P) acc[q] += g[at] * one;
            });
          });
        }
      };
      add_positions(std::integral_constant<int, VEC_BYTES == 64 ? 8 : 1>{});
      add_positions(std::integral_constant<int, 1>{});
      unroll<kTaps>([&](auto q) { store(sums + (j + q) * chunk + c, acc[q]); });
    }
}

template <class S>
static void shared_forward(const Problem& p, ParallelFor parallel) {
  constexpr int64_t chunk = kVectors * kLanes<S>;
  const int64_t K = p.K, chunks = (p.D + chunk - 1) / chunk;
  const std::vector<Line<S>> wide = spread<S>(p, chunk, false);
  const S* weights = reinterpret_cast<const S*>(wide.data());
  const std::vector<Tile> tiles = cut(p);
  const Sink<S> sink = sink_for<S>(p.out, p, kLanes<S>);
  auto body = [&](int64_t task) {
    const Tile& tile = tiles[size_t(task / chunks)];
    const int64_t n = tile.end - tile.begin, which = task % chunks, channel = which * chunk;
    const int64_t channels = std::min(chunk, p.D - channel), padded = round_up(n, kPositions);
    Scratch scratch(Scratch::room<S>((kTile + K - 1) * chunk));
    S* x = scratch.take<S>((kTile + K - 1) * chunk);
    const View view = view_of_x(p, tile);
    Ahead ahead;
    if (size_t(task + 1) < tiles.size() * size_t(chunks)) {
      const Tile& next = tiles[size_t((task + 1) / chunks)];
      const int64_t c = (task + 1) % chunks * chunk;
      ahead.rows(view_of_x(p, next), next, std::max<int64_t>(0, K - 1 - p.left), c,
                 std::min(chunk, p.D - c));
      ahead.spread_over(padded / kPositions * kVectors);
    }
    // Few taps read a row so few times that copying it, or converting it once, does not pay.
    constexpr int64_t kFewTaps = 8;
    const bool few = K <= kFewTaps && channels == chunk;
    for (int64_t i = 0, some; i < n; i += some) {
      const int64_t first = tile.begin + i - p.left, after = tile.length - first - (K - 1);
      const bool in_place = few && first >= 0 && after >= kPositions;
      some = in_place ? std::min(padded - i, after / kPositions * kPositions) : few ? kPositions : padded;
      auto convolve = [&](const auto* rows, int64_t row) {
        convolve_chunk<S>(p, rows, row, weights + which * K * chunk, std::min(some, n - i),
                          channels, sink,
                          (p.T * tile.batch + tile.start + tile.begin + i) * p.D + channel, ahead);
      };
      if (in_place) {
        with_numbers<S>(p.dtype, p.x, [&](const auto* from) {
          convolve(from + view.origin + first * view.row + channel, view.row);
        });
      } else {
        pack<S, chunk>(x, view, first, first + some + K - 1, channel, channels);
        convolve(x, chunk);
      }
    }
  };
  for_each_task(parallel, int64_t(tiles.size()) * chunks, double(p.B) * p.T * p.D * K, body);
}

// Both gradients in one pass, so that grad is read from memory once. A task is a part of the tiles
// and a group of neighbouring chunks; how many there are depends on the shape alone, never on the
// threads.
template <class S>
static void shared_backward(const Problem& p, ParallelFor parallel) {
  constexpr int W = kLanes<S>;
  constexpr int64_t chunk = kVectors * W;
  const int64_t K = p.K, R = p.D / p.H, chunks = (p.D + chunk - 1) / chunk;
  const int64_t right = K - 1 - p.left;  // position t of grad_x reads grad from t - right on
  const std::vector<Line<S>> wide = spread<S>(p, chunk, true);
  const S* weights = reinterpret_cast<const S*>(wide.data());
  const std::vector<Tile> tiles = cut(p);
  const int64_t count = int64_t(tiles.size());
  constexpr int64_t kGroup = 4;
  const int64_t groups = (chunks + kGroup - 1) / kGroup;
  const int64_t parts = std::min(count, std::max<int64_t>(1, 32 / groups));
  const int64_t taps = round_up(K, kTaps), rows = kTile + taps - 1;
  const int64_t size = chunks * taps * chunk;
  std::vector<S> partial(p.grad_weight ? size_t(std::max<int64_t>(parts, 1) * size) : 0, S(0));
  const Sink<S> sink = sink_for<S>(p.grad_x, p, W);
  auto one = [&](const Tile& tile, int64_t which, const Tile* next, int64_t next_which, S* x, S* g,
                 S* sums) {
    const int64_t channel = which * chunk, channels = std::min(chunk, p.D - channel);
    const int64_t n = tile.end - tile.begin, padded = round_up(n, kPositions);
    const int64_t position = p.T * tile.batch + tile.start + tile.begin;
    Ahead ahead;
    if (next) {
      const int64_t c = next_which * chunk, few = std::min(chunk, p.D - c);
      if (p.grad_weight)
        ahead.rows(view_of_x(p, *next), *next, std::max<int64_t>(0, right), c, few);
      ahead.rows(view_of_grad(p, *next), *next, p.grad_x ? p.left : 0, c, few);
      ahead.spread_over(kVectors * ((p.grad_x ? padded / kPositions : 0) +
                                    (p.grad_weight ? taps / kTaps : 0)));
    }
    const S* own = g;
    if (p.grad_x) {
      const int64_t first = tile.begin - right;
      pack<S, chunk>(g, view_of_grad(p, tile), first, first + padded + K - 1, channel, channels);
      convolve_chunk<S>(p, g, chunk, weights + which * K * chunk, n, channels, sink,
                        position * p.D + channel, ahead);
      own = g + right * chunk;
    }
    if (!p.grad_weight) return;
    if (!p.grad_x || right < 0) {  // the tile's own rows are not among those that grad_x reads
      pack<S, chunk>(g, view_of_grad(p, tile), tile.begin, tile.end, channel, channels);
      own = g;
    }
    const int64_t first = tile.begin - p.left;
    pack<S, chunk>(x, view_of_x(p, tile), first, first + n + taps - 1, channel, channels);
    add_products<S>(x, own, n, K, channels, sums, ahead);
  };
  auto body = [&](int64_t task) {
    const int64_t part = task / groups, group = task % groups;
    Scratch scratch(2 * Scratch::room<S>(rows * chunk));
    S* x = scratch.take<S>(rows * chunk);
    S* g = scratch.take<S>(rows * chunk);
    const int64_t end = count * (part + 1) / parts, from = group * kGroup;
    const int64_t to = std::min(chunks, from + kGroup);
    for (int64_t index = count * part / parts; index < end; ++index)
      for (int64_t which = from; which < to; ++which) {
        const bool last = which + 1 == to;
        const int64_t after = last ? index + 1 : index;
        one(tiles[size_t(index)], which, after < end ? &tiles[size_t(after)] : nullptr,
            last ? from : which + 1, x, g,
            p.grad_weight ? partial.data() + (part * chunks + which) * taps * chunk : nullptr);
      }
  };
  const double work = double(p.B) * p.T * p.D * K;
  for_each_task(parallel, parts * groups, p.grad_x && p.grad_weight ? 2 * work : work, body);
  if (!p.grad_weight) return;
  // The parts in a fixed order, then the channels of each head: the same sum on any machine with
  // vectors of this width, however many threads there are.
  for (int64_t part = 1; part < parts; ++part)
    for (int64_t i = 0; i < size; i += W)
      store(&partial[size_t(i)],
            load(&partial[size_t(i)]) + load(&partial[size_t(part * size + i)]));
  std::vector<S> row(static_cast<size_t>(K));
  for (int64_t h = 0; h < p.H; ++h) {
    std::fill(row.begin(), row.end(), S(0));
    for_each_run(h * R, (h + 1) * R, chunk, [&](int64_t which, int64_t begin, int64_t n) {
      for (int64_t k = 0; k < K; ++k)
        row[size_t(k)] += sum_of(&partial[size_t((which * taps + k) * chunk + begin)], n);
    });
    write_row(p.weight_dtype, p.grad_weight, h * K, K, row.data());
  }
}

}  // namespace LIGHTCONV_ISA
