"""Ten normalisations of a kernel (appendix A of the paper): functions over the last dimension.

Each takes weights [..., K] and returns [..., K], in float32 when the input is narrower than that.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from lightconv.ops.check import accumulate_dtype

EPSILON = 1e-6


def _norm(weight: Tensor, order: int) -> Tensor:
    """weight [..., K] -> [..., 1], kept away from zero."""
    norm: Tensor = torch.linalg.vector_norm(weight, order, dim=-1, keepdim=True)
    return norm + EPSILON


_FORMULAS: dict[str, Callable[[Tensor], Tensor]] = {
    "none": lambda weight: weight,
    "softmax": lambda weight: weight.softmax(-1),
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "l1": lambda weight: weight / _norm(weight, 1),
    "l2": lambda weight: weight / _norm(weight, 2),
    "square": torch.square,
    "abs": torch.abs,
    "abs_l1": lambda weight: weight.abs() / _norm(weight, 1),
    "abs_l2": lambda weight: weight.abs() / _norm(weight, 2),
}


def _widen(formula: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    def normalize(weight: Tensor) -> Tensor:
        return formula(weight.to(accumulate_dtype(weight.dtype)))

    return normalize


NORMALIZATIONS = {name: _widen(formula) for name, formula in _FORMULAS.items()}
