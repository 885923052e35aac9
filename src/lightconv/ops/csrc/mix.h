// What moves information along time, for rows whose past or source lies anywhere in memory: a list
// of addresses says where. Convolution and attention both end in a weighted sum of such rows, with
// the sums of up to eight vectors of channels in registers; attention to one source takes the
// hypotheses of a sentence together, so that keys and values are loaded once for them.
#pragma once
#include <limits>

#include "gemm.h"
#include "int8.h"

namespace LIGHTCONV_ISA {

// What a row's numbers are stored as: float, or int8 with a scale that the caller knows.
static inline Vec<float> load_wide(const float* from) { return load(from); }
static inline Vec<float> load_wide(const int8_t* from) {
#if defined(__AVX512F__)
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
  return (Vec<float>)_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes));
#elif defined(__AVX2__)
  const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(from));
  return (Vec<float>)_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes));
#else  // compilers make many moves of this
  typedef int8_t Bytes __attribute__((vector_size(VEC_BYTES / 4)));
  Bytes bytes;
  memcpy(&bytes, from, sizeof bytes);
  return __builtin_convertvector(__builtin_convertvector(bytes, Ints<float>), Vec<float>);
#endif
}

constexpr int64_t kLongest = 1 << 27;  // rows that one row may read
constexpr int kTogether = 4;  // rows that attend to the same keys at once

// Scratch of one thread.
struct Room {
  const void** rows;   // [longest]
  float* weights;      // [kTogether, width], width >= longest and whole vectors
  int64_t width;

  template <class E>
  const E** list() const {
    return reinterpret_cast<const E**>(rows);
  }
};

static inline int64_t room_width(int64_t longest) {
  constexpr int W = kLanes<float>;
  return (longest + W - 1) / W * W + W;
}

// to[g][c] = share[g] * sum_s weights[g][s] * rows[s][c] for C vectors of channels.
template <int G, int C, class E>
static inline void sum_rows(const E* const* rows, int64_t n, int64_t channel,
                            const float* weights, int64_t width, const float* share,
                            float* const* to) {
  constexpr int W = kLanes<float>;
  Vec<float> sums[G][C] = {};
  for (int64_t s = 0; s < n; ++s) {
    const E* row = rows[s] + channel;
    Vec<float> each[G];
    unroll<G>([&](auto g) { each[g] = broadcast(weights[g * width + s]); });
    unroll<C>([&](auto c) {
      const Vec<float> v = load_wide(row + c * W);
      unroll<G>([&](auto g) { sums[g][c] += each[g] * v; });
    });
  }
  unroll<G>([&](auto g) {
    unroll<C>([&](auto c) { store(to[g] + channel + c * W, sums[g][c] * share[g]); });
  });
}

// The same for channels [begin, end): whole vectors first, then one by one.
template <int G, class E>
static inline void sum_channels(const E* const* rows, int64_t n, int64_t shift, int64_t begin,
                                int64_t end, const float* weights, int64_t width,
                                const float* share, float* const* to) {
  constexpr int W = kLanes<float>, C = G == 1 ? 8 : 4;
  int64_t c = begin;
  float* moved[G];
  for (int g = 0; g < G; ++g) moved[g] = to[g] - shift;
  for (; c + C * W <= end; c += C * W)
    sum_rows<G, C>(rows, n, shift + c, weights, width, share, moved);
  for (; c + W <= end; c += W) sum_rows<G, 1>(rows, n, shift + c, weights, width, share, moved);
  for (; c < end; ++c)
    for (int g = 0; g < G; ++g) {
      float sum = 0.0f;
      for (int64_t s = 0; s < n; ++s) sum += weights[g * width + s] * float(rows[s][shift + c]);
      to[g][c] = sum * share[g];
    }
}

// exp(row - max) in place, n numbers; returns 1 / their sum. The lanes up to whole vectors become
// zero.
static inline float soften(float* row, int64_t n) {
  constexpr int W = kLanes<float>;
  const int64_t whole = (n + W - 1) / W * W;
  for (int64_t k = n; k < whole; ++k) row[k] = -std::numeric_limits<float>::infinity();
  Vec<float> most = load(row);
  for (int64_t k = W; k < whole; k += W) most = maximum<float>(most, load(row + k));
  most = max_lanes<float>(most);
  Vec<float> total{};
  for (int64_t k = 0; k < whole; k += W) {
    const Vec<float> e = exp_nonpositive(load(row + k) - most);
    total += e;
    store(row + k, e);
  }
  return 1.0f / sum_lanes<float>(total)[0];
}

// to[g][s] = factor * sum_c q[g][c] * keys[s][c] for one head's channels [begin, end).
template <int G, class E>
static inline void score(const float* const* q, const E* const* keys, int64_t n, int64_t begin,
                         int64_t end, float factor, float* to, int64_t width) {
  constexpr int W = kLanes<float>, S = W / G;  // S keys and G queries give one vector of products
  const int64_t whole = begin + (end - begin) / W * W;
  for (int64_t s = 0; s < n; s += S) {
    const E* some[S];
    for (int i = 0; i < S; ++i) some[i] = keys[std::min(s + i, n - 1)];
    Vec<float> sums[W] = {};
    for (int64_t c = begin; c < whole; c += W) {
      Vec<float> query[G];
      unroll<G>([&](auto g) { query[g] = load(q[g] + c); });
      unroll<S>([&](auto i) {
        const Vec<float> key = load_wide(some[i] + c);
        unroll<G>([&](auto g) { sums[g * S + i] += query[g] * key; });
      });
    }
    alignas(64) float each[W];
    store(each, sum_each<float>(sums) * factor);
    for (int g = 0; g < G; ++g) {
      for (int64_t c = whole; c < end; ++c)
        for (int i = 0; i < S; ++i) each[g * S + i] += factor * q[g][c] * float(some[i][c]);
      memcpy(to + g * width + s, each + g * S, S * sizeof(float));
    }
  }
}

// softmax(q keys^T factor) values for G rows and one head: n keys of R numbers end to end, then the
// values. Keys and values are to be multiplied by scales[0 .. 2n), unless there are none.
template <int G, class E>
static inline void attend_block(const float* const* q, const E* keys, const float* scales,
                                int64_t n, int64_t R, float factor, const Room& room,
                                float* const* to) {
  const E** rows = room.list<E>();
  for (int64_t s = 0; s < n; ++s) rows[s] = keys + s * R;
  auto scale = [&](float* row, const float* by) {
    for (int64_t s = 0; s < n; ++s) row[s] *= by[s];
  };
  score<G>(q, rows, n, 0, R, factor, room.weights, room.width);
  float share[G];
  for (int g = 0; g < G; ++g) {
    float* weights = room.weights + g * room.width;
    if (scales) scale(weights, scales);
    share[g] = soften(weights, n);
    if (scales) scale(weights, scales + n);
  }
  sum_channels<G>(rows, n, n * R, 0, R, room.weights, room.width, share, to);
}

// softmax(q keys^T factor) values for G rows and all heads; the values lie D after the keys.
template <int G>
static inline void attend(const float* const* q, const float* const* keys, int64_t n, int64_t D,
                          int64_t heads, float factor, const Room& room, float* const* to) {
  const int64_t R = D / heads;
  for (int64_t h = 0; h < heads; ++h) {
    score<G>(q, keys, n, h * R, (h + 1) * R, factor, room.weights, room.width);
    float share[G];
    for (int g = 0; g < G; ++g) share[g] = soften(room.weights + g * room.width, n);
    sum_channels<G>(keys, n, D, h * R, (h + 1) * R, room.weights, room.width, share, to);
  }
}

// The hypothesis of a row in a decoder, and the time of its token.
static inline int64_t hypothesis_of(const Run& run, int64_t row) {
  return run.hypotheses ? run.hypotheses[row] : row;
}

static inline int64_t time_of(const Run& run, int64_t row) {
  return run.ends ? run.time - (run.ends[row] - 1 - row) : run.time;
}

// The last `most` rows up to `row`, itself last, in a decoder; returns how many there are. Those of
// this run are in the buffer `from`, earlier ones in a history.
static inline int64_t past(const Run& run, const Instruction& i, const Place& from, int64_t width,
                           int64_t row, int64_t most, const float** rows) {
  const int64_t n = std::min(most, run.positions[row] + 1);
  const int64_t here = run.begins ? std::min(n, row - run.begins[row] + 1) : 1, old = n - here;
  const int64_t ring = run.rings[i.memory], first = time_of(run, row) - n + 1;
  const float* history = run.histories[i.memory];
  const int32_t* slots = run.ancestors + hypothesis_of(run, row) * run.span;
  if (old) {
    int64_t column = first % run.span, at = first % ring;
    for (int64_t j = 0; j < old; ++j) {
      rows[j] = history + (at * run.slots + slots[column]) * width;
      if (++column == run.span) column = 0;
      if (++at == ring) at = 0;
    }
  }
  for (int64_t j = 0; j < here; ++j) rows[old + j] = place(run, from, row - here + 1 + j);
  return n;
}

// An instruction of its own: no row of a run may be written over before all have read.
static void remember(const Run& run, const Instruction& i, int64_t row) {
  const int64_t ring = run.rings[i.memory], time = time_of(run, row);
  if (run.time - time >= ring) return;
  float* to = run.histories[i.memory] + (time % ring * run.slots + hypothesis_of(run, row)) * i.I;
  memcpy(to, place(run, i.from, row), size_t(i.I) * sizeof(float));
}

// The ten normalisations of a kernel, numbered as ops/program.py does; 1 is the softmax.
static inline void normalize(int64_t how, float* w, int64_t K) {
  float norm = 0.0f;
  for (int64_t k = 0; k < K; ++k) {
    const float v = w[k];
    if (how == 2) w[k] = 1.0f / (1.0f + std::exp(-v));
    if (how == 3) w[k] = std::tanh(v);
    if (how == 6) w[k] = v * v;
    if (how >= 7) w[k] = std::fabs(v);
    norm += how == 5 || how == 9 ? v * v : std::fabs(v);
  }
  if (how == 4 || how == 8 || how == 5 || how == 9) {
    if (how == 5 || how == 9) norm = std::sqrt(norm);
    for (int64_t k = 0; k < K; ++k) w[k] /= norm + 1e-6f;
  }
}

// The rows under a kernel at `row`: rows[j] is that of tap first + j, for j < n; other taps read
// zeros.
static inline int64_t under_kernel(const Run& run, const Instruction& i, int64_t row,
                                   const float** rows, int64_t& first) {
  const int64_t D = i.I, K = i.kernel;
  if (run.ancestors) {
    const int64_t n = past(run, i, i.from, D, row, K, rows);
    first = K - n;
    return n;
  }
  const int64_t zero = row - i.left;
  first = std::max<int64_t>(0, run.begins[row] - zero);
  const int64_t n = std::min(K, run.ends[row] - zero) - first;
  for (int64_t j = 0; j < n; ++j) rows[j] = place(run, i.from, zero + first + j);
  return n;
}

static void convolve(const Run& run, const Instruction& i, int64_t row, const Room& room) {
  const int64_t D = i.I, R = D / i.heads, K = i.kernel;
  const float** rows = room.list<float>();
  int64_t first;
  const int64_t n = under_kernel(run, i, row, rows, first);
  const float* kernels = i.weight ? static_cast<const float*>(i.weight) : place(run, i.with, row);
  float* to = place(run, i.to, row);
  for (int64_t h = 0; h < i.heads; ++h) {
    const float* w = kernels + h * K;
    float share = 1.0f;
    if (!i.weight) {
      memcpy(room.weights, w, size_t(K) * sizeof(float));
      if (i.normalize == 1) share = soften(room.weights, K);
      else normalize(i.normalize, room.weights, K);
      w = room.weights;
    }
    sum_channels<1>(rows, n, 0, h * R, (h + 1) * R, w + first, 0, &share, &to);
  }
}

// The rows under a kernel end to end, for a matrix that reads them all.
static void window(const Run& run, const Instruction& i, int64_t row, const Room& room) {
  const int64_t D = i.I;
  const float** rows = room.list<float>();
  int64_t first;
  const int64_t n = under_kernel(run, i, row, rows, first);
  float* to = place(run, i.to, row);
  std::fill(to, to + i.kernel * D, 0.0f);
  for (int64_t j = 0; j < n; ++j)
    memcpy(to + (first + j) * D, rows[j], size_t(D) * sizeof(float));
}

// How many of rows row .. end attend to the same keys.
template <class Same>
static inline int64_t alike(int64_t row, int64_t end, Same same) {
  int64_t n = 1;
  while (n < kTogether && row + n < end && same(row + n)) ++n;
  return n == 3 ? 2 : n;
}

// Calls attend(G, queries, outputs) for up to kTogether rows.
template <class Attend>
static inline void together(const Run& run, const Instruction& i, int64_t row, int64_t rows,
                            Attend attend) {
  const float* q[kTogether];
  float* to[kTogether];
  for (int64_t g = 0; g < rows; ++g)
    q[g] = place(run, i.from, row + g), to[g] = place(run, i.to, row + g);
  if (rows == 4) attend(std::integral_constant<int, 4>{}, q, to);
  else if (rows == 2) attend(std::integral_constant<int, 2>{}, q, to);
  else attend(std::integral_constant<int, 1>{}, q, to);
}

// Keys and values of a source sentence, for one layer: numbers [heads, 2, its rows, R], in int8
// behind scales [heads, 2, its rows]. A sentence begins source_bytes() per row before it.
static inline int64_t scale_bytes(const Instruction& i) {
  return i.narrow ? 2 * i.heads * int64_t(sizeof(float)) : 0;
}

static inline int64_t source_bytes(const Instruction& i, int64_t D) {
  return i.narrow ? scale_bytes(i) + round_to_four(2 * D) : 2 * D * int64_t(sizeof(float));
}

template <class E>
static void attend_source(const Run& run, const Instruction& i, Range range, const Room& room) {
  const int64_t D = i.O, R = D / i.heads;
  for (int64_t row = range.begin, rows; row < range.end; row += rows) {
    const int64_t sentence = run.sentences[row];
    rows = alike(row, range.end, [&](int64_t other) { return run.sentences[other] == sentence; });
    const int64_t n = run.lengths[sentence];
    const char* block = run.sources[sentence * run.layers + i.memory];
    const float* scales = i.narrow ? reinterpret_cast<const float*>(block) : nullptr;
    const E* keys = reinterpret_cast<const E*>(block + n * scale_bytes(i));
    together(run, i, row, rows, [&](auto g, const float** q, float** to) {
      constexpr int G = decltype(g)::value;
      for (int64_t h = 0; h < i.heads; ++h) {
        attend_block<G>(q, keys + h * 2 * n * R, scales ? scales + h * 2 * n : nullptr, n, R,
                        float(i.factor), room, to);
        for (int j = 0; j < G; ++j) q[j] += R, to[j] += R;
      }
    });
  }
}

// A row's keys and values, to where attend_source looks for them.
static void arrange(const Run& run, const Instruction& i, int64_t row) {
  const int64_t D = i.O / 2, R = D / i.heads, begin = run.begins[row], n = run.ends[row] - begin;
  char* block = static_cast<char*>(run.outputs[i.output - 1]) + begin * source_bytes(i, D);
  float* scales = reinterpret_cast<float*>(block);
  char* numbers = block + n * scale_bytes(i);
  for (int64_t part = 0; part < 2 * i.heads; ++part) {  // keys or values of head part / 2
    const float* from = place(run, i.from, row) + part % 2 * D + part / 2 * R;
    const int64_t at = part * n + row - begin;
    if (i.narrow)
      scales[at] = to_bytes(from, R, 0, reinterpret_cast<int8_t*>(numbers) + at * R);
    else
      memcpy(reinterpret_cast<float*>(numbers) + at * R, from, size_t(R) * sizeof(float));
  }
}

// Self-attention; `kernel` is the window, 0 for everything, `left` how far back it reaches.
static void attend_self(const Run& run, const Instruction& i, Range range, const Room& room) {
  const int64_t D = i.O;
  const float** keys = room.list<float>();
  for (int64_t row = range.begin, rows; row < range.end; row += rows) {
    rows = 1;
    int64_t n;
    if (!run.ancestors) {
      int64_t first = run.begins[row], last = run.ends[row];
      if (i.kernel) {
        const int64_t zero = row - i.left;
        first = std::max(first, zero), last = std::min(last, zero + i.kernel);
      } else {
        rows = alike(row, range.end, [&](int64_t other) { return other < last; });
      }
      n = last - first;
      for (int64_t s = 0; s < n; ++s) keys[s] = place(run, i.from, first + s) + D;
    } else {
      const Place from{i.from.column, i.from.width, i.from.shift + D};
      n = past(run, i, from, 2 * D, row, i.kernel ? i.kernel : kLongest, keys);
    }
    together(run, i, row, rows, [&](auto g, const float** q, float** to) {
      attend<decltype(g)::value>(q, keys, n, D, i.heads, float(i.factor), room, to);
    });
  }
}

// The mean of a sequence's rows, once for all of them; in a decoder of the past of each, from its
// sum, which goes to `with`. Whoever has the first row of a sequence does them all.
static void average(const Run& run, const Instruction& i, int64_t row, const Room& room) {
  const int64_t D = i.I, first = run.begins ? run.begins[row] : row;
  const int64_t end = run.begins ? run.ends[row] : row + 1;
  if (row != first) return;
  float* to = place(run, i.to, row);
  if (!run.ancestors) {
    std::fill(to, to + D, 0.0f);
    for (int64_t s = first; s < end; ++s) {
      const float* x = place(run, i.from, s);
      for (int64_t c = 0; c < D; ++c) to[c] += x[c];
    }
    for (int64_t c = 0; c < D; ++c) to[c] /= float(end - first);
    for (int64_t s = first + 1; s < end; ++s) memcpy(place(run, i.to, s), to, size_t(D) * sizeof(float));
    return;
  }
  const float** rows = room.list<float>();
  const float* before = past(run, i, i.with, D, row, 2, rows) == 2 ? rows[0] : nullptr;
  for (; row < end; ++row) {
    const float* x = place(run, i.from, row);
    const float count = float(run.positions[row] + 1);
    float *total = place(run, i.with, row), *to = place(run, i.to, row);
    for (int64_t c = 0; c < D; ++c) {
      total[c] = before ? before[c] + x[c] : x[c];
      to[c] = total[c] / count;
    }
    before = total;
  }
}

}  // namespace LIGHTCONV_ISA
