"""Cross entropy over a vocabulary without its logits: a few positions at a time.

    logits = x W^T [n, V];   loss = sum_i (1 - e) nll(i, target_i) + e / V sum_v nll(i, v)

The gradients of a chunk are made while its logits exist, so that memory holds one chunk of them and
no product is computed twice: three matrix products forward and backward together, as ever.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from lightconv.ops.check import accumulate_dtype

CHUNK = 1024  # positions, fewer where the vocabulary is large
LARGEST = 1024 * 32768  # logits at a time


def chunk_of(V: int) -> int:
    """How many positions have logits at a time."""
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
    """The label-smoothed loss and the plain negative log-likelihood, each summed over positions.

    x       [n, D]
    weight  [V, D]
    target  [n] int64
    more    [C, D]: the matrix is that of V + C rows, these at its end
    chunk   positions whose logits exist at a time; None: as `chunk_of` says
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
    device = x.device.type
    if torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device):
        x = x.to(torch.get_autocast_dtype(device))
    if not torch.is_grad_enabled():  # which a Function does not see
        x, weights = x.detach(), [weight.detach() for weight in weights]
    apply: Any = _LinearCrossEntropy.apply
    found: tuple[Tensor, Tensor] = apply(target, smoothing, chunk, x, *weights)
    return found


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
                    _add_x(slopes, narrow, None if of_x is None else of_x[rows])
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


def _add_x(slopes: Sequence[Tensor], weights: Sequence[Tensor], of_x: Tensor | None) -> None:
    """Fills the gradient of a chunk's x [n, D] from those of its logits, if it is wanted."""
    if of_x is None:
        return
    torch.mm(slopes[0], weights[0], out=of_x)
    for slope, weight in zip(slopes[1:], weights[1:], strict=True):
        of_x.addmm_(slope, weight)


def _add_weights(slopes: Sequence[Tensor], x: Tensor, found: Sequence[Tensor | None]) -> None:
    """Adds what a chunk gives to the gradients of the matrices, as far as these are wanted."""
    for slope, of_weight in zip(slopes, found, strict=True):
        if of_weight is not None and of_weight.dtype == x.dtype:
            of_weight.addmm_(slope.t(), x)
        elif of_weight is not None:
            of_weight.add_(slope.t() @ x)


def _sums(logits: Tensor, target: Tensor, smoothing: float) -> tuple[Tensor, Tensor]:
    """The two losses of a chunk; `logits` [n, V] become their own gradient of the first."""
    V = logits.shape[1]
    # Every pass is in place: a second array of this size would double what the loss takes.
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
