// Convolution with one kernel per head for every position (no DropConnect: dynamic.h has that).
//
//   out[t, c]    = sum_j w[h, j] x[t + j - left, c]
//   grad_x       = the same sum over grad with the taps reversed
//   grad_w[h, j] = sum_t,c grad[t, c] x[t + j - left, c]
//
// The weights are spread out once, one number per channel, so that any number of heads (also
// H = D, a depthwise convolution) runs the same loop. A task is one tile of positions and one chunk
// of channels; it packs its rows. Innermost, kPositions sums of one vector of channels stay in
// registers while the taps run; for grad_w the sums of kTaps taps, while the positions run.
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

// [chunk][K][chunk width]; `reversed` for grad_x.
template <class S>
static std::vector<S> spread(const Problem& p, int64_t chunk, bool reversed) {
  const int64_t K = p.K, R = p.D / p.H, chunks = (p.D + chunk - 1) / chunk;
  std::vector<S> wide(size_t(chunks * K * chunk), S(0)), row(static_cast<size_t>(K));
  for (int64_t h = 0; h < p.H; ++h) {
    read_row(p.weight_dtype, p.weight, h * K, K, row.data());
    for_each_run(h * R, (h + 1) * R, chunk, [&](int64_t which, int64_t begin, int64_t n) {
      for (int64_t k = 0; k < K; ++k)
        std::fill_n(&wide[size_t((which * K + k) * chunk + begin)], n,
                    row[size_t(reversed ? K - 1 - k : k)]);
    });
  }
  return wide;
}

template <class S>
static void shared_convolve(const Problem& p, ParallelFor parallel,
                            View (*view_of)(const Problem&, const Tile&), void* to, int64_t left,
                            bool reversed) {
  constexpr int W = kLanes<S>;
  constexpr int64_t chunk = kVectors * W;
  const int64_t K = p.K, chunks = (p.D + chunk - 1) / chunk;
  const std::vector<S> wide = spread<S>(p, chunk, reversed);
  const std::vector<Tile> tiles = cut(p);
  const bool streams = streams_to<S>(to, p, p.D);
  auto body = [&](int64_t task) {
    const Tile& tile = tiles[size_t(task / chunks)];
    const int64_t n = tile.end - tile.begin, which = task % chunks, channel = which * chunk;
    const int64_t channels = std::min(chunk, p.D - channel), first = tile.begin - left;
    const int64_t padded = round_up(n, kPositions);
    Scratch scratch(Scratch::room<S>((kTile + K - 1) * chunk));
    S* x = scratch.take<S>((kTile + K - 1) * chunk);
    pack<S, chunk>(x, view_of(p, tile), first, first + padded + K - 1, channel, channels);
    Ahead ahead;
    if (size_t(task + 1) < tiles.size() * size_t(chunks)) {
      const Tile& next = tiles[size_t((task + 1) / chunks)];
      const int64_t c = (task + 1) % chunks * chunk;
      ahead.rows(view_of(p, next), next, std::max<int64_t>(0, K - 1 - left), c,
                 std::min(chunk, p.D - c));
      ahead.spread_over(padded / kPositions * kVectors);
    }
    const S* w = wide.data() + which * K * chunk;
    const bool direct = is_native<S>(p.dtype) && channels % W == 0;
    const int64_t origin = (p.T * tile.batch + tile.start + tile.begin) * p.D + channel;
    for (int64_t i = 0; i < n; i += kPositions)
      for (int64_t c = 0; c < channels; c += W) {
        ahead.some();
        Vec<S> acc[kPositions];
        unroll<kPositions>([&](auto q) { acc[q] = Vec<S>{}; });
        const S *rows = x + i * chunk + c, *weights = w + c;
        for (int64_t j = 0; j < K; ++j, rows += chunk, weights += chunk) {
          const Vec<S> weight = load(weights);
          unroll<kPositions>([&](auto q) { acc[q] += weight * load(rows + q * chunk); });
        }
        unroll<kPositions>([&](auto q) {
          if (i + q >= n) return;
          const int64_t at = origin + (i + q) * p.D + c;
          if (direct) {
            S* place = static_cast<S*>(to) + at;
            streams ? stream(place, acc[q]) : store(place, acc[q]);
          } else {
            alignas(64) S staged[W];
            store(staged, acc[q]);
            write_row(p.dtype, to, at, std::min<int64_t>(W, channels - c), staged);
          }
        });
      }
  };
  for_each_task(parallel, int64_t(tiles.size()) * chunks, double(p.B) * p.T * p.D * K, body);
}

template <class S>
static void shared_forward(const Problem& p, ParallelFor parallel) {
  shared_convolve<S>(p, parallel, view_of_x, p.out, p.left, false);
}

template <class S>
static void shared_grad_weight(const Problem& p, ParallelFor parallel) {
  constexpr int W = kLanes<S>;
  constexpr int64_t chunk = kVectors * W;
  const int64_t K = p.K, R = p.D / p.H, chunks = (p.D + chunk - 1) / chunk;
  const std::vector<Tile> tiles = cut(p);
  const int64_t count = int64_t(tiles.size());
  // A task is a part of the tiles and a group of neighbouring chunks; how many there are depends on
  // the shape alone, never on the threads.
  constexpr int64_t kGroup = 4;
  const int64_t groups = (chunks + kGroup - 1) / kGroup;
  const int64_t parts = std::min(count, std::max<int64_t>(1, 32 / groups));
  const int64_t taps = round_up(K, kTaps), rows = kTile + taps - 1;
  std::vector<S> partial(size_t(std::max<int64_t>(parts, 1) * chunks * taps * chunk), S(0));
  auto one = [&](const Tile& tile, int64_t which, const Tile* next, int64_t next_which, S* x, S* g,
                 S* sums) {
    const int64_t channel = which * chunk, channels = std::min(chunk, p.D - channel);
    const int64_t n = tile.end - tile.begin, first = tile.begin - p.left;
    Ahead ahead;
    if (next) {
      const int64_t c = next_which * chunk, size = std::min(chunk, p.D - c);
      ahead.rows(view_of_x(p, *next), *next, std::max<int64_t>(0, K - 1 - p.left), c, size);
      ahead.rows(view_of_grad(p, *next), *next, 0, c, size);
      ahead.spread_over(taps / kTaps * kVectors);
    }
    pack<S, chunk>(x, view_of_x(p, tile), first, first + n + taps - 1, channel, channels);
    pack<S, chunk>(g, view_of_grad(p, tile), tile.begin, tile.end, channel, channels);
    for (int64_t c = 0; c < channels; c += W)
      for (int64_t j = 0; j < K; j += kTaps) {
        ahead.some();
        Vec<S> acc[kTaps];
        unroll<kTaps>([&](auto q) { acc[q] = load(sums + (j + q) * chunk + c); });
        for (int64_t t = 0; t < n; ++t) {
          const Vec<S> grad = load(g + t * chunk + c);
          const S* row = x + (t + j) * chunk + c;
          unroll<kTaps>([&](auto q) { acc[q] += grad * load(row + q * chunk); });
        }
        unroll<kTaps>([&](auto q) { store(sums + (j + q) * chunk + c, acc[q]); });
      }
  };
  auto body = [&](int64_t task) {
    const int64_t part = task / groups, group = task % groups;
    Scratch scratch(Scratch::room<S>(rows * chunk) + Scratch::room<S>(kTile * chunk));
    S* x = scratch.take<S>(rows * chunk);
    S* g = scratch.take<S>(kTile * chunk);
    const int64_t end = count * (part + 1) / parts, from = group * kGroup;
    const int64_t to = std::min(chunks, from + kGroup);
    for (int64_t index = count * part / parts; index < end; ++index)
      for (int64_t which = from; which < to; ++which) {
        const bool last = which + 1 == to;
        const int64_t after = last ? index + 1 : index;
        one(tiles[size_t(index)], which, after < end ? &tiles[size_t(after)] : nullptr,
            last ? from : which + 1, x, g, partial.data() + (part * chunks + which) * taps * chunk);
      }
  };
  for_each_task(parallel, parts * groups, double(p.B) * p.T * p.D * K, body);
  // The parts in a fixed order, then the channels of each head: the same sum on any machine with
  // vectors of this width, however many threads there are.
  const int64_t size = chunks * taps * chunk;
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

template <class S>
static void shared_backward(const Problem& p, ParallelFor parallel) {
  if (p.grad_x)
    shared_convolve<S>(p, parallel, view_of_grad, p.grad_x, p.K - 1 - p.left, true);
  if (p.grad_weight) shared_grad_weight<S>(p, parallel);
}

}  // namespace LIGHTCONV_ISA
