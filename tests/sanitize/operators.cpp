// The operators on random shapes with memory of exactly the right size; the forward passes are compared
// with the plain formulas so that the run means something.
#include <cstdlib>

#include "cases.h"
#include "problem.h"

extern "C" {
int lightconv_forward(const Problem* p);
int lightconv_backward(const Problem* p);
int lightconv_step(const void*, void*, const void*, void*, int64_t, int64_t, int64_t, int64_t,
                   int64_t, int64_t, int64_t, int64_t, int64_t, int64_t);
int lightconv_residual_forward(const Residual* r);
int lightconv_residual_backward(const Residual* r);
}

namespace {

// Exactly as many bytes as the tensor has: one element too far is an error.
struct Memory {
  void* data;
  Memory(int64_t count, int64_t dtype) {
    const int64_t size = dtype == kFloat64 ? 8 : dtype == kFloat32 ? 4 : 2;
    data = std::malloc(uint32_t(count * size));  // small, and the compiler knows it
    for (int64_t i = 0; i < count; ++i) {
      const double value = number();
      if (dtype == kFloat64) static_cast<double*>(data)[i] = value;
      else if (dtype == kFloat32) static_cast<float*>(data)[i] = float(value);
      else static_cast<uint16_t*>(data)[i] = uint16_t(strange ? generator() : 0x3C00 + generator() % 64);
    }
  }
  ~Memory() { std::free(data); }
  Memory(const Memory&) = delete;
};

double at(const void* data, int64_t dtype, int64_t i) {
  return dtype == kFloat64 ? static_cast<const double*>(data)[i] : static_cast<const float*>(data)[i];
}

bool forward_is_right(const Problem& p) {
  if (strange || p.dtype > kFloat64 || p.weight_dtype > kFloat64 || p.offsets || p.softmax || p.drop) return true;
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

bool convolution_is_right() {
  Problem p{};
  p.dtype = pick({kFloat32, kFloat64, kBfloat16, kFloat16});
  p.weight_dtype = p.dtype > kFloat64 ? pick({p.dtype, kFloat32}) : p.dtype;
  p.B = size_of({0, 1, 2, 3});
  p.T = size_of({0, 1, 2, 5, 31, 63, 64, 65, 130});
  p.H = size_of({1, 2, 5});
  p.D = p.H * size_of({1, 3, 8, 16, 17, 40, 64, 65});
  p.K = size_of({1, 2, 3, 4, 7, 31, 64, 65, 100});
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
  if (lightconv_forward(&p) || !forward_is_right(p)) return false;
  if (pick({0, 1, 1})) p.grad_x = grad_x.data;
  if (pick({0, 1, 1})) p.grad_weight = grad_weight.data;
  if (lightconv_backward(&p)) return false;

  const int64_t steps = size_of({0, 1, 1, 3, 70});
  const int64_t sw = p.shared ? p.H * p.K : p.B * steps * p.H * p.K;
  Memory sx(p.B * steps * p.D, p.dtype), window(p.B * (p.K - 1) * p.D, p.dtype);
  Memory sweight(sw, p.weight_dtype), sout(p.B * steps * p.D, p.dtype);
  return !lightconv_step(sx.data, window.data, sweight.data, sout.data, p.B, steps, p.D, p.H, p.K,
                         size_of({0, 1, 1000}), p.dtype, p.weight_dtype, p.shared, p.softmax);
}

bool residual_is_right() {
  Residual r{};
  r.dtype = pick({kFloat32, kFloat64, kBfloat16, kFloat16});
  r.inner_dtype = r.dtype == kFloat64 ? r.dtype : pick({r.dtype, kFloat32});
  r.weight_dtype = r.dtype == kFloat64 ? r.dtype : pick({r.dtype, kFloat32});
  r.rows = size_of({0, 1, 7, 8, 9, 64, 65, 130}), r.D = size_of({1, 3, 8, 16, 17, 33, 64, 100});
  r.drop = pick({0, 0, 1 << 30}), r.keep_scale = 4.0 / 3.0, r.eps = 1e-5;
  r.seed = int64_t(generator()) << 20;
  const bool adds = pick({0, 1}), norms = !adds || pick({0, 1});
  const int64_t n = r.rows * r.D, sums = r.dtype == kFloat64 ? kFloat64 : kFloat32;
  Memory x(n, r.dtype), inner(n, r.inner_dtype), grad(n, r.dtype), sum(n, r.dtype), out(n, r.dtype);
  Memory weight(r.D, r.weight_dtype), bias(r.D, r.weight_dtype), stats(2 * r.rows, sums);
  Memory grad_x(n, r.dtype), grad_inner(n, r.inner_dtype);
  Memory grad_weight(r.D, r.weight_dtype), grad_bias(r.D, r.weight_dtype);
  if (adds) r.x = x.data;
  if (norms) r.weight = weight.data, r.bias = bias.data, r.sum = sum.data, r.stats = stats.data;
  r.inner = inner.data, r.grad = grad.data, r.out = out.data;
  if (lightconv_residual_forward(&r)) return false;
  const bool plain = r.dtype <= kFloat64 && r.inner_dtype <= kFloat64 && r.weight_dtype <= kFloat64;
  for (int64_t row = 0; plain && !strange && !r.drop && row < r.rows; ++row) {
    std::vector<double> s(static_cast<size_t>(r.D));
    double mean = 0, variance = 0;
    for (int64_t c = 0; c < r.D; ++c) {
      double& v = s[size_t(c)];
      v = at(r.inner, r.inner_dtype, row * r.D + c) + (adds ? at(r.x, r.dtype, row * r.D + c) : 0.0);
      mean += v / double(r.D);
    }
    for (const double v : s) variance += (v - mean) * (v - mean) / double(r.D);
    for (int64_t c = 0; c < r.D; ++c) {
      double v = s[size_t(c)];
      if (norms)
        v = (v - mean) / std::sqrt(variance + r.eps) * at(r.weight, r.weight_dtype, c) +
            at(r.bias, r.weight_dtype, c);
      if (!(std::fabs(v - at(r.out, r.dtype, row * r.D + c)) < 1e-3)) return false;
    }
  }
  if (adds && pick({0, 1, 1})) r.grad_x = grad_x.data;
  if (pick({0, 1, 1})) r.grad_inner = grad_inner.data;
  if (norms && pick({0, 1, 1})) r.grad_weight = grad_weight.data;
  if (norms && pick({0, 1, 1})) r.grad_bias = grad_bias.data;
  return !lightconv_residual_backward(&r);
}

}  // namespace

const char* wrong_operator() {
  if (!convolution_is_right()) return "convolution";
  if (!residual_is_right()) return "residual";
  return nullptr;
}
