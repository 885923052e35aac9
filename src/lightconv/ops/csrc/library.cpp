// The library's C interface: chooses the kernels for the machine it is loaded on.
#include <cstring>
#include <exception>

#include "problem.h"
#include "program.h"

namespace base {
extern const Kernels kernels;
extern const EngineKernels engine_kernels;
}
#if defined(__x86_64__)
#include <cpuid.h>
namespace avx2 {
extern const Kernels kernels;
extern const EngineKernels engine_kernels;
}
namespace avx512 {
extern const Kernels kernels;
extern const EngineKernels engine_kernels;
}
#endif

namespace {

struct Choice {
  const char* name;
  const Kernels* kernels;
  const EngineKernels* engine;
  bool runs_here;
};

#if defined(__x86_64__)
bool has_f16c() {  // __builtin_cpu_supports does not know it before clang 15
  unsigned a, b, c, d;
  return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
}
#endif

const Choice* choices(int* count) {
  static const Choice all[] = {
#if defined(__x86_64__)
      {"avx512", &avx512::kernels, &avx512::engine_kernels,
       bool(__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
            __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))},
      {"avx2", &avx2::kernels, &avx2::engine_kernels,
       bool(__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
            has_f16c())},
#endif
      {"base", &base::kernels, &base::engine_kernels, true},
  };
  *count = int(sizeof all / sizeof all[0]);
  return all;
}

const Choice* chosen = nullptr;
ParallelFor parallel = nullptr;

// No exception may cross into Python; the only one the kernels raise is lack of memory.
template <class Call>
int guarded(Call call) {
  try {
    call();
    return 0;
  } catch (const std::exception&) {
    return 1;
  }
}

}  // namespace

extern "C" {

__attribute__((visibility("default"))) int64_t lightconv_problem_bytes() { return sizeof(Problem); }

__attribute__((visibility("default"))) int64_t lightconv_residual_bytes() {
  return sizeof(Residual);
}

__attribute__((visibility("default"))) int64_t lightconv_tail_bytes() { return sizeof(Tail); }

__attribute__((visibility("default"))) int64_t lightconv_attend_bytes() { return sizeof(Attend); }

// Chooses an instruction set by name, or the best one for this machine when name is null or empty;
// returns its name, or null when it does not exist or does not run here.
__attribute__((visibility("default"))) const char* lightconv_choose(const char* name) {
  int count = 0;
  const Choice* all = choices(&count);
  for (int i = 0; i < count; ++i)
    if (all[i].runs_here && (!name || !*name || !strcmp(name, all[i].name))) {
      chosen = &all[i];
      return chosen->name;
    }
  return nullptr;
}

__attribute__((visibility("default"))) void lightconv_use_threads(ParallelFor function) {
  parallel = function;
}

__attribute__((visibility("default"))) int lightconv_forward(const Problem* p) {
  return guarded([&] { chosen->kernels->forward(*p, parallel); });
}

__attribute__((visibility("default"))) int lightconv_backward(const Problem* p) {
  return guarded([&] { chosen->kernels->backward(*p, parallel); });
}

__attribute__((visibility("default"))) int lightconv_step(
    const void* x, void* window, const void* weight, void* out, int64_t B, int64_t n, int64_t D,
    int64_t H, int64_t K, int64_t position, int64_t dtype, int64_t weight_dtype, int64_t shared,
    int64_t softmax) {
  const Step s{x, window, weight, out, B, n, D, H, K, position, dtype, weight_dtype, shared,
               softmax};
  return guarded([&] { chosen->kernels->step(s, parallel); });
}

__attribute__((visibility("default"))) int lightconv_residual_forward(const Residual* r) {
  return guarded([&] { chosen->kernels->residual_forward(*r, parallel); });
}

__attribute__((visibility("default"))) int lightconv_residual_backward(const Residual* r) {
  return guarded([&] { chosen->kernels->residual_backward(*r, parallel); });
}

__attribute__((visibility("default"))) int lightconv_tail_forward(const Tail* t) {
  return guarded([&] { chosen->kernels->tail_forward(*t, parallel); });
}

__attribute__((visibility("default"))) int lightconv_tail_backward(const Tail* t) {
  return guarded([&] { chosen->kernels->tail_backward(*t, parallel); });
}

__attribute__((visibility("default"))) int lightconv_attend(const Attend* a) {
  return guarded([&] { chosen->kernels->attend(*a, parallel); });
}

__attribute__((visibility("default"))) int64_t lightconv_instruction_bytes() {
  return sizeof(Instruction);
}

__attribute__((visibility("default"))) int64_t lightconv_run_bytes() { return sizeof(Run); }

// The chosen instruction set's engine: weights packed for its panels run with it only.
__attribute__((visibility("default"))) const void* lightconv_engine() { return chosen->engine; }

__attribute__((visibility("default"))) int64_t lightconv_panel(const void* engine, int64_t kind) {
  return static_cast<const EngineKernels*>(engine)->panel(kind);
}

// `unknown` becomes the row whose token is no word, or -1.
__attribute__((visibility("default"))) int lightconv_run(const void* engine, const Run* run,
                                                         int64_t* unknown) {
  return guarded(
      [&] { *unknown = static_cast<const EngineKernels*>(engine)->run(*run, parallel); });
}

__attribute__((visibility("default"))) int64_t lightconv_search_bytes() { return sizeof(Search); }

__attribute__((visibility("default"))) int lightconv_search(const void* engine, Search* search) {
  return guarded([&] { static_cast<const EngineKernels*>(engine)->search(*search, parallel); });
}

__attribute__((visibility("default"))) int lightconv_topk(const float* logits, int64_t rows,
                                                          int64_t V, int64_t stride, int64_t k,
                                                          float* values, int64_t* indices) {
  return guarded(
      [&] { chosen->engine->topk(logits, rows, V, stride, k, values, indices, parallel); });
}
}
