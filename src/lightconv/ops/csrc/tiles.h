// How a call is cut up: tiles of consecutive positions of one sequence, and scratch for one thread.
#pragma once
#include <algorithm>
#include <cstdlib>
#include <new>
#include <vector>

#include "rows.h"

namespace LIGHTCONV_ISA {

constexpr int64_t kTile = 64;  // positions; a tile's rows of one head stay in the first-level cache

struct Tile {
  int64_t batch, start, length;  // the sequence: rows start .. start + length of that batch entry
  int64_t begin, end;            // the tile: positions begin .. end of that sequence
};

static inline void cut(std::vector<Tile>& tiles, int64_t batch, int64_t start, int64_t length) {
  for (int64_t begin = 0; begin < length; begin += kTile)
    tiles.push_back({batch, start, length, begin, std::min(length, begin + kTile)});
}

static inline std::vector<Tile> cut(const Problem& p) {
  std::vector<Tile> tiles;
  if (p.offsets) {
    for (int64_t i = 0; i < p.sequences; ++i)
      cut(tiles, 0, p.offsets[i], p.offsets[i + 1] - p.offsets[i]);
  } else {
    tiles.reserve(size_t(p.B * ((p.T + kTile - 1) / kTile)));
    for (int64_t b = 0; b < p.B; ++b) cut(tiles, b, 0, p.T);
  }
  return tiles;
}

constexpr int64_t round_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

// Memory that one thread keeps between calls; take() hands out aligned, uninitialised pieces.
class Scratch {
 public:
  explicit Scratch(int64_t bytes) {
    if (bytes > held_.size) {
      std::free(held_.memory);
      held_.memory = std::aligned_alloc(64, size_t(round_up(bytes, 64)));
      held_.size = held_.memory ? bytes : 0;
      if (!held_.memory) throw std::bad_alloc();
    }
    next_ = static_cast<char*>(held_.memory);
  }
  template <class S>
  S* take(int64_t count) {
    S* piece = reinterpret_cast<S*>(next_);
    next_ += room<S>(count);
    return piece;
  }
  template <class S>
  static constexpr int64_t room(int64_t count) {
    return round_up(count * int64_t(sizeof(S)), 64);
  }

 private:
  struct Held {
    void* memory = nullptr;
    int64_t size = 0;
    ~Held() { std::free(memory); }
  };
  static thread_local Held held_;
  char* next_;
};
thread_local Scratch::Held Scratch::held_;

// Copies channels [channel, channel + n) of positions [first, last) into rows of `width` >= n
// numbers; positions outside the sequence and lanes beyond n become zero.
template <class S>
static inline void pack(S* to, int64_t width, int64_t dtype, const void* from, int64_t origin,
                        int64_t row, int64_t length, int64_t first, int64_t last, int64_t channel,
                        int64_t n) {
  for (int64_t t = first; t < last; ++t, to += width) {
    int64_t filled = 0;
    if (t >= 0 && t < length) {
      read_row(dtype, from, origin + t * row + channel, n, to);
      filled = n;
    }
    for (int64_t i = filled; i < width; ++i) to[i] = S(0);
  }
}

// Runs body(task) for every task, on threads when there is work enough for them.
template <class Body>
static inline void for_each_task(ParallelFor parallel, int64_t tasks, double work, Body& body) {
  auto run = [](int64_t begin, int64_t end, void* context) {
    for (int64_t task = begin; task < end; ++task) (*static_cast<Body*>(context))(task);
    finish_streams();
  };
  if (tasks == 0) return;
  constexpr double kWorthAThread = 65536;  // multiply-adds: about 2 us, what waking a thread costs
  int64_t grain = std::max<int64_t>(1, int64_t(kWorthAThread * double(tasks) / (work + 1)));
  if (!parallel || tasks <= grain)
    run(0, tasks, &body);
  else if (parallel(0, tasks, grain, run, &body) != 0)
    throw std::bad_alloc();  // the one thing a task can fail of
}

}  // namespace LIGHTCONV_ISA
