// The weights of one position and head: read, softmax over all K taps, DropConnect.
#pragma once
#include <limits>

#include "tiles.h"

namespace LIGHTCONV_ISA {

// The hash of random.py: uniform 32 bits from a seed and an element's flat index.
static inline uint32_t mix(uint32_t h) {
  h ^= h >> 16;
  h *= 0x7FEB352Du;
  h ^= h >> 15;
  h *= 0x846CA68Bu;
  return h ^ (h >> 16);
}

static inline uint32_t random_bits(uint64_t seed, uint64_t index) {
  const uint32_t key = uint32_t(seed >> 32) + (uint32_t(seed) + 1u) * 0x9E3779B9u;
  return mix((mix(uint32_t(index) ^ uint32_t(seed)) + key) ^ uint32_t(index >> 32));
}

// The factors of n elements from flat index `first` on: 0 where the random bits are below `below`.
template <class S>
static inline void drop_factors(uint64_t seed, uint64_t first, int64_t n, uint32_t below, S scale,
                                S* to) {
  const uint32_t low = uint32_t(first), high = uint32_t(first >> 32), s = uint32_t(seed);
  const uint32_t key = uint32_t(seed >> 32) + (s + 1u) * 0x9E3779B9u;
  if (low + uint64_t(n) > 0xFFFFFFFFu) {  // the upper half changes on the way
    for (int64_t i = 0; i < n; ++i)
      to[i] = random_bits(seed, first + uint64_t(i)) >= below ? scale : S(0);
    return;
  }
  for (int64_t i = 0; i < n; ++i)
    to[i] = mix((mix((low + uint32_t(i)) ^ s) + key) ^ high) >= below ? scale : S(0);
}

// Rows hold `width` >= K numbers, a multiple of the vector; lanes beyond K are zero.
template <class S>
struct Taps {
  const void* weight;
  int64_t dtype, H, K, shared, softmax, drop;
  S keep_scale;
  uint64_t seed;

  static int64_t width(int64_t K) { return round_up(K, kLanes<S>); }

  // n positions from `row` on (counted over the whole batch), before DropConnect. All rows are
  // copied before any is worked on: reading back what has just been written would stall.
  void normalized(int64_t row, int64_t n, int64_t h, S* to) const {
    constexpr int W = kLanes<S>;
    const int64_t wide = width(K), step = shared ? 0 : H * K, last = wide - W;
    const Vec<S> filler = broadcast(softmax ? -std::numeric_limits<S>::infinity() : S(0));
    const Ints<S> beyond = lanes_from<S>(K - last);
    with_elements<S>(dtype, weight, [&](const auto* from) {
      from += shared ? h * K : (row * H + h) * K;
      for (int64_t i = 0; i < n; ++i, from += step) {
        for (int64_t k = 0; k < last; k += W) store(to + i * wide + k, load_as<S>(from + k));
        const Vec<S> some = load_as<S>(from + last, K - last);
        store(to + i * wide + last, (Vec<S>)(beyond ? filler : some));
      }
    });
    if (!softmax) return;
    int64_t i = 0;
    auto together = [&](auto vectors) {
      for (; i + W <= n; i += W) soften_together<vectors>(to + i * wide);
    };
    if constexpr (sizeof(S) == 4) {  // the usual widths
      if (wide == W) together(std::integral_constant<int, 1>{});
      if (wide == 2 * W) together(std::integral_constant<int, 2>{});
      if (wide == 4 * W) together(std::integral_constant<int, 4>{});
    }
    for (; i < n; ++i) soften(to + i * wide, wide);
  }

  static void soften(S* row, int64_t wide) {
    constexpr int W = kLanes<S>;
    Vec<S> most = load(row);
    for (int64_t k = W; k < wide; k += W) most = maximum<S>(most, load(row + k));
    most = max_lanes<S>(most);
    Vec<S> total{};
    for (int64_t k = 0; k < wide; k += W) {
      const Vec<S> e = exp_nonpositive(load(row + k) - most);
      total += e;
      store(row + k, e);
    }
    const Vec<S> share = broadcast(S(1) / sum_lanes<S>(total)[0]);  // one lane divides faster
    for (int64_t k = 0; k < wide; k += W) store(row + k, load(row + k) * share);
  }

  // W rows of N vectors at once: their maxima and sums are found by one tree of shuffles each, and no
  // row waits for its own chain of maximum, exponential, sum and division.
  template <int N>
  static void soften_together(S* rows) {
    constexpr int W = kLanes<S>;
    Vec<S> partial[W];
    alignas(64) S each[W];
    auto for_each_row = [&](auto visit) __attribute__((always_inline)) {
      unroll<W>([&](auto i) __attribute__((always_inline)) { visit(i, rows + i * N * W); });
    };
    for_each_row([&](auto i, S* row) __attribute__((always_inline)) {
      partial[i] = load(row);
      unroll<N - 1>([&](auto k) { partial[i] = maximum<S>(partial[i], load(row + (k + 1) * W)); });
    });
    store(each, reduce_each<S>(partial, [](Vec<S> a, Vec<S> b) { return maximum<S>(a, b); }));
    for_each_row([&](auto i, S* row) __attribute__((always_inline)) {
      const Vec<S> most = broadcast(each[i]);
      partial[i] = Vec<S>{};
      unroll<N>([&](auto k) {
        const Vec<S> e = exp_nonpositive(load(row + k * W) - most);
        partial[i] += e;
        store(row + k * W, e);
      });
    });
    store(each, broadcast(S(1)) / sum_each<S>(partial));
    for_each_row([&](auto i, S* row) __attribute__((always_inline)) {
      const Vec<S> share = broadcast(each[i]);
      unroll<N>([&](auto k) { store(row + k * W, load(row + k * W) * share); });
    });
  }

  // One head's weights, or what is laid out like them, of n positions from `row` on.
  void ask(Ahead& ahead, const void* from, int64_t row, int64_t n, int64_t h) const {
    if (!shared) ahead.region(from, dtype, (row * H + h) * K, K, n, H * K);
  }

  // Multiplies K numbers by DropConnect's factors.
  void dropped(int64_t row, int64_t h, S* to) const {
    if (!drop) return;
    constexpr int64_t kSome = 64;
    alignas(64) S factor[kSome];
    const int64_t first = (row * H + h) * K;
    for (int64_t k = 0; k < K; k += kSome) {
      const int64_t n = std::min(kSome, K - k);
      drop_factors(seed, uint64_t(first + k), n, uint32_t(drop), keep_scale, factor);
      for (int64_t i = 0; i < n; ++i) to[k + i] *= factor[i];
    }
  }

  void effective(int64_t row, int64_t n, int64_t h, S* to) const {
    normalized(row, n, h, to);
    for (int64_t i = 0; i < n; ++i) dropped(row + i, h, to + i * width(K));
  }
};

template <class S>
static inline Taps<S> taps_of(const Problem& p) {
  return {p.weight, p.weight_dtype, p.H, p.K, p.shared, p.softmax, p.drop, S(p.keep_scale),
          uint64_t(p.seed)};
}

}  // namespace LIGHTCONV_ISA
