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

static inline std::vector<Tile> cut(const Problem& p, int64_t most = kTile) {
  std::vector<Tile> tiles;
  auto add = [&](int64_t batch, int64_t start, int64_t length) {
    for (int64_t begin = 0; begin < length; begin += most)
      tiles.push_back({batch, start, length, begin, std::min(length, begin + most)});
  };
  if (!p.offsets) tiles.reserve(size_t(p.B * ((p.T + most - 1) / most)));
  for (int64_t i = 0; i < (p.offsets ? p.sequences : p.B); ++i)
    if (p.offsets) add(0, p.offsets[i], p.offsets[i + 1] - p.offsets[i]);
    else add(i, 0, p.T);
  return tiles;
}

constexpr int64_t round_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

// Memory that one thread keeps between calls; take() hands out aligned, uninitialised pieces.
class Scratch {
 public:
  explicit Scratch(int64_t bytes) {
    if (bytes > held_.size) {
      held_.release();
      held_.memory = ::operator new(size_t(round_up(bytes, 64)), std::align_val_t{64});
      held_.size = bytes;
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
    ~Held() { release(); }
    void release() {
      ::operator delete(memory, std::align_val_t{64});
      memory = nullptr, size = 0;
    }
  };
  static thread_local Held held_;
  char* next_;
};
thread_local Scratch::Held Scratch::held_;

// Rows of one tensor [B, T, D] as a tile sees them: position t starts at `origin + t * row`.
struct View {
  const void* data;
  int64_t dtype, origin, row, length, D;
};

// Copies channels [channel, channel + n) of positions [first, last) into rows of `width` >= n
// numbers; positions outside the sequence and lanes beyond n become zero.
template <class S, int64_t width>
static inline void pack(S* to, const View& view, int64_t first, int64_t last, int64_t channel,
                        int64_t n) {
  const int64_t begin = std::clamp<int64_t>(0, first, last);
  const int64_t end = std::clamp<int64_t>(view.length, begin, last);
  auto clear = [&](int64_t rows) {  // a call of memset costs more
    for (S* end = to + rows * width; to < end; to += kLanes<S>) store(to, Vec<S>{});
  };
  clear(begin - first);
  with_numbers<S>(view.dtype, view.data, [&](const auto* from) {
    from += view.origin + channel + begin * view.row;
    for (int64_t t = begin; t < end; ++t, to += width, from += view.row)
#pragma GCC unroll 8
      for (int64_t i = 0; i < width; i += kLanes<S>)
        store(to + i, n == width ? load_as<S>(from + i)
                                 : load_as<S>(from + i, std::clamp<int64_t>(n - i, 0, kLanes<S>)));
  });
  clear(last - end);
}

static inline View view_of_x(const Problem& p, const Tile& tile) {
  return {p.x, p.dtype, tile.batch * p.x_batch + tile.start * p.x_row, p.x_row, tile.length, p.D};
}

static inline View view_of_grad(const Problem& p, const Tile& tile) {
  return {p.grad, p.dtype, tile.batch * p.grad_batch + tile.start * p.grad_row, p.grad_row,
          tile.length, p.D};
}

// Memory that the task after this one reads for the first time, asked for a few lines at a time
// between blocks of arithmetic. A task's own accesses hop from row to row, which the hardware does
// not foresee; asking for everything at once would fill the few buffers that wait for memory, and
// asking much earlier would push out of the cache what is still needed.
class Ahead {
 public:
  // Channels [channel, channel + n) of the positions of `next`, moved by `shift`.
  void rows(const View& view, const Tile& next, int64_t shift, int64_t channel, int64_t n) {
    const int64_t begin = std::clamp<int64_t>(next.begin + shift, 0, view.length);
    const int64_t end = std::clamp<int64_t>(next.end + shift, begin, view.length);
    region(view.data, view.dtype, view.origin + begin * view.row + channel, n, end - begin, view.row);
  }
  // `count` runs of n elements, `stride` elements apart.
  void region(const void* data, int64_t dtype, int64_t offset, int64_t n, int64_t count,
              int64_t stride) {
    if (n <= 0 || count <= 0) return;
    const int64_t bytes = bytes_of(dtype);
    const char* at = static_cast<const char*>(data) + offset * bytes;
    // A run that does not begin and end with lines touches one line more.
    const bool whole = reinterpret_cast<uintptr_t>(at) % 64 == 0 && n * bytes % 64 == 0;
    const int64_t lines = (n * bytes + 63) / 64 + (whole ? 0 : 1);
    regions_[last_++] = {at, lines, 0, count, stride * bytes};
    total_ += count * lines;
  }
  void spread_over(int64_t calls) {  // at least one
    quota_ = (total_ + calls - 1) / calls;
  }
  void some() {
    for (int64_t quota = quota_; quota > 0 && first_ < last_;) {
      Region& region = regions_[first_];
      const int64_t n = std::min(quota, region.lines - region.line);
      const char* at = region.at + 64 * region.line;
      // Into the second-level cache: the first is in use.
      for (int64_t i = 0; i < n; ++i) __builtin_prefetch(at + 64 * i, 0, 2);
      quota -= n;
      if ((region.line += n) < region.lines) continue;
      region.line = 0;
      region.at += region.stride;
      if (--region.count == 0) ++first_;
    }
  }

 private:
  struct Region {
    const char* at;
    int64_t lines, line, count, stride;
  };
  Region regions_[4];
  int64_t first_ = 0, last_ = 0, total_ = 0, quota_ = 0;
};

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
