// Runs programs, for one instruction set.
//
// The rows are cut into parts, one for each thread if there are enough of them: rows do not depend
// on each other (those of one sequence stay together), so a thread takes its part through the whole
// program, and what it wrote is in its own cache when it reads it. Each instruction of a part is cut
// into tasks, panels of outputs or some rows. A thread without a part of its own, because it has
// finished it or because the rows are few, helps with another: it takes tasks that are left and
// waits at the end of an instruction for those that others took. Nobody is waited for who has not
// taken anything. The sums of a row run in the same order in all of this, so results do not depend
// on it.
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <vector>

#include <sched.h>

#include "gemm.h"
#include "int8.h"
#include "mix.h"
#include "rowwise.h"
#include "search.h"

namespace LIGHTCONV_ISA {

struct alignas(64) Progress {
  std::atomic<int64_t> next{0}, done{0};
};

constexpr int64_t kFewRows = 24;    // too few for a thread to fetch all weights for
constexpr int64_t kManyRows = 192;  // more would not stay in its cache
constexpr int64_t kTaskRows = 16;   // of an instruction without panels

static inline bool is_chosen(const Run& run, const Instruction& i) {
  return i.chosen && run.choice;
}

static void perform(const Run& run, const Instruction& i, Range rows, Range panels,
                    const Room& room, std::atomic<int64_t>& unknown) {
  auto each = [&](auto body) {
    for (int64_t row = rows.begin; row < rows.end; ++row) body(row);
  };
  switch (i.op) {
    case kLinear:
      return is_chosen(run, i) ? linear_chosen(run, i, rows) : linear(run, i, rows, panels);
    case kAttend: return attend_self(run, i, rows, room);
    case kAttendSource:
      return i.narrow ? attend_source<int8_t>(run, i, rows, room)
                      : attend_source<float>(run, i, rows, room);
    case kArrange: return each([&](int64_t row) { arrange(run, i, row); });
    case kEmbed:
      return each([&](int64_t row) {
        if (!embed(run, i, row)) unknown.store(row);
      });
    case kNorm: return each([&](int64_t row) { norm(run, i, row); });
    case kQuantize: return each([&](int64_t row) { quantize(run, i, row); });
    case kGlu: return each([&](int64_t row) { glu(run, i, row); });
    case kConvolve: return each([&](int64_t row) { convolve(run, i, row, room); });
    case kWindow: return each([&](int64_t row) { window(run, i, row, room); });
    case kAverage: return each([&](int64_t row) { average(run, i, row, room); });
    case kGate: return each([&](int64_t row) { gate(run, i, row); });
    case kRemember: return each([&](int64_t row) { remember(run, i, row); });
    case kCopy: return each([&](int64_t row) { copy_row(run, i, row); });
    default: return;
  }
}

static int64_t panels_of(const Instruction& i) {
  const int64_t columns = columns_of(i);
  return columns ? (i.O + columns - 1) / columns : 1;
}

static std::vector<Range> cut_rows(const Run& run) {
  std::vector<Range> parts;
  const int64_t share = (run.rows + run.threads - 1) / run.threads;
  // Several tokens of hypotheses are not divided: what one part remembers another may still read.
  const bool whole = share < kFewRows || (run.ancestors && run.begins);
  const int64_t most = whole ? run.rows : std::min(kManyRows, share);
  const int64_t count = (run.rows + most - 1) / most, size = (run.rows + count - 1) / count;
  for (int64_t begin = 0, end; begin < run.rows; begin = end) {
    end = std::min(run.rows, begin + size);
    if (run.begins) end = run.ends[end - 1];  // whole sequences
    parts.push_back({begin, end});
  }
  return parts;
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
  std::vector<Progress> progress;  // [parts, instructions]
  std::vector<char> scratch;
  int64_t scratch_bytes, width;
  std::atomic<int64_t> arrived{0}, unclaimed{0}, unknown{-1};

  explicit Crew(const Run& r)
      : run(r), parts(cut_rows(r)), progress(parts.size() * size_t(r.count)) {
    // Nobody has rows of this length, and larger numbers would overflow below.
    if (run.longest < 0 || run.longest > kLongest) throw std::bad_alloc();
    width = room_width(run.longest);
    scratch_bytes = run.longest * int64_t(sizeof(void*)) +
                    kTogether * width * int64_t(sizeof(float)) + 64;
    scratch.resize(size_t(run.threads * scratch_bytes));
  }

  void work() {
    const int64_t me = arrived.fetch_add(1);
    if (me >= run.threads) return;
    char* mine = scratch.data() + me * scratch_bytes;
    const Room room{reinterpret_cast<const void**>(mine),
                    reinterpret_cast<float*>(mine + run.longest * int64_t(sizeof(void*))), width};
    Clock clock(me == 0 ? run.nanoseconds : nullptr);
    for (size_t part; (part = size_t(unclaimed.fetch_add(1))) < parts.size();)
      take_through(part, room, clock);
    for (size_t part = 0; part < parts.size(); ++part) take_through(part, room, clock);
  }

  // All instructions of a part, as far as others have not done them.
  void take_through(size_t part, const Room& room, Clock& clock) {
    const Range rows = parts[part];
    const int64_t count = rows.end - rows.begin;
    const int64_t task_rows = std::min(kTaskRows, (count + kTaskRows - 1) / kTaskRows);
    const int64_t task_panels = count < kFewRows ? 1 : 2;
    for (int64_t k = 0; k < run.count; ++k) {
      const Instruction& i = run.program[k];
      Progress& p = progress[part * size_t(run.count) + size_t(k)];
      const bool by_panels = columns_of(i) != 0 && !is_chosen(run, i);
      const int64_t all = by_panels ? panels_of(i) : count;
      const int64_t size = by_panels ? task_panels : task_rows, tasks = (all + size - 1) / size;
      while (p.next.load(std::memory_order_relaxed) < tasks) {
        const int64_t task = p.next.fetch_add(1, std::memory_order_relaxed);
        if (task >= tasks) break;
        const Range some{task * size, std::min(all, (task + 1) * size)};
        if (by_panels) perform(run, i, rows, some, room, unknown);
        else perform(run, i, {rows.begin + some.begin, rows.begin + some.end}, {0, 1}, room, unknown);
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
      run.ancestors[hypothesis_of(run, row) * run.span + time_of(run, row) % run.span] =
          int32_t(hypothesis_of(run, row));
  return crew.unknown.load();
}

static void topk(const float* logits, int64_t rows, int64_t V, int64_t stride, int64_t k,
                 float* values, int64_t* indices, ParallelFor parallel) {
  constexpr int64_t kSome = 4;
  std::atomic<int64_t> next{0};
  auto work = [&] {  // whoever comes takes some rows, until there are none left
    for (int64_t begin; (begin = next.fetch_add(kSome)) < rows;)
      for (int64_t row = begin; row < std::min(rows, begin + kSome); ++row)
        topk_row(logits + row * stride, V, k, values + row * k, indices + row * k);
  };
  auto run = [](int64_t, int64_t, void* context) { (*static_cast<decltype(work)*>(context))(); };
  const int64_t grain = std::max<int64_t>(1, 32768 / std::max<int64_t>(V, 1));
  if (!parallel || rows <= grain) work();
  else if (parallel(0, rows, grain, run, &work) != 0) throw std::bad_alloc();
}

extern const EngineKernels engine_kernels;
const EngineKernels engine_kernels = {panel_columns, run_program, topk, search};

}  // namespace LIGHTCONV_ISA
