// All kernels for one instruction set. Compiled once for each, with LIGHTCONV_ISA naming it and
// VEC_BYTES its vector width; library.cpp chooses among them when the library is loaded.
#include "attend.h"
#include "narrow.h"
#include "residual.h"
#include "shared.h"
#include "step.h"
#include "tail.h"

namespace LIGHTCONV_ISA {

template <class S>
static void forward_in(const Problem& p, ParallelFor parallel) {
  if (p.shared && !p.drop)
    return with_reached_taps<S>(p, [&](const Problem& q) { shared_forward<S>(q, parallel); });
  if (has_few_taps<S>(p)) return few_forward<S>(p, parallel);
  const int64_t room = p.shared ? 0 : narrow_room<S>(p.D / p.H, p.H);
  if (!with_narrow<S>(room, [&](auto R) { narrow_forward<S, R>(p, parallel); }))
    dynamic_forward<S>(p, parallel);
}

template <class S>
static void backward_in(const Problem& p, ParallelFor parallel) {
  if (p.shared && !p.drop)
    return with_reached_taps<S>(p, [&](const Problem& q) { shared_backward<S>(q, parallel); });
  if (has_few_taps<S>(p)) return few_backward<S>(p, parallel);
  const int64_t room = p.shared ? 0 : narrow_room<S>(p.D / p.H, p.H);
  if (!with_narrow<S>(room, [&](auto R) { narrow_backward<S, R>(p, parallel); }))
    dynamic_backward<S>(p, parallel);
}

static void forward(const Problem& p, ParallelFor parallel) {
  p.dtype == kFloat64 ? forward_in<double>(p, parallel) : forward_in<float>(p, parallel);
}

static void backward(const Problem& p, ParallelFor parallel) {
  if (!p.grad_x && !p.grad_weight) return;
  p.dtype == kFloat64 ? backward_in<double>(p, parallel) : backward_in<float>(p, parallel);
}

static void step_any(const Step& s, ParallelFor parallel) {
  s.dtype == kFloat64 ? step<double>(s, parallel) : step<float>(s, parallel);
}

static void residual_forward_any(const Residual& r, ParallelFor parallel) {
  r.dtype == kFloat64 ? residual_forward<double>(r, parallel) : residual_forward<float>(r, parallel);
}

static void residual_backward_any(const Residual& r, ParallelFor parallel) {
  r.dtype == kFloat64 ? residual_backward<double>(r, parallel)
                      : residual_backward<float>(r, parallel);
}

static void tail_forward_any(const Tail& t, ParallelFor parallel) {
  t.dtype == kFloat64 ? tail_forward<double>(t, parallel) : tail_forward<float>(t, parallel);
}

static void tail_backward_any(const Tail& t, ParallelFor parallel) {
  t.dtype == kFloat64 ? tail_backward<double>(t, parallel) : tail_backward<float>(t, parallel);
}

static void attend_any(const Attend& a, ParallelFor parallel) {
  a.dtype == kFloat64 ? attend_rows<double>(a, parallel) : attend_rows<float>(a, parallel);
}

extern const Kernels kernels;
const Kernels kernels = {forward,
                         backward,
                         step_any,
                         residual_forward_any,
                         residual_backward_any,
                         tail_forward_any,
                         tail_backward_any,
                         attend_any};

}  // namespace LIGHTCONV_ISA
