// Beam search and sampling on the scores of a decoder's steps: which words may follow a hypothesis,
// which hypotheses of a sentence live on, and their tables. Sentences join between two calls and
// leave at any step. decode/beam.py, rules.py and sampling.py are the definition.
//
// The hypotheses of a sentence are neighbours, the better ones first. A row is moved only if the
// hypothesis it had is not the one it goes on with.
#pragma once
#include <atomic>
#include <chrono>
#include <numeric>
#include <vector>

#include "program.h"
#include "random.h"
#include "topk.h"

namespace LIGHTCONV_ISA {

static int64_t run_program(const Run& run, ParallelFor parallel);  // engine.cpp

struct Continuation {
  double total;
  int64_t row, word, place;
};

// As a descending sort has it: what is no number goes first, of equal ones the earlier.
static inline bool better(double a, double b) { return a > b || (a != a && b == b); }

// What a thread needs for a row.
struct Desk {
  std::vector<float> values, chances, kept;
  std::vector<int64_t> indices, banned;
};

// Continuations: `width` for each row and how many they are, those of a sentence, those that live on.
struct Stage {
  std::vector<Continuation> found, best, next;
  std::vector<int64_t> counts;
  int64_t width;
};

// The only word that may follow, or -1.
static inline int64_t only_word(const Search& s, int64_t sentence) {
  const int64_t length = s.length[sentence];
  const int32_t* prefix = s.prefix + sentence * s.prefixes;
  if (length < s.prefixes && prefix[length] >= 0) return prefix[length];
  return length + 1 >= s.most[sentence] ? s.eos : -1;
}

// Words that may not follow: EOS too early, what would repeat an n-gram.
static inline void ban(const Search& s, int64_t row, std::vector<int64_t>& banned) {
  const int64_t sentence = s.sentences[row], t = s.length[sentence], n = s.block;
  banned.assign(s.forbidden, s.forbidden + s.forbidden_count);
  if (t + 1 < s.least[sentence]) banned.push_back(s.eos);
  const int32_t *words = s.words + row * s.room, *last = words + t - n + 1;
  for (int64_t i = 0; n > 0 && i + n <= t; ++i)
    if (std::equal(last, words + t, words + i)) banned.push_back(words[i + n - 1]);
}

// The word of a score of a sentence.
static inline int64_t word_of(const Search& s, int64_t sentence, int64_t i) {
  return s.table ? s.table[sentence * s.V + i] : i;
}

// Up to `count` continuations that are allowed, best first, with the log-probabilities of their
// words; returns how many there are.
static int64_t continue_row(const Search& s, int64_t row, int64_t count, Desk& desk,
                            Continuation* to) {
  const float* x = s.scores + row * s.V;
  const int64_t sentence = s.sentences[row], only = only_word(s, sentence);
  desk.banned.clear();
  if (only < 0) ban(s, row, desk.banned);
  const int64_t k = only < 0 ? std::min(s.V, count + int64_t(desk.banned.size())) : 1;
  desk.values.resize(size_t(k)), desk.indices.resize(size_t(k));
  const Softmax all = topk_row(x, s.V, k, desk.values.data(), desk.indices.data());
  if (only >= 0) {
    int64_t i = 0;
    while (i < s.V && word_of(s, sentence, i) != only) ++i;
    *to = {i < s.V ? all.logprob(x[i]) : -std::numeric_limits<float>::infinity(), row, only, 0};
    return 1;
  }
  int64_t found = 0;
  for (int64_t j = 0; j < k && found < count; ++j) {
    const int64_t word = word_of(s, sentence, desk.indices[size_t(j)]);
    if (std::find(desk.banned.begin(), desk.banned.end(), word) == desk.banned.end())
      to[found++] = {desk.values[size_t(j)], row, word, 0};
  }
  return found;
}

// Where a uniform number falls in the running sum of n powers of log-probabilities, which are lost;
// with top_p only the most probable count.
static int64_t fall(const Search& s, float* chances, int64_t n, double uniform, Desk& desk) {
  constexpr int W = kLanes<float>;
  const float most = *std::max_element(chances, chances + n), heat = float(s.temperature);
  for (int64_t i = 0; i < n; i += W)
    store(chances + i, exp_nonpositive((load(chances + i) - most) / heat));
  double total = std::accumulate(chances, chances + n, 0.0);
  if (s.top_p < 1.0) {
    std::vector<int64_t>& order = desk.indices;
    order.resize(size_t(n));
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(),
                     [&](int64_t a, int64_t b) { return chances[a] > chances[b]; });
    double upto = 0.0;
    for (const int64_t i : order) {
      if (i != order[0] && upto >= s.top_p * total) chances[i] = 0.0f;
      else upto += chances[i];
    }
    total = upto;
  }
  double upto = 0.0;
  for (int64_t i = 0; i < n; ++i)
    if ((upto += chances[i]) > uniform * total) return i;
  return total > 0.0 ? n - 1 : 0;  // 0: they are no numbers
}

// The word of a draw that depends on the seed of the sentence, the place and the position alone.
static Continuation draw_row(const Search& s, int64_t row, Desk& desk, Continuation* to) {
  constexpr int W = kLanes<float>;
  constexpr float never = -std::numeric_limits<float>::infinity();
  const int64_t sentence = s.sentences[row], place = s.places[row];
  const bool listed = s.top_k || only_word(s, sentence) >= 0;
  // All words in their order, or the best of them.
  int64_t n = listed ? continue_row(s, row, s.top_k, desk, to) : s.V;
  desk.chances.assign(size_t((std::max<int64_t>(n, 1) + W - 1) / W * W), never);
  float *chances = desk.chances.data(), value;
  const float* x = s.scores + row * s.V;
  if (listed) {
    for (int64_t i = 0; i < n; ++i) chances[i] = float(to[i].total);
  } else {
    int64_t best;
    const Softmax all = topk_row(x, s.V, 1, &value, &best);
    for (int64_t i = 0; i < n; ++i) chances[i] = all.logprob(x[i]);
    ban(s, row, desk.banned);
    for (const int64_t word : desk.banned)
      for (int64_t i = s.table ? 0 : word; i < (s.table ? n : word + 1); ++i)
        if (word_of(s, sentence, i) == word) chances[i] = never;
  }
  const uint64_t index = (uint64_t(place) << 32) + uint64_t(s.length[sentence] + 1);
  const double uniform = (random_bits(uint64_t(s.seeds[sentence]), index) + 0.5) / 4294967296.0;
  desk.kept = desk.chances;
  const int64_t i = n ? fall(s, chances, n, uniform, desk) : 0;
  return {desk.kept[size_t(i)], row, listed ? to[i].word : word_of(s, sentence, i), place};
}

// An output of a sentence: the words of a row, and EOS.
static void finish(Search& s, int64_t sentence, const Continuation& last) {
  const int64_t to = sentence * s.width + s.found[sentence]++, length = s.length[sentence];
  std::copy_n(s.words + last.row * s.room, length, s.found_words + to * s.room);
  std::copy_n(s.sums + last.row * s.room, length, s.found_sums + to * s.room);
  s.found_words[to * s.room + length] = int32_t(last.word);
  s.found_sums[to * s.room + length] = last.total;
  s.found_lengths[to] = length + 1;
  s.found_places[to] = last.place;
}

// The outputs of the sentence of rows [row, end), and its hypotheses that live on.
static void choose(Search& s, int64_t row, int64_t end, Stage& stage) {
  const int64_t sentence = s.sentences[row];
  const size_t width = size_t(s.draws ? s.width : stage.width);
  std::vector<Continuation>& best = stage.best;
  best.clear();
  for (; row < end; ++row)
    for (int64_t j = 0; j < stage.counts[size_t(row)]; ++j) {
      Continuation each = stage.found[size_t(row * stage.width + j)];
      each.total += s.totals[row];
      size_t at = best.size();
      while (!s.draws && at > 0 && better(each.total, best[at - 1].total)) --at;
      if (at == width) break;
      if (best.size() == width) best.pop_back();
      best.insert(best.begin() + int64_t(at), each);
    }
  const size_t before = stage.next.size();
  int64_t going = 0;
  for (size_t i = 0; i < best.size(); ++i) {
    const bool real = best[i].total > -std::numeric_limits<double>::infinity();
    if (best[i].word == s.eos) {
      if (real && i < size_t(s.width) && s.found[sentence] < s.width) finish(s, sentence, best[i]);
    } else if (going++ < s.width && real) {
      stage.next.push_back(best[i]);
    }
  }
  if (s.found[sentence] < s.width && stage.next.size() > before) {
    ++s.length[sentence];
  } else {
    stage.next.resize(before);
    s.leavers[s.left++] = sentence;
  }
}

// Row i of a table, `used` of `size` numbers, becomes that of the row that next[i] continues.
template <class E>
static void take(const std::vector<Continuation>& next, E* table, int64_t size, int64_t used,
                 std::vector<char>& spare) {
  const size_t bytes = size_t(used) * sizeof(E);
  spare.resize(next.size() * bytes);
  for (size_t i = 0; i < next.size(); ++i)
    if (next[i].row != int64_t(i)) memcpy(&spare[i * bytes], table + next[i].row * size, bytes);
  for (size_t i = 0; i < next.size(); ++i)
    if (next[i].row != int64_t(i)) memcpy(table + int64_t(i) * size, &spare[i * bytes], bytes);
}

// A step of all rows; scores that are there already are taken if the program is empty.
static void step(Search& s, Run& run, Stage& stage, ParallelFor parallel) {
  const int64_t rows = run.rows;
  if (s.table) std::fill_n(s.scores, rows * s.V, -std::numeric_limits<float>::infinity());
  run_program(run, parallel);
  ++run.time;
  stage.found.resize(size_t(rows * stage.width)), stage.counts.assign(size_t(rows), 1);
  std::atomic<int64_t> next{0};
  auto work = [&] {  // whoever comes takes some rows, until there are none left
    Desk desk;
    constexpr int64_t kSome = 4;
    for (int64_t begin; (begin = next.fetch_add(kSome)) < rows;)
      for (int64_t row = begin; row < std::min(rows, begin + kSome); ++row) {
        Continuation* to = &stage.found[size_t(row * stage.width)];
        if (s.draws) *to = draw_row(s, row, desk, to);
        else stage.counts[size_t(row)] = continue_row(s, row, stage.width, desk, to);
      }
  };
  auto call = [](int64_t, int64_t, void* context) { (*static_cast<decltype(work)*>(context))(); };
  if (!parallel || run.threads < 2) work();
  else if (parallel(0, run.threads, 1, call, &work) != 0) throw std::bad_alloc();
  stage.next.clear();
  for (int64_t row = 0, end; row < rows; row = end) {
    for (end = row + 1; end < rows && s.sentences[end] == s.sentences[row];) ++end;
    choose(s, row, end, stage);
  }
  run.rows = int64_t(stage.next.size());
  int64_t longest = 0;
  for (const Continuation& each : stage.next)
    longest = std::max(longest, s.length[s.sentences[each.row]]);
  std::vector<char> spare;
  take(stage.next, s.words, s.room, longest, spare);
  take(stage.next, s.sums, s.room, longest, spare);
  if (run.ancestors) take(stage.next, run.ancestors, run.span, run.span, spare);
  take(stage.next, s.positions, 1, 1, spare);
  take(stage.next, s.sentences, 1, 1, spare);
  for (int64_t row = 0; row < run.rows; ++row) {
    const Continuation& each = stage.next[size_t(row)];
    const int64_t at = row * s.room + s.length[s.sentences[row]] - 1;
    s.tokens[row] = each.word, s.words[at] = int32_t(each.word);
    s.totals[row] = s.sums[at] = each.total;
    s.places[row] = each.place;
    ++s.positions[row];
  }
}

// At most `steps` of them, for `seconds` or until a sentence has left.
static void search(Search& s, ParallelFor parallel) {
  using Clock = std::chrono::steady_clock;
  const auto begin = Clock::now();
  Stage stage;
  // With one hypothesis the second continuation is never used.
  stage.width = s.draws ? std::max<int64_t>(1, s.top_k) : s.width > 1 ? 2 * s.width : 1;
  s.left = 0;
  for (int64_t n = 0; n < s.steps && s.run->rows; ++n) {
    step(s, *s.run, stage, parallel);
    const std::chrono::duration<double> since = Clock::now() - begin;
    if (s.seconds > 0.0 ? since.count() >= s.seconds : s.left > 0) break;
  }
}

}  // namespace LIGHTCONV_ISA
