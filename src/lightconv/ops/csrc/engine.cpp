// Runs programs, for one instruction set.
//
// With many rows each thread takes a range of them through the whole program: rows do not depend on
// each other (those of one sequence stay together), so nobody waits and what a thread wrote is in
// its own cache when it is read. With few rows every instruction is cut into tasks (panels of
// outputs, or rows), and the threads go through the program together: each takes the next task that
// is left, and waits at the end of an instruction until the tasks that others took are done. A
// thread that comes late or never is waited for only if it has taken something. The sums of a row
// run in the same order in all of this, so results do not depend on it.
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <vector>

#include <sched.h>

#include "gemm.h"
#include "int8.h"
#include "mix.h"
#include "rowwise.h"
#include "topk.h"

namespace LIGHTCONV_ISA {

struct alignas(64) Progress {
  std::atomic<int64_t> next{0}, done{0};
};

constexpr int64_t kFewRows = 24;    // too few for a thread to fetch all weights for
constexpr int64_t kManyRows = 192;  // more would not stay in its cache
constexpr int64_t kShares = 16;     // tasks of an instruction without panels

static void perform(const Run& run, const Instruction& i, Range rows, Range panels,
                    const Room& room, std::atomic<int64_t>& unknown) {
  auto each = [&](auto body) {
    for (int64_t row = rows.begin; row < rows.end; ++row) body(row);
  };
  switch (i.op) {
    case kLinear: return linear(run, i, rows, panels);
    case kLinearInt8: return linear_int8(run, i, rows, panels);
    case kAttend: return attend_self(run, i, rows.begin, rows.end, room);
    case kAttendSource: return attend_source(run, i, rows.begin, rows.end, room);
    case kEmbed:
      return each([&](int64_t row) {
        if (!embed(run, i, row)) unknown.store(row);
      });
    case kNorm: return each([&](int64_t row) { norm(run, i, row); });
    case kQuantize: return each([&](int64_t row) { quantize(run, i, row); });
    case kGlu: return each([&](int64_t row) { glu(run, i, row); });
    case kConvolve: return each([&](int64_t row) { convolve(run, i, row, room); });
    case kAverage: return each([&](int64_t row) { average(run, i, row, room); });
    case kGate: return each([&](int64_t row) { gate(run, i, row); });
    case kCopy: return each([&](int64_t row) { copy_row(run, i, row); });
    default: return;
  }
}

static int64_t panels_of(const Instruction& i) {
  const int64_t columns = columns_of(i);
  return columns ? (i.O + columns - 1) / columns : 1;
}

// Ranges of rows for whole threads, or none: few rows are better cut otherwise.
static std::vector<Range> ranges(const Run& run) {
  std::vector<Range> found;
  const int64_t share = (run.rows + run.threads - 1) / run.threads;
  if (run.threads > 1 && share < kFewRows) return found;
  const int64_t most = std::min(kManyRows, share);
  const int64_t parts = (run.rows + most - 1) / most, size = (run.rows + parts - 1) / parts;
  for (int64_t begin = 0, end; begin < run.rows; begin = end) {
    end = std::min(run.rows, begin + size);
    if (run.begins) end = run.ends[end - 1];  // whole sequences
    found.push_back({begin, end});
  }
  return found;
}

static inline void rest() {
#if defined(__x86_64__)
  _mm_pause();
#endif
}

static void wait_for(const std::atomic<int64_t>& done, int64_t tasks) {
  constexpr int kSpins = 2000;  // some 20 us; on a busy machine the other thread needs this core
  for (int spins = 0; done.load(std::memory_order_acquire) < tasks; ++spins)
    spins < kSpins ? rest() : void(sched_yield());
}

class Clock {
 public:
  explicit Clock(int64_t* to) : to_(to) {
    if (to_) before_ = std::chrono::steady_clock::now();
  }
  void add(int64_t op) {
    if (!to_) return;
    const auto now = std::chrono::steady_clock::now();
    to_[op] += std::chrono::duration_cast<std::chrono::nanoseconds>(now - before_).count();
    before_ = now;
  }

 private:
  int64_t* to_;
  std::chrono::steady_clock::time_point before_;
};

struct Crew {
  const Run& run;
  const std::vector<Range> parts;
  std::vector<Progress> progress;
  std::vector<char> scratch;
  int64_t scratch_bytes, width;
  std::atomic<int64_t> arrived{0}, unknown{-1};

  explicit Crew(const Run& r)
      : run(r), parts(ranges(r)), progress(size_t(parts.empty() ? r.count : 1)) {
    width = room_width(run.longest);
    scratch_bytes = run.longest * int64_t(sizeof(float*)) +
                    kTogether * width * int64_t(sizeof(float)) + 64;
    scratch.resize(size_t(run.threads * scratch_bytes));
  }

  void work() {
    const int64_t me = arrived.fetch_add(1);
    if (me >= run.threads) return;
    char* mine = scratch.data() + me * scratch_bytes;
    const Room room{reinterpret_cast<const float**>(mine),
                    reinterpret_cast<float*>(mine + run.longest * int64_t(sizeof(float*))), width};
    Clock clock(me == 0 ? run.nanoseconds : nullptr);
    parts.empty() ? work_together(room, clock) : work_alone(room, clock);
  }

  void work_alone(const Room& room, Clock& clock) {
    int64_t part;
    while ((part = progress[0].next.fetch_add(1)) < int64_t(parts.size()))
      for (int64_t k = 0; k < run.count; ++k) {
        const Instruction& i = run.program[k];
        perform(run, i, parts[size_t(part)], {0, panels_of(i)}, room, unknown);
        if (i.op == kEmbed && unknown.load() >= 0) return;
        clock.add(i.op);
      }
  }

  void work_together(const Room& room, Clock& clock) {
    for (int64_t k = 0; k < run.count; ++k) {
      const Instruction& i = run.program[k];
      const bool by_panels = columns_of(i) != 0;
      const int64_t size = (run.rows + kShares - 1) / kShares;
      const int64_t tasks = by_panels ? panels_of(i) : (run.rows + size - 1) / size;
      Progress& p = progress[size_t(k)];
      int64_t task;
      while ((task = p.next.fetch_add(1, std::memory_order_relaxed)) < tasks) {
        if (by_panels)
          perform(run, i, {0, run.rows}, {task, task + 1}, room, unknown);
        else
          perform(run, i, {task * size, std::min(run.rows, (task + 1) * size)}, {0, 1}, room,
                  unknown);
        p.done.fetch_add(1, std::memory_order_release);
      }
      wait_for(p.done, tasks);
      if (i.op == kEmbed && unknown.load() >= 0) return;
      clock.add(i.op);
    }
  }
};

static int64_t run_program(const Run& run, ParallelFor parallel) {
  if (run.rows == 0) return -1;
  Crew crew(run);
  auto work = [](int64_t, int64_t, void* context) { static_cast<Crew*>(context)->work(); };
  if (!parallel || run.threads < 2)
    crew.work();
  else if (parallel(0, run.threads, 1, work, &crew) != 0)
    throw std::bad_alloc();
  if (run.ancestors)
    for (int64_t row = 0; row < run.rows; ++row)
      run.ancestors[row * run.span + run.time % run.span] = int32_t(row);
  return crew.unknown.load();
}

static void topk(const float* logits, int64_t rows, int64_t V, int64_t stride, int64_t k,
                 float* values, int64_t* indices, ParallelFor parallel) {
  auto body = [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row)
      topk_row(logits + row * stride, V, k, values + row * k, indices + row * k);
  };
  auto run = [](int64_t begin, int64_t end, void* context) {
    (*static_cast<decltype(body)*>(context))(begin, end);
  };
  const int64_t grain = std::max<int64_t>(1, 32768 / std::max<int64_t>(V, 1));
  if (!parallel || rows <= grain) body(0, rows);
  else parallel(0, rows, grain, run, &body);
}

extern const EngineKernels engine_kernels;
const EngineKernels engine_kernels = {panel_columns, run_program, topk};

}  // namespace LIGHTCONV_ISA
