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
  if (!p.grad_x && !p.grad_weight) return;
  if (p.shared && !p.drop)
    return with_reached_taps<S>(p, [&](const Problem& q) { shared_backward<S>(q, parallel); });
  const int64_t room = p.shared ? 0 : narrow_room<S>(p.D / p.H, p.H);
  if (!with_narrow<S>(room, [&](auto R) { narrow_backward<S, R>(p, parallel); }))
    dynamic_backward<S>(p, parallel);
}

// The dtype that sums run in.
template <class P, void (*in_double)(const P&, ParallelFor), void (*in_float)(const P&, ParallelFor)>
static void either(const P& p, ParallelFor parallel) {
  p.dtype == kFloat64 ? in_double(p, parallel) : in_float(p, parallel);
}

extern const Kernels kernels;
const Kernels kernels = {either<Problem, forward_in<double>, forward_in<float>>,
                         either<Problem, backward_in<double>, backward_in<float>>,
                         either<Step, step<double>, step<float>>,
                         either<Residual, residual_forward<double>, residual_forward<float>>,
                         either<Residual, residual_backward<double>, residual_backward<float>>,
                         either<Tail, tail_forward<double>, tail_forward<float>>,
                         either<Tail, tail_backward<double>, tail_backward<float>>,
                         either<Attend, attend_rows<double>, attend_rows<float>>};

}  // namespace LIGHTCONV_ISA
