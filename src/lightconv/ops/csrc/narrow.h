// Convolution whose weights differ from position to position, for heads of fewer channels than a
// vector has lanes: vectors run across heads. The sums are those of dynamic.h.
//
// A task is one tile of positions and a unit of W heads, that is R vectors of channels. The unit's
// weights of a position, [W][K] in memory, are turned to [K][W]: softmax and DropConnect work on a
// vector of heads, and a tap of all channels is R permutations of one vector. grad_w sums runs of R
// lanes and is turned back. Only taps that exist are computed, so rows outside the sequence are
// never read; few taps are read where they are, more are packed, since rows a page apart share one
// set of the cache. Heads of 3, 5, 6, ... channels are packed with room for R, the next power of two.
#pragma once
#include "dynamic.h"

namespace LIGHTCONV_ISA {

// The room R of a head of `channels` channels, or 0 if a vector for each head is as good.
template <class S>
static inline int64_t narrow_room(int64_t channels, int64_t heads) {
  int64_t room = 1;
  while (room < channels) room *= 2;
  return room < kLanes<S> && (room == channels || heads >= room) ? room : 0;
}

// Calls visit(R); false for an R that this file is not for.
template <class S, int R = kLanes<S> / 2, class Visit>
static inline bool with_narrow(int64_t room, Visit visit) {
  if constexpr (R == 0) {
    return false;
  } else {
    if (room != R) return with_narrow<S, R / 2>(room, visit);
    visit(std::integral_constant<int, R>{});
    return true;
  }
}

// Calls visit(the power of two from `taps` on), at most kMost.
template <class S, int kMost = kLanes<S>, int N = 1, class Visit>
static inline __attribute__((always_inline)) void with_power(int64_t taps, Visit visit) {
  if (N == kMost || taps <= N) visit(std::integral_constant<int, N>{});
  else if constexpr (N < kMost) with_power<S, kMost, 2 * N>(taps, visit);
}

// The first r of every R lanes.
template <class S, int R>
static constexpr uint32_t used_lanes(int64_t r) {
  return ((uint32_t(1) << r) - 1) * (((uint32_t(1) << kLanes<S>) - 1) / ((uint32_t(1) << R) - 1));
}

// Lanes 0, 1, ... of v to the lanes in `used`, zeros between; and back.
template <class S>
static inline Vec<S> expand(Vec<S> v, uint32_t used) {
#if defined(__AVX512F__)
  if constexpr (sizeof(S) == 4) return (Vec<S>)_mm512_maskz_expand_ps(__mmask16(used), (__m512)v);
  else return (Vec<S>)_mm512_maskz_expand_pd(__mmask8(used), (__m512d)v);
#else
  Vec<S> to{};
  for (int i = 0, from = 0; i < kLanes<S>; ++i)
    if (used >> i & 1) to[i] = v[from++];
  return to;
#endif
}
template <class S>
static inline Vec<S> compress(Vec<S> v, uint32_t used) {
#if defined(__AVX512F__)
  if constexpr (sizeof(S) == 4) return (Vec<S>)_mm512_maskz_compress_ps(__mmask16(used), (__m512)v);
  else return (Vec<S>)_mm512_maskz_compress_pd(__mmask8(used), (__m512d)v);
#else
  Vec<S> to{};
  for (int i = 0, at = 0; i < kLanes<S>; ++i)
    if (used >> i & 1) to[at++] = v[i];
  return to;
#endif
}

// Up to W taps of [heads][K] in memory -> a vector of W heads for each, zero for heads that do not
// exist. N is the power of two from the taps on: as many vectors have room for them.
template <class S, int N, class E>
static inline void turn_taps(const E* from, int64_t K, int64_t taps, int64_t heads, Vec<S>* v) {
  constexpr int W = kLanes<S>, kHeads = W / N;
  unroll<N>([&](auto i) {
    const int64_t here = std::clamp<int64_t>(heads - i * kHeads, 0, kHeads) * taps;
    v[i] = load_as<S>(from + i * kHeads * K, here);
    if (N < W && taps < N) v[i] = expand<S>(v[i], used_lanes<S, N>(taps));
  });
  to_columns<S, N>(v);
}

// All K taps, [K][W], W at a time; and back.
template <class S, class E>
static void turn(const E* from, int64_t K, int64_t heads, S* to) {
  constexpr int W = kLanes<S>;
  for (int64_t first = 0; first < K; first += W, from += W, to += W * W)
    with_power<S>(K, [&](auto power) {
      const int64_t taps = std::min<int64_t>(W, K - first);
      Vec<S> v[power];
      turn_taps<S, power>(from, K, taps, heads, v);
      unroll<power>([&](auto k) {
        if (k < taps) store(to + k * W, v[k]);
      });
    });
}

template <class S, class E>
static void turn_back(const S* from, int64_t K, int64_t heads, E* to) {
  constexpr int W = kLanes<S>;
  for (int64_t first = 0; first < K; first += W, from += W * W, to += W)
    with_power<S>(K, [&](auto power) {
      constexpr int N = decltype(power)::value, kHeads = W / N;
      const int64_t taps = std::min<int64_t>(W, K - first);
      Vec<S> v[N];
      unroll<N>([&](auto k) { v[k] = k < taps ? load(from + k * W) : Vec<S>{}; });
      to_rows<S, N>(v);
      unroll<N>([&](auto i) {
        const int64_t here = std::clamp<int64_t>(heads - i * kHeads, 0, kHeads) * taps;
        if (N < W && taps < N) v[i] = compress<S>(v[i], used_lanes<S, N>(taps));
        store_as<S>(to + i * kHeads * K, v[i], here);
      });
    });
}

// The weights of W heads from head h on, [K][W] for each position.
template <class S>
struct TapsAcross {
  const Taps<S>& taps;
  int64_t h, heads;
  S* space;  // as much as two positions' weights

  // n positions from `row` on, or n units of W heads of one position.
  void normalized(int64_t row, int64_t n, S* to, bool units = false) const {
    constexpr int W = kLanes<S>, kFew = std::min(8, W);
    const int64_t K = taps.K, step = units ? K * W : taps.shared ? 0 : taps.H * K;
    with_elements<S>(taps.dtype, taps.weight, [&](const auto* from) {
      from += (taps.shared ? h : row * taps.H + h) * K;
      if (taps.softmax && K <= kFew)
        return with_power<S, kFew>(K, [&](auto power) { soften_few<power>(from, step, n, to); });
      for (int64_t i = 0; i < n; ++i, to += K * W) {
        turn(from + i * step, K, heads, to);
        if (taps.softmax) soften(to);
      }
    });
  }

  void soften(S* to) const {
    constexpr int W = kLanes<S>;
    Vec<S> most = load(to), total{};
    for (int64_t k = 1; k < taps.K; ++k) most = maximum<S>(most, load(to + k * W));
    for (int64_t k = 0; k < taps.K; ++k) {
      const Vec<S> e = exp_nonpositive(load(to + k * W) - most);
      total += e;
      store(to + k * W, e);
    }
    const Vec<S> share = broadcast(S(1)) / total;
    for (int64_t k = 0; k < taps.K; ++k) store(to + k * W, load(to + k * W) * share);
  }

  // In registers, up to N taps and more than N / 2. Two sets at once: one waits for its exponentials
  // while the other computes.
  template <int N, class E>
  void soften_few(const E* from, int64_t step, int64_t n, S* to) const {
    constexpr int W = kLanes<S>;
    const int64_t K = taps.K;
    int64_t set = 0;
    auto some = [&](auto sets) __attribute__((always_inline)) {
      constexpr int M = decltype(sets)::value;
      auto each = [&](auto visit) __attribute__((always_inline)) {
        unroll<N>([&](auto k) __attribute__((always_inline)) {
          if (k <= N / 2 || k < K) unroll<M>([&](auto m) __attribute__((always_inline)) { visit(m, k); });
        });
      };
      for (; set + M <= n; set += M, to += M * K * W) {
        Vec<S> v[M][N], most[M], total[M] = {};
        unroll<M>([&](auto m) {
          turn_taps<S, N>(from + (set + m) * step, K, K, heads, v[m]);
          most[m] = v[m][0];
        });
        each([&](auto m, auto k) __attribute__((always_inline)) {
          most[m] = maximum<S>(most[m], v[m][k]);
        });
        each([&](auto m, auto k) __attribute__((always_inline)) {
          total[m] += v[m][k] = exp_nonpositive(v[m][k] - most[m]);
        });
        unroll<M>([&](auto m) { total[m] = broadcast(S(1)) / total[m]; });
        each([&](auto m, auto k) __attribute__((always_inline)) {
          store(to + (m * K + k) * W, v[m][k] * total[m]);
        });
      }
    };
    if constexpr (VEC_BYTES == 64 && N <= 4) some(std::integral_constant<int, 2>{});
    some(std::integral_constant<int, 1>{});
  }

  void dropped(int64_t row, int64_t n, S* to) const {
    constexpr int W = kLanes<S>;
    const int64_t K = taps.K;
    if (!taps.drop) return;
    S* turned = space + K * W;
    for (int64_t i = 0; i < n; ++i, to += K * W) {
      drop_factors(taps.seed, uint64_t(((row + i) * taps.H + h) * K), heads * K,
                   uint32_t(taps.drop), taps.keep_scale, space);
      turn(space, K, heads, turned);
      for (int64_t k = 0; k < K * W; k += W) store(to + k, load(to + k) * load(turned + k));
    }
  }

  void effective(int64_t row, int64_t n, S* to) const {
    normalized(row, n, to);
    dropped(row, n, to);
  }
};

// Rows of a unit's channels by position.
template <class S>
struct Rows {
  const S* data;
  int64_t row, first;
  const S* at(int64_t position) const { return data + (position - first) * row; }
};

// Rows of `heads` heads of r channels, of those positions of [first, last) that exist: packed into
// `space` unless they can be read in place.
template <class S, int R>
static Rows<S> rows_of(const View& view, int64_t first, int64_t last, int64_t channel, int64_t heads,
                       int64_t r, int64_t K, S* space) {
  constexpr int64_t kFewTaps = 8, width = R * kLanes<S>;
  const int64_t n = heads * r;
  if (is_native<S>(view.dtype) && n == width && K <= kFewTaps)
    return {static_cast<const S*>(view.data) + view.origin + channel, view.row, 0};
  first = std::clamp<int64_t>(first, 0, view.length);
  last = std::clamp<int64_t>(last, first, view.length);
  if (r == R) {
    pack<S, width>(space, view, first, last, channel, n);
    return {space, width, first};
  }
  const int64_t some = kLanes<S> / R * r;  // of a vector
  const uint32_t used = used_lanes<S, R>(r);
  with_elements<S>(view.dtype, view.data, [&](const auto* from) {
    from += view.origin + channel + first * view.row;
    S* to = space;
    for (int64_t t = first; t < last; ++t, from += view.row, to += width)
      unroll<R>([&](auto i) {
        const int64_t here = std::clamp<int64_t>(n - i * some, 0, some);
        store(to + i * kLanes<S>, expand<S>(load_as<S>(from + i * some, here), used));
      });
  });
  return {space, width, first};
}

// One row of R vectors of channels, times the weights of its heads.
template <class S, int R>
static inline __attribute__((always_inline)) void add_across(const S* row, Vec<S> weight, Vec<S>* acc) {
  unroll<R>([&](auto v) {
    acc[v] += repeat_lanes<S, R, decltype(v)::value>(weight, EachLane<S>{}) * load(row + v * kLanes<S>);
  });
}

// The sum of `taps` rows, tap j with the weights w + j * step.
template <class S, int R>
static inline __attribute__((always_inline)) void sum_across(const S* rows, int64_t row, const S* w,
                                                            int64_t step, int64_t taps, Vec<S>* acc) {
  unroll<R>([&](auto v) { acc[v] = Vec<S>{}; });
  for (int64_t j = 0; j < taps; ++j, rows += row, w += step) add_across<S, R>(rows, load(w), acc);
}

// The results of `heads` heads of r channels.
template <class S, int R>
static inline void put_across(const Sink<S>& sink, int64_t at, int64_t heads, int64_t r,
                              const Vec<S>* v) {
  const int64_t some = kLanes<S> / R * r, channels = heads * r;
  const uint32_t used = r == R ? 0 : used_lanes<S, R>(r);
  sink.open([&](auto put) __attribute__((always_inline)) {
    unroll<R>([&](auto i) __attribute__((always_inline)) {
      const int64_t from = i * some;
      if (from < channels)
        put(at + from, r == R ? v[i] : compress<S>(v[i], used), std::min(some, channels - from));
    });
  });
}

template <class S>
static void ask_across(Ahead& ahead, const Problem& p, const void* from, const Tile& next,
                       int64_t shift, int64_t h) {
  const int64_t row = p.T * next.batch + next.start + std::min(next.begin + shift, next.length);
  const int64_t n = std::min(next.end + shift, next.length) - std::min(next.begin + shift, next.length);
  ahead.region(from, p.weight_dtype, (row * p.H + h) * p.K,
               std::min<int64_t>(kLanes<S>, p.H - h) * p.K, n, p.H * p.K);
}

constexpr int64_t kSets = 4;  // of weights, made at once

template <class S, int R>
static void narrow_forward(const Problem& p, ParallelFor parallel) {
  constexpr int W = kLanes<S>;
  constexpr int64_t width = R * W;
  const int64_t K = p.K, units = (p.H + W - 1) / W, r = p.D / p.H;
  const std::vector<Tile> tiles = cut(p);
  const Taps<S> taps = taps_of<S>(p);
  const Sink<S> sink = sink_for<S>(p.out, p, r * W);
  auto body = [&](int64_t task) {
    const Tile& tile = tiles[size_t(task / units)];
    const int64_t h = task % units * W, heads = std::min<int64_t>(W, p.H - h), channel = h * r;
    const int64_t position = p.T * tile.batch + tile.start, first = tile.begin - p.left;
    Scratch scratch(Scratch::room<S>((kSets + 2) * K * W) + Scratch::room<S>((kTile + K - 1) * width));
    S* w = scratch.take<S>(kSets * K * W);
    const TapsAcross<S> across{taps, h, heads, scratch.take<S>(2 * K * W)};
    const View view = view_of_x(p, tile);
    Ahead ahead;
    if (size_t(task + 1) < tiles.size() * size_t(units)) {
      const Tile& next = tiles[size_t((task + 1) / units)];
      const int64_t next_h = (task + 1) % units * W;
      ahead.rows(view, next, std::max<int64_t>(0, K - 1 - p.left), next_h * r, r * W);
      ask_across<S>(ahead, p, p.weight, next, 0, next_h);
      ahead.spread_over(tile.end - tile.begin);
    }
    const Rows<S> rows = rows_of<S, R>(view, first, tile.end - p.left + K - 1, channel, heads, r, K,
                                       scratch.take<S>((kTile + K - 1) * width));
    for (int64_t t = tile.begin; t < tile.end; ++t) {
      ahead.some();
      const int64_t set = (t - tile.begin) % kSets;
      if (set == 0) across.effective(position + t, std::min(kSets, tile.end - t), w);
      const int64_t from = std::clamp<int64_t>(p.left - t, 0, K);
      const int64_t to = std::clamp<int64_t>(tile.length + p.left - t, from, K);
      Vec<S> acc[R];
      sum_across<S, R>(rows.at(t - p.left + from), rows.row, w + (set * K + from) * W, W, to - from,
                       acc);
      put_across<S, R>(sink, (position + t) * p.D + channel, heads, r, acc);
    }
  };
  for_each_task(parallel, int64_t(tiles.size()) * units, double(p.B) * p.T * p.D * K, body);
}

template <class S, int R>
static void narrow_backward(const Problem& p, ParallelFor parallel) {
  constexpr int W = kLanes<S>;
  constexpr int64_t width = R * W;
  const int64_t K = p.K, left = p.left, units = (p.H + W - 1) / W, size = K * W, r = p.D / p.H;
  const std::vector<Tile> tiles = cut(p);
  const Taps<S> taps = taps_of<S>(p);
  const Sink<S> sink = sink_for<S>(p.grad_x, p, r * W);
  const int64_t rows = kTile + K - 1;
  auto body = [&](int64_t task) {
    const Tile& tile = tiles[size_t(task / units)];
    const int64_t h = task % units * W, heads = std::min<int64_t>(W, p.H - h), channel = h * r;
    const int64_t position = p.T * tile.batch + tile.start;
    Scratch scratch(2 * Scratch::room<S>(rows * width) + Scratch::room<S>(rows * size) +
                    Scratch::room<S>(2 * size) + 2 * Scratch::room<S>(size));
    S* x_space = scratch.take<S>(rows * width);
    S* g_space = scratch.take<S>(rows * width);
    S* w = scratch.take<S>(rows * size);  // of the positions that read the tile
    const TapsAcross<S> across{taps, h, heads, scratch.take<S>(2 * size)};
    S* gw = scratch.take<S>(size);
    S* own = scratch.take<S>(size);
    Ahead ahead;
    if (size_t(task + 1) < tiles.size() * size_t(units)) {
      const Tile& next = tiles[size_t((task + 1) / units)];
      const int64_t next_h = (task + 1) % units * W, shift = p.grad_x ? left : 0;
      ahead.rows(view_of_grad(p, next), next, shift, next_h * r, r * W);
      ask_across<S>(ahead, p, p.weight, next, shift, next_h);
      if (p.grad_weight)
        ahead.rows(view_of_x(p, next), next, std::max<int64_t>(0, K - 1 - left), next_h * r, r * W);
      ahead.spread_over(tile.end - tile.begin);
    }
    // The positions [first, last) read the tile.
    const int64_t first = std::clamp<int64_t>(tile.begin + left - (K - 1), 0, tile.length);
    const int64_t last = std::clamp<int64_t>(tile.end + left, first, tile.length);
    const bool within = p.grad_x && left < K;  // the tile's own positions are among them
    Rows<S> g = rows_of<S, R>(view_of_grad(p, tile), p.grad_x ? first : tile.begin,
                              p.grad_x ? last : tile.end, channel, heads, r, K, g_space);
    if (p.grad_x) {
      across.effective(position + first, last - first, w);
      for (int64_t s = tile.begin; s < tile.end; ++s) {
        ahead.some();
        const int64_t from = std::clamp<int64_t>(s + left - (K - 1), first, last);
        const int64_t to = std::clamp<int64_t>(s + left + 1, from, last);
        Vec<S> acc[R];
        sum_across<S, R>(g.at(from), g.row, w + (from - first) * size + (s + left - from) * W,
                         size - W, to - from, acc);
        put_across<S, R>(sink, (position + s) * p.D + channel, heads, r, acc);
      }
    }
    if (!p.grad_weight) return;
    if (p.grad_x && !within)
      g = rows_of<S, R>(view_of_grad(p, tile), tile.begin, tile.end, channel, heads, r, K, g_space);
    const Rows<S> x = rows_of<S, R>(view_of_x(p, tile), tile.begin - left, tile.end - left + K - 1,
                                    channel, heads, r, K, x_space);
    for (int64_t t = tile.begin; t < tile.end; ++t) {
      if (!p.grad_x) ahead.some();
      const int64_t from = std::clamp<int64_t>(left - t, 0, K);
      const int64_t to = std::clamp<int64_t>(tile.length + left - t, from, K);
      Vec<S> grad[R], product[R];
      unroll<R>([&](auto v) { grad[v] = load(g.at(t) + v * W); });
      std::fill(gw, gw + from * W, S(0));
      std::fill(gw + to * W, gw + size, S(0));
      for (int64_t j = from; j < to; ++j) {
        const S* row = x.at(t + j - left);
        unroll<R>([&](auto v) { product[v] = grad[v] * load(row + v * W); });
        store(gw + j * W, sum_runs<S, R>(product));
      }
      across.dropped(position + t, 1, gw);
      if (p.softmax) {
        const S* soft = w + (t - first) * size;
        if (!within || p.drop) {
          across.normalized(position + t, 1, own);
          soft = own;
        }
        Vec<S> mean{};
        for (int64_t k = 0; k < size; k += W) mean += load(soft + k) * load(gw + k);
        for (int64_t k = 0; k < size; k += W) store(gw + k, load(soft + k) * (load(gw + k) - mean));
      }
      with_elements<S>(p.weight_dtype, p.grad_weight, [&](auto* to_memory) {
        turn_back(gw, K, heads, to_memory + ((position + t) * p.H + h) * K);
      });
    }
  };
  for_each_task(parallel, int64_t(tiles.size()) * units, 2.0 * p.B * p.T * p.D * K, body);
}

// --- few taps of heads of whole vectors ------------------------------------------------------------
//
// Weights again by vectors across W heads, channels by vectors within a head. Rows are read where they
// are, a few positions of all heads of a unit at a time: one after another, as memory has them.

constexpr int64_t kShort = 32;  // positions of a tile

template <class S>
static inline bool has_few_taps(const Problem& p) {
  return !p.shared && p.K <= std::min(8, kLanes<S>) && p.K < p.H && p.D / p.H % kLanes<S> == 0;
}

template <class S>
static void few_forward(const Problem& p, ParallelFor parallel) {
  constexpr int W = kLanes<S>;
  const int64_t K = p.K, R = p.D / p.H, units = (p.H + W - 1) / W;
  const std::vector<Tile> tiles = cut(p, kShort);
  const Taps<S> taps = taps_of<S>(p);
  const Sink<S> sink = sink_for<S>(p.out, p, R);
  const int64_t tasks = int64_t(tiles.size()) * units;
  auto body = [&](int64_t task) {
    const Tile& tile = tiles[size_t(task / units)];
    const int64_t h = task % units * W, heads = std::min<int64_t>(W, p.H - h), n = tile.end - tile.begin;
    const int64_t position = p.T * tile.batch + tile.start + tile.begin;
    Scratch scratch(Scratch::room<S>((kShort + 2) * K * W));
    S* w = scratch.take<S>(kShort * K * W);
    Ahead ahead;
    if (task + 1 < tasks) {
      const Tile& next = tiles[size_t((task + 1) / units)];
      const int64_t next_h = (task + 1) % units * W, next_heads = std::min<int64_t>(W, p.H - next_h);
      ahead.rows(view_of_x(p, next), next, std::max<int64_t>(0, K - 1 - p.left), next_h * R,
                 next_heads * R);
      ask_across<S>(ahead, p, p.weight, next, 0, next_h);
      ahead.spread_over((n + kBlock - 1) / kBlock * heads);
    }
    TapsAcross<S>{taps, h, heads, scratch.take<S>(2 * K * W)}.effective(position, n, w);
    with_numbers<S>(p.dtype, p.x, [&](const auto* x) {
      const View view = view_of_x(p, tile);
      for (int64_t t = 0; t < n;) {
        const int64_t first = tile.begin + t - p.left, exist = view.length - first;
        auto all_heads = [&](auto positions) {
          constexpr int P = decltype(positions)::value;
          for (int64_t i = 0; i < heads; ++i) {
            ahead.some();
            for_each_chunk<S>(R, [&](auto vectors, int64_t c, int64_t channels) {
              const int64_t channel = (h + i) * R + c;
              convolve_block<S, P, vectors>(x + view.origin + first * view.row + channel, view.row,
                                            w + t * K * W + i, W, (K - 1) * W, K,
                                            std::max<int64_t>(0, -first), std::min(K + P - 1, exist),
                                            sink, (position + t) * p.D + channel, channels);
            });
          }
          t += P;
        };
        if (K >= kBlock - 1 && t + kBlock <= n && first >= 0 && exist >= K + kBlock - 1)
          all_heads(std::integral_constant<int, kBlock>{});
        else
          all_heads(std::integral_constant<int, 1>{});
      }
    });
  };
  for_each_task(parallel, tasks, double(p.B) * p.T * p.D * K, body);
}

}  // namespace LIGHTCONV_ISA
