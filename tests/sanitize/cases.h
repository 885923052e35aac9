// Choices of a case, by a random generator or by the bytes that a fuzzer tries; numbers of its arrays.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

inline std::mt19937 generator;
inline const uint8_t* tried = nullptr;  // by the fuzzer, up to tried_end
inline const uint8_t* tried_end = nullptr;
inline bool strange = false;  // some numbers are infinite, not numbers, giant or tiny

inline uint32_t draw() { return tried < tried_end ? *tried++ : uint32_t(generator()); }

inline int64_t pick(const std::vector<int64_t>& values) { return values[draw() % values.size()]; }

// One of these sizes; a fuzzer tries those between them, too.
inline int64_t size_of(const std::vector<int64_t>& values) {
  if (tried >= tried_end || draw() % 2) return pick(values);
  const auto [low, high] = std::minmax_element(values.begin(), values.end());
  return *low + int64_t(draw() % uint64_t(*high - *low + 1));
}

inline double number() {
  constexpr double kStrange[] = {std::numeric_limits<double>::quiet_NaN(),
                                 std::numeric_limits<double>::infinity(),
                                 -std::numeric_limits<double>::infinity(),
                                 3e38, -3e38, 1e-45, 0.0, 1e5};
  const uint32_t bits = uint32_t(generator());
  if (strange && bits >> 29 == 0) return kStrange[bits % 8];
  return double(bits % 2001) / 1000.0 - 1.0;
}

const char* wrong_operator();  // operators.cpp: null, or which one
const char* wrong_program();   // programs.cpp
