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

// Dropout, residual sum and layer normalisation of `rows` rows of D numbers, all contiguous.
struct Residual {
  const void* x;           // [rows, D], or null: there is nothing to add to
  const void* inner;       // [rows, D] (forward only)
  const void* weight;      // [D], or null: no normalisation
  const void* bias;        // [D] (forward only)
  const void* grad;        // [rows, D] (backward only)
  void* sum;               // [rows, D] with weight: x + dropout(inner), written, then read
  void* stats;             // [rows, 2] with weight, in the dtype of sums: mean and 1 / deviation
  void* out;               // [rows, D] (forward only)
  void* grad_x;            // [rows, D], or null when not wanted; so are the three below
  void* grad_inner;        // [rows, D]
  void* grad_weight;       // [D]
  void* grad_bias;         // [D]
  int64_t rows, D;
  int64_t dtype;           // of x, sum, out, grad, grad_x
  int64_t inner_dtype;     // of inner, grad_inner
  int64_t weight_dtype;    // of weight, bias and their gradients
  int64_t drop;            // random bits below this mean dropped; 0 is off
  double keep_scale, eps;
  int64_t seed;
};

// The tail of a convolution, out = gate * silu(y + bias) + x, of `rows` contiguous rows of D numbers.
struct Tail {
  const void* y;           // [rows, D]: the convolution
  const void* bias;        // [D], or null
  const void* gate;        // [rows, D], or null
  const void* x;           // [rows, D], or null: no residual (forward only)
  const void* grad;        // [rows, D] (backward only)
  void* out;               // [rows, D] (forward only)
  void* grad_y;            // [rows, D] (backward only)
  void* grad_bias;         // [D], or null when not wanted
  void* grad_gate;         // [rows, D], or null when not wanted
  int64_t rows, D;
  int64_t dtype;           // of all but bias and grad_bias
  int64_t bias_dtype;
  int64_t silu;            // otherwise there is no activation
};

// A block of attention scores [B, H, rows, keys], contiguous: queries first_row .. first_row + rows of
// T and the first keys of S, for batch entries from first_batch on.
struct Attend {
  void* scores;            // become weights, some dropped
  void* grad;              // of the weights, becomes that of the scores before `scale`; or null
  const void* mask;        // a byte for each key, 0: not seen; or null. Strides in bytes:
  int64_t mask_batch, mask_head, mask_row;
  int64_t B, H, rows, keys, first_batch, first_row, T, S;
  int64_t dtype;
  int64_t causal;          // query t sees keys 0 .. t
  int64_t drop;            // random bits below this mean dropped; 0 is off
  double keep_scale, scale;
  int64_t seed;
};

// Runs body(begin, end) over [0, count) on threads; torch's own pool, given by Python.
using ParallelBody = void (*)(int64_t begin, int64_t end, void* context);
using ParallelFor = int32_t (*)(int64_t begin, int64_t end, int64_t grain, ParallelBody body,
                                void* context);

struct Kernels {
  void (*forward)(const Problem&, ParallelFor);
  void (*backward)(const Problem&, ParallelFor);
  void (*step)(const Step&, ParallelFor);
  void (*residual_forward)(const Residual&, ParallelFor);
  void (*residual_backward)(const Residual&, ParallelFor);
  void (*tail_forward)(const Tail&, ParallelFor);
  void (*tail_backward)(const Tail&, ParallelFor);
  void (*attend)(const Attend&, ParallelFor);
};
