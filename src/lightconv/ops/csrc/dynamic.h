// Convolution whose weights differ from position to position.
//
//   out[t, c]    = sum_j w[t, j] x[t + j - left, c]
//   grad_x[s, c] = sum_j w[s + left - j, j] grad[s + left - j, c]
//   grad_w[t, j] = sum_c grad[t, c] x[t + j - left, c]          (c over the channels of a head)
//
// A task is one tile of positions and one head. It packs the rows it needs (converted to the dtype
// of the sums, next to each other so that they fit the first-level cache) and the tile's weights,
// softmax applied. Threads share out tasks; nothing is written by two of them. Innermost, a block
// of P positions by C vectors of channels stays in registers while the rows run past: a row is
// loaded once for P positions, a weight once for C vectors. Both sums above have this form, with
// other strides through the weights. grad_w keeps W dot products in registers and sums their lanes
// together. Rows outside the sequence are zero, as the formula has it.
#pragma once
#include "taps.h"

namespace LIGHTCONV_ISA {

constexpr int kBlock = 4;                           // P
constexpr int kVectors = VEC_BYTES == 64 ? 4 : 2;   // C at most
constexpr int kCallsOfBlock = 4;                    // requests for memory ahead, beside one of dots_tile's

// Where results go: n <= W numbers at a time, converted on the way, past the cache where it is too
// small for them.
template <class S>
struct Sink {
  void* to;
  int64_t dtype, row;  // stride of a position
  bool streams;

  // Calls body(put), put(at, v, n): one look at the dtype for many vectors, which a call of each
  // would push out of their registers.
  template <class Body>
  inline __attribute__((always_inline)) void open(Body body) const {
    auto as = [&](auto* p) __attribute__((always_inline)) {
      body([&](int64_t at, Vec<S> v, int64_t n) __attribute__((always_inline)) {
        using E = std::remove_pointer_t<decltype(p)>;
        if (!streams) store_as<S>(p + at, v, n);
        else if constexpr (std::is_same_v<S, E>) stream(p + at, v);
        else stream(p + at, narrow(v, E{}));
      });
    };
    if (is_native<S>(dtype)) as(static_cast<S*>(to));
    if constexpr (sizeof(S) == 4) {
      if (dtype == kBfloat16) as(static_cast<Bfloat16*>(to));
      if (dtype == kFloat16) as(static_cast<Float16*>(to));
    }
  }
};

// Positions 0..P over rows 0..K+P-1: position p takes row r with the weight
// w[r * w_row + p * w_position] when 0 <= r - p < K. Rows outside [first, last) are zero and need
// not be read. K >= P - 1, so that the rows that only some positions take are at the two ends.
template <class S, int P, int C, class E>
static inline void convolve_block(const E* rows, int64_t row, const S* w, int64_t w_row,
                                  int64_t w_position, int64_t K, int64_t first, int64_t last,
                                  const Sink<S>& sink, int64_t offset, int64_t n) {
  constexpr int W = kLanes<S>;
  Vec<S> acc[P][C];
  unroll<P>([&](auto p) { unroll<C>([&](auto c) { acc[p][c] = Vec<S>{}; }); });
  // Row r for the positions [kFrom, kTo).
  auto add_row = [&](int64_t r, auto from, auto to) __attribute__((always_inline)) {
    constexpr int kFrom = decltype(from)::value, kTo = decltype(to)::value;
    const E* x = rows + r * row;
    const S* weights = w + r * w_row;
    Vec<S> v[C];
    unroll<C>([&](auto c) { v[c] = load_as<S>(x + c * W); });
    unroll<kTo - kFrom>([&](auto i) {
      constexpr int p = kFrom + decltype(i)::value;
      const Vec<S> weight = broadcast(weights[p * w_position]);
      unroll<C>([&](auto c) { acc[p][c] += weight * v[c]; });
    });
  };
  using std::integral_constant;
  unroll<P - 1>([&](auto r) {
    add_row(r, integral_constant<int, 0>{}, integral_constant<int, decltype(r)::value + 1>{});
  });
  const int64_t until = std::min(last, K);
  for (int64_t r = std::max<int64_t>(first, P - 1); r < until; ++r)
    add_row(r, integral_constant<int, 0>{}, integral_constant<int, P>{});
  unroll<P - 1>([&](auto e) {
    add_row(K + e, integral_constant<int, decltype(e)::value + 1>{}, integral_constant<int, P>{});
  });
  sink.open([&](auto put) __attribute__((always_inline)) {
    unroll<P>([&](auto p) __attribute__((always_inline)) {
      unroll<C>([&](auto c) __attribute__((always_inline)) {
        put(offset + p * sink.row + c * W, acc[p][c], c + 1 < C ? W : n - c * W);
      });
    });
  });
}

// All positions [0, n) of a tile. Position i reads rows i .. i + K - 1, which are `row` apart and of
// which those in [first, last) exist; its weights start at w + i * w_start.
template <class S, int C>
static void convolve_tile(const S* rows, int64_t row, const S* w, int64_t w_row, int64_t w_position,
                          int64_t w_start, int64_t K, int64_t n, int64_t first, int64_t last,
                          const Sink<S>& sink, int64_t offset, int64_t channels, Ahead& ahead) {
  int64_t i = 0;
  auto block = [&](auto size) {
    constexpr int P = decltype(size)::value;
    for (; i + P <= n; i += P) {
      for (int call = 0; call < kCallsOfBlock; ++call) ahead.some();
      convolve_block<S, P, C>(rows + i * row, row, w + i * w_start, w_row, w_position, K,
                              std::max<int64_t>(0, first - i),
                              std::min<int64_t>(K + P - 1, last - i), sink,
                              offset + i * sink.row, channels);
    }
  };
  if (K >= kBlock - 1) block(std::integral_constant<int, kBlock>{});
  block(std::integral_constant<int, 1>{});
}

// gw[t][j] = (or +=) the sum over C vectors of grad[t] * x[t + j], for positions [0, n) and all taps;
// rows of x outside [first, last) are zero.
// Rows of gw are `width` apart, tap 0 at P - 1, with room on both sides for results nobody wants.
template <class S>
constexpr int dots_block = 2;
template <class S>
constexpr int dots_rows = kLanes<S> / dots_block<S>;
template <class S>
static int64_t dots_width(int64_t K) {
  return round_up(K + 2 * dots_block<S> + dots_rows<S>, kLanes<S>) + kLanes<S>;
}

template <class S, int C>
static void dots_tile(const S* grad, const S* x, int64_t K, int64_t n, int64_t first, int64_t last,
                      bool add, S* gw, int64_t width, Ahead& ahead) {
  constexpr int W = kLanes<S>, P = dots_block<S>, Q = dots_rows<S>;
  for (int64_t t = 0; t < n; t += P) {
    ahead.some();
    Vec<S> g[P][C];
    unroll<P>([&](auto p) {
      unroll<C>([&](auto c) { g[p][c] = load(grad + (t + p) * (C * W) + c * W); });
    });
    for (int64_t r = 0; r < K + P - 1; r += Q) {
      const bool exist = t + r + Q > first && t + r < last;
      Vec<S> acc[W];
      unroll<W>([&](auto i) { acc[i] = Vec<S>{}; });
      if (exist) unroll<C>([&](auto c) {
        unroll<Q>([&](auto q) {
          const Vec<S> row = load(x + (t + r + q) * (C * W) + c * W);
          unroll<P>([&](auto p) { acc[p * Q + q] += g[p][c] * row; });
        });
      });
      typedef S Few __attribute__((vector_size(Q * sizeof(S))));
      alignas(64) Few sums[P];
      const Vec<S> all = exist ? sum_each<S>(acc) : Vec<S>{};
      memcpy(sums, &all, sizeof all);
#pragma GCC unroll 8
      for (int p = 0; p < P; ++p) {
        S* to = gw + (t + p) * width + (P - 1) + r - p;
        Few before{};
        if (add) memcpy(&before, to, sizeof before);
        before += sums[p];
        memcpy(to, &before, sizeof before);
      }
    }
  }
}

// Calls visit(C, first channel, channels) for the vectors of a head, a few at a time.
template <class S, class Visit>
static inline void for_each_chunk(int64_t R, Visit visit) {
  constexpr int W = kLanes<S>;
  for (int64_t c = 0; c < R;) {
    const int64_t vectors = (R - c + W - 1) / W;
    if (vectors >= 4 && kVectors >= 4) {
      visit(std::integral_constant<int, kVectors>{}, c, std::min<int64_t>(R - c, kVectors * W));
      c += kVectors * W;
    } else if (vectors >= 2) {
      visit(std::integral_constant<int, 2>{}, c, std::min<int64_t>(R - c, 2 * W));
      c += 2 * W;
    } else {
      visit(std::integral_constant<int, 1>{}, c, R - c);
      c += W;
    }
  }
}

// Blocks of positions that the chunks of a head make together.
template <class S>
static int64_t blocks_of(int64_t R, int64_t n) {
  return (R + kVectors * kLanes<S> - 1) / (kVectors * kLanes<S>) * ((n + kBlock - 1) / kBlock);
}

// A sink for runs of `width` channels.
template <class S>
static Sink<S> sink_for(void* to, const Problem& p, int64_t width) {
  constexpr int64_t kPastCache = 8 << 20;  // bytes of output that will not stay in the cache
  const int64_t bytes = bytes_of(p.dtype);
  const bool whole = width % kLanes<S> == 0 && p.D % width == 0 &&
                     reinterpret_cast<uintptr_t>(to) % size_t(kLanes<S> * bytes) == 0;
  return {to, p.dtype, p.D, whole && p.B * p.T * p.D * bytes > kPastCache};
}

template <class S>
static void dynamic_forward(const Problem& p, ParallelFor parallel) {
  constexpr int W = kLanes<S>;
  const int64_t K = p.K, R = p.D / p.H, w_width = Taps<S>::width(K);
  const std::vector<Tile> tiles = cut(p);
  const Taps<S> taps = taps_of<S>(p);
  const Sink<S> sink = sink_for<S>(p.out, p, R);
  auto body = [&](int64_t task) {
    const Tile& tile = tiles[size_t(task / p.H)];
    const int64_t h = task % p.H, n = tile.end - tile.begin, position = p.T * tile.batch + tile.start;
    const int64_t first = tile.begin - p.left;  // the position of packed row 0
    Scratch scratch(Scratch::room<S>(kTile * w_width) +
                    Scratch::room<S>((kTile + K - 1) * kVectors * W));
    S* w = scratch.take<S>(kTile * w_width);
    S* x = scratch.take<S>((kTile + K - 1) * kVectors * W);
    Ahead ahead;
    if (size_t(task + 1) < tiles.size() * size_t(p.H)) {
      const Tile& next = tiles[size_t((task + 1) / p.H)];
      const int64_t next_h = (task + 1) % p.H;
      ahead.rows(view_of_x(p, next), next, std::max<int64_t>(0, K - 1 - p.left), next_h * R, R);
      taps.ask(ahead, p.weight, p.T * next.batch + next.start + next.begin, next.end - next.begin,
               next_h);
      ahead.spread_over(blocks_of<S>(R, n) * kCallsOfBlock);
    }
    taps.effective(position + tile.begin, n, h, w);
    for_each_chunk<S>(R, [&](auto vectors, int64_t c, int64_t channels) {
      constexpr int C = decltype(vectors)::value;
      const int64_t channel = h * R + c;
      const View view = view_of_x(p, tile);
      pack<S, C * W>(x, view, first, first + n + K - 1, channel, channels);
      convolve_tile<S, C>(x, C * W, w, 1, w_width - 1, w_width, K, n,
                          std::max<int64_t>(0, -first), tile.length - first, sink,
                          (position + tile.begin) * p.D + channel, channels, ahead);
    });
  };
  for_each_task(parallel, int64_t(tiles.size()) * p.H, double(p.B) * p.T * p.D * K, body);
}

// The weights that grad_x of one tile reads, laid out so that block rows and positions have
// constant strides. Row r is position `first + r`. Narrow kernels keep a row of K taps for each;
// wide ones only the taps that reach into the tile, one column for each of its positions.
template <class S>
struct Reached {
  S* w;
  S* whole;  // one full row, for the wide layout
  int64_t width, K;
  bool wide;

  static int64_t columns(int64_t K) { return K > kTile ? kTile : Taps<S>::width(K); }

  void fill(const Taps<S>& taps, const Tile& tile, int64_t position, int64_t h, int64_t first,
            int64_t left) const {
    const int64_t n = tile.end - tile.begin;
    const int64_t from = std::max<int64_t>(first, 0), to = std::min(first + n + K - 1, tile.length);
    // Rows that do not exist meet zeros, and must not be NaN.
    std::fill(w, w + (std::min(from, first + n + K - 1) - first) * width, S(0));
    std::fill(w + std::max<int64_t>(0, to - first) * width, w + (n + K - 1) * width, S(0));
    if (!wide) {
      if (from < to) taps.effective(position + from, to - from, h, w + (from - first) * width);
      return;
    }
    for (int64_t t = from; t < to; ++t) {
      taps.effective(position + t, 1, h, whole);
      for (int64_t i = 0; i < n; ++i) {
        const int64_t j = tile.begin + i - t + left;
        w[(t - first) * width + i] = j >= 0 && j < K ? whole[j] : S(0);
      }
    }
  }
  const S* start() const { return wide ? w : w + K - 1; }
  int64_t row_stride() const { return wide ? width : width - 1; }
  int64_t block_stride() const { return wide ? width + 1 : width; }
};

// Rows of gradients with respect to softmax(logits) become gradients with respect to the logits.
template <class S>
static void soften_backward(S* grad, int64_t grad_width, const S* soft, int64_t n, int64_t K) {
  constexpr int W = kLanes<S>;
  const int64_t wide = Taps<S>::width(K);
  const Ints<S> beyond = lanes_from<S>(K - (wide - W));
  for (int64_t i = 0; i < n; ++i) {
    S* last = grad + i * grad_width + wide - W;
    store(last, (Vec<S>)(beyond ? Vec<S>{} : load(last)));
  }
  for (int64_t i = 0; i < n; ++i, grad += grad_width, soft += wide) {
    Vec<S> total{};
    for (int64_t k = 0; k < wide; k += W) total += load(soft + k) * load(grad + k);
    const Vec<S> mean = sum_lanes<S>(total);
    for (int64_t k = 0; k < wide; k += W) store(grad + k, load(soft + k) * (load(grad + k) - mean));
  }
}

// Sums over parts of the tiles, in a fixed order whatever the number of threads.
template <class S>
static void add_parts(const Problem& p, const std::vector<S>& partial, int64_t parts) {
  std::vector<S> row(size_t(p.K));
  for (int64_t h = 0; h < p.H; ++h) {
    for (int64_t k = 0; k < p.K; ++k) {
      S sum = 0;
      for (int64_t part = 0; part < parts; ++part) sum += partial[size_t((part * p.H + h) * p.K + k)];
      row[size_t(k)] = sum;
    }
    write_row(p.weight_dtype, p.grad_weight, h * p.K, p.K, row.data());
  }
}

template <class S>
static void dynamic_backward(const Problem& p, ParallelFor parallel) {
  constexpr int W = kLanes<S>, P = dots_block<S>, Q = dots_rows<S>;
  const int64_t K = p.K, R = p.D / p.H, left = p.left;
  const std::vector<Tile> tiles = cut(p);
  const Taps<S> taps = taps_of<S>(p);
  const Sink<S> sink = sink_for<S>(p.grad_x, p, R);
  const int64_t count = int64_t(tiles.size());
  // Shared weights: each task sums its part of the tiles, and the parts are added at the end.
  const int64_t parts = p.shared && p.grad_weight ? std::min<int64_t>(count, 16) : count;
  std::vector<S> partial(p.shared && p.grad_weight ? size_t(parts * p.H * K) : 0, S(0));

  const int64_t rows = kTile + K - 1 + P + Q, w_columns = Reached<S>::columns(K);
  const int64_t w_width = Taps<S>::width(K), g_width = dots_width<S>(K);
  auto body = [&](int64_t task) {
    const int64_t part = task / p.H, h = task % p.H;
    Scratch scratch(2 * Scratch::room<S>(rows * kVectors * W) +
                    Scratch::room<S>(rows * w_columns) + Scratch::room<S>(kTile * w_width) +
                    Scratch::room<S>((kTile + P) * g_width));
    S* x = scratch.take<S>(rows * kVectors * W);
    S* reaching = scratch.take<S>(rows * kVectors * W);  // grad of the positions that read the tile
    S* w = scratch.take<S>(rows * w_columns);            // and their weights
    S* own_taps = scratch.take<S>(kTile * w_width);      // the weights of the tile's positions
    S* gw = scratch.take<S>((kTile + P) * g_width);
    const Reached<S> reached{w, own_taps, w_columns, K, K > kTile};

    for (int64_t index = count * part / parts; index < count * (part + 1) / parts; ++index) {
      const Tile& tile = tiles[size_t(index)];
      const int64_t n = tile.end - tile.begin, position = p.T * tile.batch + tile.start;
      const int64_t first = tile.begin + left - (K - 1);  // the first position that reads the tile
      Ahead ahead;
      const int64_t next_h = p.shared ? h : (h + 1) % p.H;
      const int64_t next_index = p.shared || next_h == 0 ? index + 1 : index;
      if (next_index < count) {
        const Tile& next = tiles[size_t(next_index)];
        const int64_t shift = p.grad_x ? left : 0, after = next.end - next.begin;
        const int64_t row = p.T * next.batch + next.start + next.begin;
        ahead.rows(view_of_grad(p, next), next, shift, next_h * R, R);
        if (p.grad_weight) {
          ahead.rows(view_of_x(p, next), next, std::max<int64_t>(0, K - 1 - left), next_h * R, R);
          taps.ask(ahead, p.grad_weight, row, after, next_h);  // written in pieces of lines
        }
        taps.ask(ahead, p.weight, row + shift, after, next_h);
        ahead.spread_over(blocks_of<S>(R, n) * ((p.grad_x ? kCallsOfBlock : 0) +
                                                (p.grad_weight ? kBlock / P : 0)));
      }
      if (p.grad_x) reached.fill(taps, tile, position, h, first, left);

      for_each_chunk<S>(R, [&](auto vectors, int64_t c, int64_t channels) {
        constexpr int C = decltype(vectors)::value;
        const int64_t channel = h * R + c;
        if (p.grad_x) {
          pack<S, C * W>(reaching, view_of_grad(p, tile), first, first + n + K - 1, channel, channels);
          convolve_tile<S, C>(reaching, C * W, reached.start(), reached.row_stride(), 1,
                              reached.block_stride(), K, n, std::max<int64_t>(0, -first),
                              tile.length - first, sink, (position + tile.begin) * p.D + channel,
                              channels, ahead);
        }
        if (p.grad_weight) {
          const S* own = reaching + (tile.begin - first) * (C * W);
          if (!p.grad_x || left >= K) {
            pack<S, C * W>(reaching, view_of_grad(p, tile), tile.begin, tile.end, channel, channels);
            own = reaching;
          }
          pack<S, C * W>(x, view_of_x(p, tile), tile.begin - left,
               tile.end - left + K - 1 + P + Q, channel, channels);
          dots_tile<S, C>(own, x, K, n, left - tile.begin, tile.length + left - tile.begin, c > 0,
                          gw, g_width, ahead);
        }
      });
      if (!p.grad_weight) continue;

      const int64_t row = position + tile.begin;
      for (int64_t i = 0; i < n; ++i) taps.dropped(row + i, h, gw + i * g_width + P - 1);
      if (p.shared) {
        S* sum = &partial[size_t((part * p.H + h) * K)];
        for (int64_t i = 0; i < n; ++i)
          for (int64_t k = 0; k < K; ++k) sum[k] += gw[i * g_width + P - 1 + k];
        continue;
      }
      if (p.softmax) {
        const S* soft = w + (tile.begin - first) * w_columns;
        if (!p.grad_x || p.drop || left >= K || reached.wide) {
          taps.normalized(row, n, h, own_taps);
          soft = own_taps;
        }
        soften_backward(gw + P - 1, g_width, soft, n, K);
      }
      with_elements<S>(p.weight_dtype, p.grad_weight, [&](auto* to) {
        to += (row * p.H + h) * K;
        const S* from = gw + P - 1;
        for (int64_t i = 0; i < n; ++i, to += p.H * K, from += g_width) {
          int64_t k = 0;
          for (; k + W < K; k += W) store_as<S>(to + k, load(from + k));
          store_as<S>(to + k, load(from + k), K - k);  // there is room beyond each row of gw
        }
      });
    }
  };
  for_each_task(parallel, parts * p.H, 2.0 * p.B * p.T * p.D * K, body);
  if (p.shared && p.grad_weight) add_parts(p, partial, parts);
}

}  // namespace LIGHTCONV_ISA
