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
  uint32_t h = mix(uint32_t(index) ^ uint32_t(seed));
  return mix((h + uint32_t(seed >> 32)) ^ uint32_t(index >> 32));
}

// Rows hold `width` >= K numbers, a multiple of the vector; lanes beyond K are zero.
template <class S>
struct Taps {
  const void* weight;
  int64_t dtype, H, K, shared, softmax, drop;
  S keep_scale;
  uint64_t seed;

  static int64_t width(int64_t K) { return round_up(K, kLanes<S>); }

  // Before DropConnect. `row` counts positions over the whole batch.
  void normalized(int64_t row, int64_t h, S* to) const {
    read_row(dtype, weight, shared ? h * K : (row * H + h) * K, K, to);
    const int64_t n = width(K);
    if (!softmax) {
      for (int64_t k = K; k < n; ++k) to[k] = S(0);
      return;
    }
    for (int64_t k = K; k < n; ++k) to[k] = -std::numeric_limits<S>::infinity();
    Vec<S> most = load(to);
    for (int64_t k = kLanes<S>; k < n; k += kLanes<S>) most = maximum<S>(most, load(to + k));
    most = broadcast(max_lanes<S>(most));
    Vec<S> total{};
    for (int64_t k = 0; k < n; k += kLanes<S>) {
      Vec<S> e = exp_nonpositive(load(to + k) - most);
      total += e;
      store(to + k, e);
    }
    Vec<S> share = broadcast(S(1) / sum_lanes<S>(total));
    for (int64_t k = 0; k < n; k += kLanes<S>) store(to + k, load(to + k) * share);
  }

  // Multiplies K numbers by DropConnect's factors.
  void dropped(int64_t row, int64_t h, S* to) const {
    if (!drop) return;
    const uint64_t first = uint64_t((row * H + h) * K);
    const uint32_t below = uint32_t(drop);
    for (int64_t k = 0; k < K; ++k)
      to[k] *= random_bits(seed, first + uint64_t(k)) >= below ? keep_scale : S(0);
  }

  void effective(int64_t row, int64_t h, S* to) const {
    normalized(row, h, to);
    dropped(row, h, to);
  }
};

template <class S>
static inline Taps<S> taps_of(const Problem& p) {
  return {p.weight, p.weight_dtype, p.H, p.K, p.shared, p.softmax, p.drop, S(p.keep_scale),
          uint64_t(p.seed)};
}

}  // namespace LIGHTCONV_ISA
