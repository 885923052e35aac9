// Runs the kernels on random shapes with memory of exactly the right size, on real threads, for the
// sanitizers to watch; the forward is compared with the plain formula so that the run means something.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <thread>
#include <vector>

#include "problem.h"

extern "C" {
const char* lightconv_choose(const char* name);
void lightconv_use_threads(ParallelFor function);
int lightconv_forward(const Problem* p);
int lightconv_backward(const Problem* p);
int lightconv_step(const void*, void*, const void*, void*, int64_t, int64_t, int64_t, int64_t,
                   int64_t, int64_t, int64_t, int64_t, int64_t, int64_t);
}

const char* wrong_program();  // programs.cpp

static int32_t on_threads(int64_t begin, int64_t end, int64_t grain, ParallelBody body, void* context) {
  std::vector<std::thread> threads;
  const int64_t n = std::min<int64_t>(4, (end - begin + grain - 1) / grain);
  for (int64_t i = 0; i < n; ++i)
    threads.emplace_back(body, begin + (end - begin) * i / n, begin + (end - begin) * (i + 1) / n,
                         context);
  for (auto& thread : threads) thread.join();
  return 0;
}

static std::mt19937 generator;
static int64_t pick(std::vector<int64_t> values) { return values[generator() % values.size()]; }

// Exactly as many bytes as the tensor has: one element too far is an error.
struct Memory {
  void* data;
  Memory(int64_t count, int64_t dtype) {
    const int64_t size = dtype == kFloat64 ? 8 : dtype == kFloat32 ? 4 : 2;
    data = std::malloc(uint32_t(count * size));  // small, and the compiler knows it
    for (int64_t i = 0; i < count; ++i) {
      const double value = double(generator() % 2001) / 1000.0 - 1.0;
      if (dtype == kFloat64) static_cast<double*>(data)[i] = value;
      else if (dtype == kFloat32) static_cast<float*>(data)[i] = float(value);
      else static_cast<uint16_t*>(data)[i] = uint16_t(0x3C00 + generator() % 64);
    }
  }
  ~Memory() { std::free(data); }
  Memory(const Memory&) = delete;
};

static double at(const void* data, int64_t dtype, int64_t i) {
  return dtype == kFloat64 ? static_cast<const double*>(data)[i] : static_cast<const float*>(data)[i];
}

static bool forward_is_right(const Problem& p) {
  if (p.dtype > kFloat64 || p.weight_dtype > kFloat64 || p.offsets || p.softmax || p.drop) return true;
  const int64_t R = p.D / p.H;
  for (int64_t b = 0; b < p.B; ++b)
    for (int64_t t = 0; t < p.T; ++t)
      for (int64_t c = 0; c < p.D; ++c) {
        double sum = 0, size = 0;
        for (int64_t j = 0; j < p.K; ++j) {
          const int64_t s = t + j - p.left;
          if (s < 0 || s >= p.T) continue;
          const int64_t w = p.shared ? c / R * p.K + j : ((b * p.T + t) * p.H + c / R) * p.K + j;
          const double term = at(p.weight, p.weight_dtype, w) * at(p.x, p.dtype, (b * p.T + s) * p.D + c);
          sum += term;
          size += std::fabs(term);
        }
        const double got = at(p.out, p.dtype, (b * p.T + t) * p.D + c);
        if (!(std::fabs(got - sum) <= 1e-6 * size + 1e-12)) return false;
      }
  return true;
}

int main(int argc, char** argv) {
  const int count = argc > 1 ? std::atoi(argv[1]) : 100;
  generator.seed(argc > 2 ? unsigned(std::atoi(argv[2])) : 0u);
  lightconv_use_threads(on_threads);
  for (int i = 0; i < count; ++i) {
    const char* sets[] = {"base", "avx2", "avx512"};
    if (!lightconv_choose(sets[i % 3])) lightconv_choose(nullptr);
    Problem p{};
    p.dtype = pick({kFloat32, kFloat64, kBfloat16, kFloat16});
    p.weight_dtype = p.dtype > kFloat64 ? pick({p.dtype, kFloat32}) : p.dtype;
    p.B = pick({0, 1, 2, 3});
    p.T = pick({0, 1, 2, 5, 31, 63, 64, 65, 130});
    p.H = pick({1, 2, 5});
    p.D = p.H * pick({1, 3, 8, 16, 17, 40, 64, 65});
    p.K = pick({1, 2, 3, 4, 7, 31, 64, 65, 100});
    p.left = pick({0, p.K / 2, p.K - 1, p.K + 2, 200});
    p.shared = pick({0, 1});
    p.softmax = p.shared ? 0 : pick({0, 1});
    p.drop = pick({0, 0, 1 << 30});
    p.keep_scale = 4.0 / 3.0;
    p.seed = int64_t(generator()) << 20;
    std::vector<int64_t> offsets;
    if (p.B == 1 && pick({0, 1})) {
      offsets = {0, p.T / 3, p.T / 3, p.T};
      p.offsets = offsets.data();
      p.sequences = 3;
    }
    const int64_t n = p.B * p.T * p.D, w = p.shared ? p.H * p.K : p.B * p.T * p.H * p.K;
    Memory x(n, p.dtype), weight(w, p.weight_dtype), grad(n, p.dtype), out(n, p.dtype);
    Memory grad_x(n, p.dtype), grad_weight(w, p.weight_dtype);
    p.x = x.data, p.weight = weight.data, p.grad = grad.data, p.out = out.data;
    p.x_batch = p.grad_batch = p.T * p.D;
    p.x_row = p.grad_row = p.D;
    if (lightconv_forward(&p) || !forward_is_right(p)) {
      std::printf("wrong: case %d B%ld T%ld D%ld H%ld K%ld left%ld\n", i, long(p.B), long(p.T),
                  long(p.D), long(p.H), long(p.K), long(p.left));
      return 1;
    }
    if (pick({0, 1, 1})) p.grad_x = grad_x.data;
    if (pick({0, 1, 1})) p.grad_weight = grad_weight.data;
    if (lightconv_backward(&p)) return 1;

    const int64_t steps = pick({0, 1, 1, 3, 70});
    const int64_t sw = p.shared ? p.H * p.K : p.B * steps * p.H * p.K;
    Memory sx(p.B * steps * p.D, p.dtype), window(p.B * (p.K - 1) * p.D, p.dtype);
    Memory sweight(sw, p.weight_dtype), sout(p.B * steps * p.D, p.dtype);
    if (lightconv_step(sx.data, window.data, sweight.data, sout.data, p.B, steps, p.D, p.H, p.K,
                       pick({0, 1, 1000}), p.dtype, p.weight_dtype, p.shared, p.softmax))
      return 1;
    if (const char* what = wrong_program()) {
      std::printf("wrong: case %d, program %s\n", i, what);
      return 1;
    }
  }
  std::printf("%d cases\n", count);
  return 0;
}
