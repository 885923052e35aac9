// Random programs of the engine with memory of exactly the right size, for the sanitizers to watch;
// products are compared with the plain formula, and several threads with one.
#include <cstring>

#include "cases.h"
#include "program.h"

extern "C" {
const void* lightconv_engine();
int64_t lightconv_panel(const void* engine, int64_t kind);
int lightconv_run(const void* engine, const Run* run, int64_t* unknown);
int lightconv_topk(const float* logits, int64_t rows, int64_t V, int64_t stride, int64_t k,
                   float* values, int64_t* indices);
}

namespace {

int64_t wide(int64_t n) { return (n + 15) / 16 * 16; }

std::vector<float> floats(int64_t n) {
  std::vector<float> v(static_cast<size_t>(n));
  for (float& x : v) x = float(number());
  return v;
}

// Two or three buffers after each other; everything else of a run that some instruction reads.
struct Case {
  int64_t rows = size_of({1, 2, 5, 12, 13, 40, 130}), columns = 0, unknown = 0;
  Instruction i{};
  Run run{};
  std::vector<float> space, history;  // a program changes history and ancestors
  std::vector<int32_t> ancestors;

  Place buffer(int64_t size) {
    Place p{columns, wide(size), 0};
    columns += p.width;
    return p;
  }
  bool go(const std::vector<Instruction>& program) {
    const std::vector<float> before = floats(rows * columns), past = history;
    const std::vector<int32_t> parents = ancestors;
    space = before;
    run.program = program.data(), run.count = int64_t(program.size()), run.rows = rows;
    run.threads = 1, run.workspace = space.data();
    if (lightconv_run(lightconv_engine(), &run, &unknown) || unknown != -1) return false;
    const std::vector<float> alone = space, remembered = history;
    history = past, ancestors = parents;
    space = before, run.threads = pick({2, 4}), run.workspace = space.data();
    if (lightconv_run(lightconv_engine(), &run, &unknown) || unknown != -1) return false;
    return same(alone, space) && same(remembered, history);
  }
  static bool same(const std::vector<float>& a, const std::vector<float>& b) {
    for (size_t k = 0; k < a.size(); ++k)  // of NaNs, the bits depend on the order of operands
      if (memcmp(&a[k], &b[k], sizeof(float)) && a[k] == a[k]) return false;
    return true;
  }
  float at(const Place& p, int64_t row, int64_t c) const {
    return space[size_t(p.column * rows + row * p.width + p.shift + c)];
  }
};

bool linear_is_right() {
  Case c;
  const int64_t I = size_of({1, 3, 16, 33, 70}), O = size_of({1, 7, 16, 33, 100});
  const int64_t kind = pick({kFloatPanel, kSignedPanel, kUnsignedPanel, kBf16Panel});
  const int64_t P = lightconv_panel(lightconv_engine(), kind);
  if (!P) return true;
  const int64_t J = kind == kBf16Panel ? (I + 1) / 2 * 4 : (I + 3) / 4 * 4;  // bytes of a row
  const int64_t panels = (O + P - 1) / P;
  const std::vector<float> bias = floats(panels * P), scale = floats(panels * P);
  c.run.longest = 1;
  c.i.from = c.buffer(I), c.i.with = {-1, 0, 0}, c.i.I = I, c.i.O = O, c.i.bias = bias.data();
  if (kind == kFloatPanel) {
    const std::vector<float> weight = floats(panels * P * I);
    c.i.op = kLinear, c.i.weight = weight.data(), c.i.to = c.buffer(O);
    if (!c.go({c.i})) return false;
    for (int64_t row = 0; !strange && row < c.rows; ++row)
      for (int64_t o = 0; o < O; ++o) {
        double sum = bias[size_t(o)];
        for (int64_t k = 0; k < I; ++k)
          sum += double(c.at(c.i.from, row, k)) * weight[size_t((o / P * I + k) * P + o % P)];
        if (!(std::fabs(sum - c.at(c.i.to, row, o)) < 1e-4)) return false;
      }
    return true;
  }
  std::vector<int8_t> weight(static_cast<size_t>(panels * P * J));
  for (int8_t& w : weight) w = int8_t(int(generator() % 255) - 127);
  std::vector<int32_t> offset(static_cast<size_t>(panels * P));
  Instruction q = c.i;
  q.op = kQuantize, q.to = c.buffer(J / 4 + 1), q.panel = kind;
  c.i.op = kLinear, c.i.from = q.to, c.i.to = c.buffer(O), c.i.panel = kind;
  c.i.weight = weight.data(), c.i.scale = scale.data(), c.i.offset = offset.data();
  return c.go({q, c.i});
}

bool rowwise_runs() {
  Case c;
  const int64_t D = size_of({1, 3, 16, 17, 40});
  const std::vector<float> weight = floats(9 * D), bias = floats(D), waves = floats(3 * D);
  std::vector<int64_t> tokens(static_cast<size_t>(c.rows));
  for (int64_t& token : tokens) token = pick({0, 1, 8});
  c.i.op = pick({kEmbed, kNorm, kGlu, kGate, kCopy});
  c.i.from = c.buffer(2 * D), c.i.to = c.buffer(D), c.i.with = c.buffer(2 * D);
  c.i.I = c.i.op == kEmbed ? 9 : D, c.i.O = D, c.i.weight = weight.data(), c.i.bias = bias.data();
  c.i.factor = 1.0;
  c.run.tokens = tokens.data(), c.run.sinusoids = waves.data(), c.run.longest = 1;
  const std::vector<int64_t> positions(static_cast<size_t>(c.rows), 2);
  c.run.positions = positions.data();
  return c.go({c.i});
}

// A convolution, attention or average over sequences, or over the past of hypotheses.
bool mixing_runs() {
  Case c;
  const int64_t H = size_of({1, 2, 5}), D = H * size_of({1, 3, 16, 40}), K = size_of({1, 2, 7, 31});
  const int64_t time = size_of({0, 1, 5, 40}), sentences = pick({1, 3});
  c.i.op = pick({kConvolve, kAttend, kAttendSource, kAverage, kArrange, kWindow});
  const bool decodes = c.i.op == kArrange ? false : pick({0, 1}), chunks = pick({0, 1});
  c.i.heads = H, c.i.kernel = c.i.op == kAttend ? pick({0, K}) : K;
  c.i.left = decodes ? K - 1 : K / 2;
  c.i.normalize = pick({0, 1, 2, 5, 8}), c.i.factor = 0.5;
  c.i.from = c.buffer(c.i.op == kAttend ? 3 * D : 2 * D), c.i.to = c.buffer(c.i.op == kWindow ? K * D : D);
  c.i.with = c.buffer(std::max(D, H * K)), c.i.I = c.i.O = D, c.i.narrow = pick({0, 1});
  const std::vector<float> kernels = floats(H * K);
  if (pick({0, 1})) c.i.weight = kernels.data();
  const int64_t ring = c.i.op == kAverage ? 2 : c.i.kernel ? c.i.kernel : time + 1;
  const int64_t slots = c.rows + pick({0, 2}), span = ring + pick({0, 3});
  const int64_t clock = time + span + c.rows;  // every row's time is at least its position
  c.history = floats(ring * slots * 2 * D);
  c.ancestors.resize(size_t(c.rows * span));
  // A hypothesis reads what others wrote only if all are at one position, as those of a sentence are.
  const bool together = !chunks && pick({0, 1});
  const int64_t written = chunks ? (c.rows >= 3 ? 2 : 1) : c.rows;
  for (int64_t k = 0; k < c.rows * span; ++k) {
    const int64_t other = generator() % unsigned(slots), own = std::min(k / span, slots - 1);
    c.ancestors[size_t(k)] = int32_t(together || other >= written ? other : own);
  }
  std::vector<int64_t> begins, ends, sentence, hypotheses, positions, lengths, offsets{0};
  for (int64_t s = 0; s < sentences; ++s) offsets.push_back(offsets.back() + size_of({1, 4, 18}));
  for (int64_t s = 0; s < sentences; ++s) lengths.push_back(offsets[size_t(s) + 1] - offsets[size_t(s)]);
  // As large as needed, so that a byte too far is seen: int8 takes scales and rounded bytes.
  const int64_t numbers = c.i.narrow ? 2 * H + (2 * D + 3) / 4 : 2 * D;
  const std::vector<float> source = floats(offsets.back() * numbers);
  std::vector<float> arranged(static_cast<size_t>(c.rows * numbers));
  if (c.i.op == kArrange) c.i.O = 2 * D, c.i.output = 1;
  for (int64_t row = 0; row < c.rows; ++row) {
    const int64_t split = c.rows / 3;
    begins.push_back(row < split ? 0 : split), ends.push_back(row < split ? split : c.rows);
    sentence.push_back(row * sentences / c.rows);
    hypotheses.push_back(split > 0 && row >= split);
    positions.push_back(chunks ? row - begins.back() + time : together ? time : generator() % unsigned(time + 1));
  }
  float* histories[] = {c.history.data()};
  std::vector<const char*> sources;
  for (int64_t s = 0; s < sentences; ++s)
    sources.push_back(reinterpret_cast<const char*>(source.data() + offsets[size_t(s)] * numbers));
  void* outputs[] = {arranged.data()};
  c.run.outputs = outputs;
  c.run.time = clock, c.run.slots = slots, c.run.span = span, c.run.ancestors = c.ancestors.data();
  c.run.positions = positions.data();
  c.run.histories = histories, c.run.rings = &ring, c.run.sentences = sentence.data();
  c.run.lengths = lengths.data(), c.run.layers = 1, c.run.sources = sources.data();
  c.run.longest = std::max<int64_t>({K, c.rows + time, time + 1, 18});
  if (!decodes || chunks) c.run.begins = begins.data(), c.run.ends = ends.data();
  if (!decodes) c.run.ancestors = nullptr;
  else if (chunks) c.run.hypotheses = hypotheses.data();
  Instruction kept = c.i;
  kept.op = kRemember;
  if (c.i.op == kAttend) kept.I = 2 * D;  // keys and values
  return decodes ? c.go({c.i, kept}) : c.go({c.i});
}

bool topk_is_right() {
  const int64_t V = size_of({1, 5, 16, 33, 200, 1000}), rows = size_of({0, 1, 7, 70});
  const int64_t k = std::min<int64_t>(V, size_of({1, 2, 8, 10})), stride = V + pick({0, 3});
  const std::vector<float> logits = floats(rows * stride);
  std::vector<float> values(static_cast<size_t>(rows * k));
  std::vector<int64_t> indices(static_cast<size_t>(rows * k));
  if (lightconv_topk(logits.data(), rows, V, stride, k, values.data(), indices.data())) return false;
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t j = 0; j < k; ++j)  // whatever the numbers, an index is one
      if (const int64_t v = indices[size_t(row * k + j)]; v < 0 || v >= V) return false;
    if (strange) continue;
    const float* x = logits.data() + row * stride;
    double sum = 0.0;
    for (int64_t v = 0; v < V; ++v) sum += std::exp(double(x[v]));
    for (int64_t j = 0; j < k; ++j) {
      const int64_t index = indices[size_t(row * k + j)];
      int64_t better = 0;
      for (int64_t v = 0; v < V; ++v) better += x[v] > x[index] || (x[v] == x[index] && v < index);
      const double expected = x[index] - std::log(sum);
      if (better != j || !(std::fabs(expected - values[size_t(row * k + j)]) < 1e-4)) return false;
    }
  }
  return true;
}

}  // namespace

const char* wrong_program() {
  if (!linear_is_right()) return "linear";
  if (!rowwise_runs()) return "rowwise";
  if (!mixing_runs()) return "mixing";
  if (!topk_is_right()) return "topk";
  return nullptr;
}
