"""Attention in training as one operator: scores and weights exist for a block of queries at a time.

    weights = drop(softmax(q k^T / sqrt(R)))      out = weights v

The factors of dropout are a hash of (seed, element), as in DropConnect, and the backward pass
computes the weights again, so that nothing of the size of T x S is kept. The products are those of
torch's library, or the faster one of products.py; what lies between them is csrc/attend.h.
"""

import ctypes
import itertools
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lightconv.ops.check import (
    Maybe,
    Seed,
    accumulate_dtype,
    as_seed,
    check_attention,
    is_transformed,
)
from lightconv.ops.cpu import drop_fields
from lightconv.ops.library import DTYPE_NUMBERS, AttendProblem, call, native
from lightconv.ops.reference import drop
from lightconv.ops.schema import LIBRARY, SCHEMAS

LARGEST = 1 << 20  # scores at a time: what stays in the caches
QUERIES = 128  # of a block if causal: keys after the block are not computed

_OPTIONS = "Tensor? mask, bool causal, float dropout, Tensor? seed"
_SCHEMAS = {
    "attention": f"(Tensor q, Tensor k, Tensor v, {_OPTIONS}) -> Tensor",
    "attention_backward": f"(Tensor grad, Tensor q, Tensor k, Tensor v, {_OPTIONS}) "
    "-> (Tensor, Tensor, Tensor)",
}
for _name, _schema in _SCHEMAS.items():
    LIBRARY.define(_name + _schema, tags=(torch.Tag.pt2_compliant_tag,))
SCHEMAS.update(_SCHEMAS)


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    mask: Tensor | None = None,
    causal: bool = False,
    dropout: float = 0.0,
    seed: Seed = None,
) -> Tensor:
    """Scaled dot-product attention with dropout of the weights.

    q       [B, T, H, R]
    k, v    [B, S, H, R]
    mask    bool, broadcast to [B, H, T, S]: True if the query sees the key
    returns [B, T, H, R]; 0 for a query that sees no key

    The choice of what is dropped follows from `seed`, or from one drawn from torch's generator.
    """
    run = formula if is_transformed() else torch.ops.lightconv.attention.default
    out: Tensor = run(q, k, v, mask, causal, dropout, as_seed(seed, dropout, q.device))
    return out


def formula(
    q: Tensor, k: Tensor, v: Tensor, mask: Maybe, causal: bool, p: float, seed: Maybe
) -> Tensor:
    """The result [B, T, H, R] by way of all weights [B, H, T, S]."""
    check_attention(q, k, v, mask, p, seed)
    exact = accumulate_dtype(q.dtype)
    scores = torch.einsum("bthr,bshr->bhts", q.to(exact), k.to(exact)) / q.shape[3] ** 0.5
    seen = torch.ones(scores.shape[2:], dtype=torch.bool, device=q.device)
    seen = seen.tril() if causal else seen
    seen = seen if mask is None else seen & mask
    # Finite, so that a row without a key has gradients.
    weights = scores.masked_fill(~seen, torch.finfo(exact).min).softmax(-1) * seen
    return torch.einsum("bhts,bshr->bthr", drop(weights, p, seed), v.to(exact)).to(q.dtype)


def _differentiate(grad: Tensor, q: Tensor, k: Tensor, v: Tensor, *options: Any) -> Any:
    """Gradients of the formula, which have gradients themselves where they are recorded."""
    higher = torch.is_grad_enabled()
    with torch.enable_grad():
        leaves = [t if t.requires_grad else t.detach().requires_grad_() for t in (q, k, v)]
        out = formula(leaves[0], leaves[1], leaves[2], *options)
        return torch.autograd.grad(out, leaves, grad, create_graph=higher)


LIBRARY.impl("attention", formula, "CompositeExplicitAutograd")
LIBRARY.impl("attention_backward", _differentiate, "CompositeExplicitAutograd")


# --- on the CPU -----------------------------------------------------------------------------------


class _Block(NamedTuple):
    """A few batch entries, queries and keys of a call."""

    entries: slice
    queries: slice
    keys: slice


def _blocks(q: Tensor, k: Tensor, causal: bool) -> Iterator[_Block]:
    (B, T, H, _), S = q.shape, k.shape[1]
    row = H * max(S, 1)
    rows = max(1, min(T, LARGEST // row, QUERIES if causal else T))
    entries = max(1, LARGEST // (row * rows))
    for first, begin in itertools.product(range(0, B, entries), range(0, T, rows)):
        keys = slice(0, min(S, begin + rows) if causal else S)
        yield _Block(slice(first, first + entries), slice(begin, begin + rows), keys)


def _heads(x: Tensor) -> Tensor:
    """[B, T, H, R] -> [B * H, T, R]: a view of one batch entry, else a copy."""
    return x.transpose(1, 2).flatten(0, 1)


def _mask(mask: Maybe, q: Tensor, k: Tensor) -> Maybe:
    """The mask as [B, H, T, S] with the bytes of a row side by side."""
    if mask is None:
        return None
    (B, T, H, _), S = q.shape, k.shape[1]
    return mask.expand(*mask.shape[:3], S).contiguous().expand(B, H, T, S)


def _soften(
    block: _Block, scores: Tensor, grad: Maybe, q: Tensor, k: Tensor, mask: Maybe, *options: Any
) -> None:
    """Scores [B * H, rows, keys] become weights, and the gradient of these that of the scores."""
    causal, *drawn = options
    first, begin = block.entries.start, block.queries.start
    H, (products, rows, keys) = q.shape[2], scores.shape
    problem = AttendProblem(
        scores=scores.data_ptr(),
        grad=None if grad is None else grad.data_ptr(),
        B=products // H,
        H=H,
        rows=rows,
        keys=keys,
        first_batch=first,
        first_row=begin,
        T=q.shape[1],
        S=k.shape[1],
        dtype=DTYPE_NUMBERS[q.dtype],
        causal=causal,
        scale=q.shape[3] ** -0.5,
        **drop_fields(*drawn),
    )
    if mask is not None:
        problem.mask = mask[first:, :, begin:].data_ptr()
        problem.mask_batch, problem.mask_head, problem.mask_row, _ = mask.stride()
    call("lightconv_attend", ctypes.byref(problem))


def _cpu(q: Tensor, k: Tensor, v: Tensor, mask: Maybe, *options: Any) -> Tensor:
    if native().library is None:
        return formula(q, k, v, mask, *options)
    check_attention(q, k, v, mask, *options[1:])
    mask, out = _mask(mask, q, k), q.new_empty(q.shape)
    for block in _blocks(q, k, options[0]):
        entries, queries, keys = block
        weights = torch.bmm(_heads(q[entries, queries]), _heads(k[entries, keys]).transpose(1, 2))
        _soften(block, weights, None, q, k, mask, *options)
        to = out[entries, queries].transpose(1, 2)
        to.copy_(torch.bmm(weights, _heads(v[entries, keys])).view(to.shape))
    return out


def _cpu_backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, mask: Maybe, *options: Any
) -> tuple[Tensor, Tensor, Tensor]:
    if native().library is None:
        found: tuple[Tensor, Tensor, Tensor] = _differentiate(grad, q, k, v, mask, *options)
        return found
    mask, of_q = _mask(mask, q, k), q.new_empty(q.shape)
    # Sums over blocks of queries.
    of_k, of_v = (torch.zeros(k.shape, dtype=accumulate_dtype(k.dtype)) for _ in range(2))
    for block in _blocks(q, k, options[0]):
        entries, queries, keys = block
        some_q, some_grad = _heads(q[entries, queries]), _heads(grad[entries, queries])
        some_k, some_v = _heads(k[entries, keys]), _heads(v[entries, keys])
        weights = torch.bmm(some_q, some_k.transpose(1, 2))
        slopes = torch.bmm(some_grad, some_v.transpose(1, 2))
        _soften(block, weights, slopes, q, k, mask, *options)
        to = of_q[entries, queries].transpose(1, 2)
        to.copy_(torch.bmm(slopes, some_k).view(to.shape))
        for of, rows, other in ((of_k, slopes, some_q), (of_v, weights, some_grad)):
            to = of[entries, keys].transpose(1, 2)
            to.add_(torch.bmm(rows.transpose(1, 2), other).view(to.shape))
    return of_q, of_k.to(k.dtype), of_v.to(v.dtype)


LIBRARY.impl("attention", _cpu, "CPU")
LIBRARY.impl("attention_backward", _cpu_backward, "CPU")


# --- fake kernels and the gradient ----------------------------------------------------------------


def _fake(q: Tensor, k: Tensor, v: Tensor, mask: Maybe, causal: bool, p: float, seed: Maybe) -> Any:
    check_attention(q, k, v, mask, p, seed)
    return q.new_empty(q.shape)


def _fake_backward(grad: Tensor, q: Tensor, k: Tensor, v: Tensor, *options: Any) -> Any:
    return tuple(each.new_empty(each.shape) for each in (q, k, v))


torch.library.register_fake("lightconv::attention", _fake, lib=LIBRARY)
torch.library.register_fake("lightconv::attention_backward", _fake_backward, lib=LIBRARY)


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    q, k, v, mask, causal, p, seed = inputs
    ctx.save_for_backward(q, k, v, mask, seed)
    ctx.options = causal, p


def _backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    q, k, v, mask, seed = ctx.saved_tensors
    run: Any = torch.ops.lightconv.attention_backward.default
    run = _differentiate if torch.is_grad_enabled() else run
    return *run(grad, q, k, v, mask, *ctx.options, seed), None, None, None, None


torch.library.register_autograd("lightconv::attention", _backward, setup_context=_save, lib=LIBRARY)
