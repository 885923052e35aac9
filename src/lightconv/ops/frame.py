"""The frame of a convolution: dilation, states, gates, bias, activation, residual.

    out = gate_out * activation(conv(gate_in * x) + bias) + x

Bias, activation, output gate and residual are one pass over memory (csrc/tail.h); the rest needs no
kernel. A dilated convolution is a plain one of a view: positions that are `dilation` apart become
rows, those between them heads. A state is a prefix of its sequence.
"""

import ctypes
from collections.abc import Callable
from typing import Any, NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from lightconv.ops.check import accumulate_dtype, check_boundaries, is_transformed
from lightconv.ops.library import DTYPE_NUMBERS, POOL, TailProblem, call, native

Run = Callable[..., Any]
ACTIVATIONS: dict[str | None, Callable[[Tensor], Tensor]] = {
    None: lambda y: y,
    "silu": F.silu,
    "swish": F.silu,
}


class Frame(NamedTuple):
    """Options around a convolution, the same for whole sequences and steps."""

    dilation: int = 1  # distance of two taps
    bias: Tensor | None = None  # [D]
    activation: str | None = None  # "silu" or "swish"
    residual: bool = False  # adds x
    gate_in: Tensor | None = None  # [B, T, D], multiplies x
    gate_out: Tensor | None = None  # [B, T, D], multiplies the result
    initial_state: Tensor | None = None  # [B or sequences, (K-1) * dilation, D], oldest first

    def check(self, op: str, x: Tensor, weight: Tensor, left: int, sequences: int) -> None:
        """Raises ValueError for options that do not fit x [B, T, D] and weight [..., K]."""
        if not isinstance(self.dilation, int) or self.dilation < 1:
            raise ValueError(
                f"{op}: dilation must be an integer of at least 1, got {self.dilation!r}"
            )
        if self.activation not in ACTIVATIONS:
            raise ValueError(f"{op}: activation must be None or 'silu', got {self.activation!r}")
        K = weight.shape[-1]
        shapes = {
            "bias": (x.shape[2],),
            "gate_in": tuple(x.shape),
            "gate_out": tuple(x.shape),
            "initial_state": (sequences, (K - 1) * self.dilation, x.shape[2]),
        }
        for name, shape in shapes.items():
            value = getattr(self, name)
            if value is not None and tuple(value.shape) != shape:
                raise ValueError(
                    f"{op}: {name} must have shape {list(shape)}, got {list(value.shape)}"
                )
        if self.initial_state is not None and left != K - 1:
            raise ValueError(f"{op}: initial_state needs a causal kernel, left={K - 1}, got {left}")

    def open(self, x: Tensor) -> Tensor:
        """x [B, T, D] -> input of the convolution [B, T, D]."""
        return x if self.gate_in is None else x * self.gate_in.to(x.dtype)

    def close(self, out: Tensor, x: Tensor) -> Tensor:
        """Output of the convolution and x [B, T, D] -> [B, T, D], computed in float32 or wider."""
        gate = None if self.gate_out is None else self.gate_out.to(out.dtype)
        tail = self.bias, gate, x if self.residual else None, self.activation
        if tail == (None, None, None, None):
            return out
        if all(runs_here(v) for v in (out, *tail[:3]) if v is not None):
            return cast(Tensor, _Tail.apply(out, *tail))  # type: ignore[no-untyped-call]
        return close_formula(out, *tail)


def runs_here(x: Tensor) -> bool:
    """True for a tensor of the CPU that nothing traces, transforms or watches."""
    # A Parameter is a class of its own, and the most common bias.
    plain = type(x) in (Tensor, torch.nn.Parameter) and x.is_cpu
    if not plain or torch.compiler.is_compiling() or is_transformed():
        return False
    watched = torch._C._len_torch_dispatch_stack() > 0 or torch._C._get_tracing_state() is not None
    return not watched and not torch._C._autograd._profiler_enabled()


def fork(x: Tensor) -> tuple[Tensor, Tensor]:
    """x for the convolution and x for the residual; their gradients are added in place."""
    pair = _Fork.apply(x) if runs_here(x) else (x, x)  # type: ignore[no-untyped-call]
    return cast(tuple[Tensor, Tensor], pair)


class _Fork(torch.autograd.Function):
    """autograd would add the two gradients into new memory, which costs as much as the tail."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        return x.view_as(x), x.view_as(x)

    @staticmethod
    def backward(ctx: Any, first: Tensor, second: Tensor) -> Tensor:
        # The first is new: nothing but the backward pass of a convolution reads that view of x.
        in_place = not torch.is_grad_enabled() and first.is_contiguous()
        return first.add_(second) if in_place else first + second


def close_formula(
    y: Tensor, bias: Tensor | None, gate: Tensor | None, x: Tensor | None, activation: str | None
) -> Tensor:
    """gate * activation(y + bias) + x, each part optional; y, gate, x [B, T, D], bias [D]."""
    wide = accumulate_dtype(y.dtype)
    out = y.to(wide)
    out = out if bias is None else out + bias.to(wide)
    out = ACTIVATIONS[activation](out)
    out = out if gate is None else out * gate.to(wide)
    return (out if x is None else out + x).to(y.dtype)


class _Tail(torch.autograd.Function):
    """close_formula in one pass over memory (csrc/tail.h), and its gradient in another."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Tensor:
        ctx.save_for_backward(*inputs[:4])
        ctx.activation = inputs[4]
        if native().library is None:
            return close_formula(*inputs)
        out = POOL.empty(inputs[0].shape, inputs[0].dtype)
        _run_tail("forward", inputs, x=inputs[3], out=out)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        inputs, needed = ctx.saved_tensors, ctx.needs_input_grad[:4]
        if torch.is_grad_enabled() or native().library is None:
            with torch.enable_grad():
                # Views: a gate computed from y must not count as a part of y.
                views: list[Any] = [v if v is None else v.view_as(v) for v in inputs]
                wanted = [v for v, need in zip(views, needed, strict=True) if need]
                y, *rest = views
                bias, gate, x = rest
                out = close_formula(y, bias, gate, x, ctx.activation)
                found = iter(torch.autograd.grad(out, wanted, grad, create_graph=True))
            return (*(next(found) if need else None for need in needed), None)
        y, bias = inputs[:2]
        of_y = POOL.empty(y.shape, y.dtype)
        of_bias = torch.empty_like(bias) if needed[1] else None
        of_gate = POOL.empty(y.shape, y.dtype) if needed[2] else None
        results = {"grad_y": of_y, "grad_bias": of_bias, "grad_gate": of_gate}
        _run_tail("backward", (*inputs, ctx.activation), grad=grad, **results)
        return of_y, of_bias, of_gate, grad if needed[3] else None, None


def _run_tail(way: str, inputs: tuple[Any, ...], **tensors: Tensor | None) -> None:
    """Runs a kernel of csrc/tail.h: results must be contiguous, anything else is made so."""
    y, bias, gate, _, activation = inputs
    given = {"y": y, "bias": bias, "gate": gate, **tensors}
    held = {name: v.contiguous() for name, v in given.items() if v is not None}
    problem = TailProblem(
        rows=y.numel() // max(y.shape[-1], 1),
        D=y.shape[-1],
        dtype=DTYPE_NUMBERS[y.dtype],
        bias_dtype=0 if bias is None else DTYPE_NUMBERS[bias.dtype],
        silu=activation is not None,
        **{name: v.data_ptr() for name, v in held.items()},
    )
    call(f"lightconv_tail_{way}", ctypes.byref(problem))


def make_frame(op: str, options: dict[str, Any]) -> Frame:
    """A frame of keywords of the operator `op`; TypeError names one that is unknown."""
    for name in options:
        if name not in Frame._fields:
            known = ", ".join(Frame._fields)
            raise TypeError(f"{op}() got an unexpected keyword argument {name!r}; known: {known}")
    return Frame(**options)


# --- whole sequences ------------------------------------------------------------------------------


def convolve(
    run: Run, x: Tensor, weight: Tensor, cu_seqlens: Tensor | None, frame: Frame
) -> Tensor:
    """Convolution with a dilation and an initial state, by run(x, weight, cu_seqlens).

    x [B, T, D], weight [B, T, H, K] or [H, K] -> [B, T, D].
    """
    state, places = frame.initial_state, None
    d, N, slots = frame.dilation, x.shape[1], 0 if state is None else state.shape[1]
    if cu_seqlens is not None:
        if not torch.compiler.is_compiling():
            check_boundaries(cu_seqlens, N)
        # Every sequence moves behind its state, and to a multiple of the dilation.
        lengths = cu_seqlens.diff()
        S = lengths.shape[0]
        which = torch.repeat_interleave(torch.arange(S, device=x.device), lengths, output_size=N)
        taken = (lengths + slots + d - 1) // d * d
        ends = F.pad(taken.cumsum(0), (1, 0))
        places = torch.arange(N, device=x.device) + (ends[:-1] + slots - cu_seqlens[:-1])[which]
        room = (N + S * (slots + d - 1) + d - 1) // d * d
        cu_seqlens = F.pad(ends, (0, 1), value=room) // d
        spread: Run = lambda v: v.new_zeros(1, room, *v.shape[2:]).index_copy(1, places, v)
        x, weight = spread(x), weight if weight.dim() == 2 else spread(weight)
        if state is not None:
            before = ends[:-1, None] + torch.arange(slots, device=x.device)
            x = x.index_copy(1, before.flatten(), state.to(x.dtype).flatten(0, 1)[None])
    else:
        if state is not None:
            x = torch.cat([state.to(x.dtype), x], dim=1)
        if not torch.compiler.is_compiling():
            d = max(1, min(d, x.shape[1]))  # farther taps are outside all the same
        extra = -x.shape[1] % d
        x = F.pad(x, (0, 0, 0, extra))
        if weight.dim() == 4:
            weight = F.pad(weight, (0, 0, 0, 0, slots, extra))
    B, T, D = x.shape
    H, K = weight.shape[-2:]
    # Row t / d, head (t % d) * H + h: the same memory.
    rows = x.reshape(B, T // d, d * D)
    weight = weight.repeat(d, 1) if weight.dim() == 2 else weight.reshape(B, T // d, d * H, K)
    out: Tensor = run(rows, weight, cu_seqlens).view(B, T, D)
    return out.narrow(1, slots, N) if places is None else out.index_select(1, places)


def final_state(
    x: Tensor, slots: int, *, initial_state: Tensor | None = None, cu_seqlens: Tensor | None = None
) -> Tensor:
    """The last inputs of every sequence, the `initial_state` of what follows it.

    x             [B, T, D], or [1, N, D] with cu_seqlens: the input of the convolution
    slots         (K - 1) * dilation
    initial_state [B or sequences, slots, D] before x; zeros if None
    returns       [B or sequences, slots, D], oldest first: also the window of a step at position 0
    """
    S = x.shape[0] if cu_seqlens is None else cu_seqlens.shape[0] - 1
    past = x.new_zeros(S, slots, x.shape[2]) if initial_state is None else initial_state
    if cu_seqlens is None:
        recent = torch.cat([past, x], dim=1)
        return recent.narrow(1, x.shape[1], slots).clone()
    times = cu_seqlens.diff()[:, None] + torch.arange(-slots, 0, device=x.device)
    here = (times + cu_seqlens[:-1, None]).clamp(min=0)
    inside = (times >= 0).unsqueeze(-1)
    known = past.gather(1, (times + slots).clamp(max=slots - 1)[..., None].expand_as(past))
    if x.shape[1] == 0:
        return known
    return torch.where(inside, x[0][here], known)


# --- steps ----------------------------------------------------------------------------------------


def step(
    run: Run, x: Tensor, window: Tensor, position: int | Tensor, weight: Tensor, dilation: int
) -> tuple[Tensor, Tensor]:
    """Next n positions by run(x, window, position, weight) -> (out, window); window as given there.

    x [B, n, D], window [B, (K-1) * dilation, D], position one for all rows or [B].
    """
    if isinstance(position, Tensor) and window.shape[1] == 0:
        position = 0
    if isinstance(position, Tensor):
        # Every row turned so that its oldest input stands first, as at position 0; then back.
        slots, shift = torch.arange(window.shape[1], device=x.device), position.unsqueeze(1)
        turn: Run = lambda ring, to: ring.gather(1, (to % len(slots)).unsqueeze(-1).expand_as(ring))
        out, new = step(run, x, turn(window, slots + shift), 0, weight, dilation)
        return out, turn(new, slots - shift)
    if dilation == 1 or torch.compiler.is_compiling():
        out, new = run(x, window, position, weight)
        return out, new
    # The positions of one phase have a ring of their own: every dilation-th slot.
    rings = list(window.unflatten(1, (window.shape[1] // dilation, dilation)).unbind(2))
    parts = []
    for i in range(min(dilation, x.shape[1])):
        phase = (position + i) % dilation
        kernels = weight if weight.dim() == 2 else weight[:, i::dilation]
        out, rings[phase] = run(
            x[:, i::dilation], rings[phase], (position + i) // dilation, kernels
        )
        parts.append(out)
    longest = -(-x.shape[1] // dilation)
    parts = [F.pad(out, (0, 0, 0, longest - out.shape[1])) for out in parts]
    out = torch.stack(parts, 2).flatten(1, 2).narrow(1, 0, x.shape[1]) if parts else x
    return out, torch.stack(rings, 2).flatten(1, 2)
