// One call of an operator, as Python fills it in. Plain C types only: the library knows nothing of
// torch or Python, so one binary serves every version of both. native.py mirrors this struct.
#pragma once
#include <cstdint>

enum Dtype : int64_t { kFloat32 = 0, kFloat64 = 1, kBfloat16 = 2, kFloat16 = 3 };

struct Problem {
  const void* x;            // [B, T, D], rows of D contiguous channels
  const void* weight;       // [B, T, H, K] contiguous, or [H, K] when shared
  const void* grad;         // [B, T, D], rows of D contiguous channels (backward only)
  void* out;                // [B, T, D] contiguous (forward only)
  void* grad_x;             // [B, T, D] contiguous, or null when not wanted
  void* grad_weight;        // like weight, or null when not wanted
  const int64_t* offsets;   // [sequences + 1]: sequences packed end to end (then B = 1), or null
  int64_t sequences;
  int64_t B, T, D, H, K, left;
  int64_t x_batch, x_row;        // strides in elements
  int64_t grad_batch, grad_row;
  int64_t dtype;                 // of x, out, grad, grad_x
  int64_t weight_dtype;          // of weight, grad_weight
  int64_t shared;                // one [H, K] for all positions: lightconv
  int64_t softmax;               // weight holds logits (not with shared)
  int64_t drop;                  // DropConnect: random bits below this mean dropped; 0 is off
  double keep_scale;             // 1 / (1 - p)
  int64_t seed;
};

// The next n positions of a causal convolution given a ring of the K - 1 inputs before them.
struct Step {
  const void* x;       // [B, n, D] contiguous
  void* window;        // [B, K-1, D] contiguous; time t in slot t % (K-1); updated
  const void* weight;  // [B, n, H, K] contiguous, or [H, K] when shared
  void* out;           // [B, n, D] contiguous
  int64_t B, n, D, H, K, position;
  int64_t dtype, weight_dtype;
  int64_t shared, softmax;
};

// Runs body(begin, end) over [0, count) on threads; torch's own pool, given by Python.
using ParallelBody = void (*)(int64_t begin, int64_t end, void* context);
using ParallelFor = int32_t (*)(int64_t begin, int64_t end, int64_t grain, ParallelBody body,
                                void* context);

struct Kernels {
  void (*forward)(const Problem&, ParallelFor);
  void (*backward)(const Problem&, ParallelFor);
  void (*step)(const Step&, ParallelFor);
};
