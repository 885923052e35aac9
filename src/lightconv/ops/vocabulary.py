"""Operators over a vocabulary: the loss without all its logits, and the most probable words.

    logits = x W^T [n, V];   loss = sum_i (1 - e) nll(i, target_i) + e / V sum_v nll(i, v)

The loss takes a few positions at a time. The gradients of a chunk are computed while its logits
exist, so memory holds one chunk of them and no product is computed twice: three matrix products
forward and backward together, as without chunks.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from lightconv.ops.check import accumulate_dtype, autocast_dtype, is_transformed
from lightconv.ops.library import call, native

CHUNK = 1024  # positions, fewer where the vocabulary is large
LARGEST = 1024 * 32768  # logits at a time


def chunk_of(V: int) -> int:
    """Number of positions whose logits exist at a time."""
    return max(1, min(CHUNK, LARGEST // max(V, 1)))


def linear_cross_entropy(
    x: Tensor,
    weight: Tensor,
    target: Tensor,
    *,
    more: Tensor | None = None,
    smoothing: float = 0.0,
    chunk: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Label-smoothed loss and plain negative log-likelihood, each summed over positions.

    x       [n, D]
    weight  [V, D]
    target  [n] int64
    more    [C, D], optional: further rows of the matrix, after the V rows of weight
    chunk   positions whose logits exist at a time; None for `chunk_of`
    returns [] and [], float32 or wider; the second has no gradient
    """
    if x.dim() != 2 or weight.dim() != 2 or x.shape[1] != weight.shape[1]:
        raise ValueError(
            f"x must be [n, D] and weight [V, D], got {list(x.shape)} and {list(weight.shape)}"
        )
    if more is not None and (more.dim() != 2 or more.shape[1] != x.shape[1]):
        raise ValueError(f"more must be [C, {x.shape[1]}] like weight, got {list(more.shape)}")
    if target.shape != x.shape[:1]:
        raise ValueError(f"target must be [{x.shape[0]}] like x, got {list(target.shape)}")
    if not 0.0 <= smoothing < 1.0:
        raise ValueError(f"smoothing={smoothing} must be in [0, 1)")
    weights = [weight] if more is None else [weight, more]
    chunk = chunk_of(sum(map(len, weights))) if chunk is None else chunk
    if chunk < 1:
        raise ValueError(f"chunk={chunk} must be at least 1")
    x = x.to(autocast_dtype(x) or x.dtype)
    if not torch.is_grad_enabled():  # which a Function does not see
        x, weights = x.detach(), [weight.detach() for weight in weights]
    if is_transformed():
        return _formula(x, torch.cat(weights), target, smoothing)
    apply: Any = _LinearCrossEntropy.apply
    found: tuple[Tensor, Tensor] = apply(target, smoothing, chunk, x, *weights)
    return found


def _formula(x: Tensor, weight: Tensor, target: Tensor, smoothing: float) -> tuple[Tensor, Tensor]:
    logits = (x @ weight.to(x.dtype).t()).to(accumulate_dtype(x.dtype))
    nll = -logits.log_softmax(-1)
    plain = nll.gather(1, target[:, None]).sum()
    return (1.0 - smoothing) * plain + smoothing / len(weight) * nll.sum(), plain.detach()


class _LinearCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, target: Tensor, smoothing: float, chunk: int, x: Tensor, *weights: Tensor
    ) -> tuple[Tensor, Tensor]:
        exact = accumulate_dtype(x.dtype)
        needs = ctx.needs_input_grad[3:]
        sizes = [len(weight) for weight in weights]
        with torch.amp.autocast(x.device.type, enabled=False):
            narrow = [weight.to(x.dtype) for weight in weights]
            of_x = torch.empty_like(x) if needs[0] else None
            of_weights = [
                torch.zeros_like(weight, dtype=exact) if need else None
                for weight, need in zip(weights, needs[1:], strict=True)
            ]
            loss, plain = (torch.zeros((), dtype=exact, device=x.device) for _ in range(2))
            # One piece of memory for all chunks.
            product = x.new_empty(min(chunk, len(x)), sum(sizes))
            for start in range(0, len(x), chunk):
                rows = slice(start, start + chunk)
                room = product[: len(x[rows])]
                for part, weight in zip(room.split(sizes, dim=1), narrow, strict=True):
                    torch.matmul(x[rows], weight.t(), out=part)
                logits = room.to(exact)
                total, nll = _sums(logits, target[rows, None], smoothing)
                loss += total
                plain += nll
                if any(needs):
                    # `logits` holds their gradient from here on.
                    slopes = logits.to(x.dtype).split(sizes, dim=1)
                    if of_x is not None:
                        for i, (slope, weight) in enumerate(zip(slopes, narrow, strict=True)):
                            of_x[rows].addmm_(slope, weight, beta=min(i, 1))
                    _add_weights(slopes, x[rows], of_weights)
        found = [
            None if of_weight is None else of_weight.to(weight.dtype)
            for of_weight, weight in zip(of_weights, weights, strict=True)
        ]
        ctx.save_for_backward(of_x, *found)
        ctx.mark_non_differentiable(plain)
        return loss, plain

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor, _: Any) -> tuple[Tensor | None, ...]:
        found = (None if g is None else g * grad.to(g.dtype) for g in ctx.saved_tensors)
        return None, None, None, *found


def _add_weights(slopes: Sequence[Tensor], x: Tensor, found: Sequence[Tensor | None]) -> None:
    """Adds a chunk's share to the gradients of the matrices."""
    for slope, of_weight in zip(slopes, found, strict=True):
        if of_weight is not None and of_weight.dtype == x.dtype:
            of_weight.addmm_(slope.t(), x)
        elif of_weight is not None:
            of_weight.add_(slope.t() @ x)


def _sums(logits: Tensor, target: Tensor, smoothing: float) -> tuple[Tensor, Tensor]:
    """Both losses of a chunk; `logits` [n, V] are replaced by the gradient of the first."""
    V = logits.shape[1]
    # Every pass is in place: a second array of this size would double the memory of the loss.
    logits.sub_(logits.amax(-1, keepdim=True))
    of_target, of_all = logits.gather(1, target), logits.sum() if smoothing > 0.0 else None
    total = logits.exp_().sum(-1, keepdim=True)
    norm = total.log()
    nll = (norm - of_target).sum()
    loss = (1.0 - smoothing) * nll
    if of_all is not None:
        loss = loss + smoothing * (norm.sum() - of_all / V)
    logits.div_(total)
    if smoothing > 0.0:
        logits.sub_(smoothing / V)
    logits.scatter_add_(1, target, torch.full_like(norm, smoothing - 1.0))
    return loss, nll


# --- the most probable words ----------------------------------------------------------------------


def topk(x: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """torch.topk along the last of two dimensions, with a defined order of equal values.

    x       [N, V]
    returns values [N, k], largest first, and indices [N, k]; of equal values the lower index
            comes first, so the result does not depend on the algorithm
    """
    V = x.shape[-1]
    if not 0 <= k <= V:
        raise ValueError(f"topk: k={k} must be in [0, {V}], the size of a row")
    if is_transformed():  # vmap takes no shapes that depend on values
        values, indices = x.sort(dim=-1, descending=True, stable=True)
        return values[:, :k], indices[:, :k]
    # One more than asked for: the first one left out may equal the last one taken.
    values, indices = x.topk(min(k + 1, V), dim=-1)
    rows = (values[:, 1:] == values[:, :-1]).any(-1).nonzero()[:, 0]
    values, indices = values[:, :k].contiguous(), indices[:, :k].contiguous()
    if len(rows) > 0:
        exact, places = x[rows].sort(dim=-1, descending=True, stable=True)
        values[rows], indices[rows] = exact[:, :k], places[:, :k]
    return values, indices


def topk_logprobs(logits: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k most probable words of each row.

    logits  [N, V]
    returns log-probabilities [N, k], float32 or wider, largest first, and words [N, k] int64; of
            equal ones the lower word comes first
    """
    fits = (
        type(logits) is Tensor
        and logits.is_cpu
        and logits.dtype == torch.float32
        and logits.dim() == 2
        and logits.stride(1) == 1
        and 1 <= k <= logits.shape[1]
        and not (logits.requires_grad and torch.is_grad_enabled())
        and not torch.compiler.is_compiling()
        and not is_transformed()
    )
    if not fits or native().library is None:
        return topk(torch.log_softmax(logits, -1, dtype=accumulate_dtype(logits.dtype)), k)
    # One pass: the sum of exponentials and the k best together.
    N, V = logits.shape
    values, words = torch.empty(N, k), torch.empty(N, k, dtype=torch.int64)
    to = values.data_ptr(), words.data_ptr()
    call("lightconv_topk", logits.data_ptr(), N, V, logits.stride(0), k, *to)
    return values, words
