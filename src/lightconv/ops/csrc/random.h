// Random bits as a function of a seed and a number.
#pragma once
#include <cstdint>

namespace LIGHTCONV_ISA {

// The hash of ops/reference.py: uniform 32 bits from a seed and an element's flat index.
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

}  // namespace LIGHTCONV_ISA
