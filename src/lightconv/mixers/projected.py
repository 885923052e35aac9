"""Common part of the paper's two convolutions: project, gate, mask, convolve, project.

The ten normalisations of a kernel (appendix A of the paper) take weights [..., K] and return
[..., K], in float32 when the input is narrower than that.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from lightconv.console import suggest
from lightconv.mixers.base import Made, Mixer, Past, linear
from lightconv.ops.check import Maybe, accumulate_dtype

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


class Projected(Mixer):
    """[B, T, D] -> in-projection -> [GLU] -> convolution -> out-projection -> [B, T, D].

    A subclass defines `reset_kernel`, `convolve` and `convolve_step`. left = K - 1 causal, K // 2
    centred. DropConnect acts in training, and in `forward` only.
    """

    packs = True
    parts = 1  # widths of the in-projection
    activation: str | None = None  # after the convolution

    def build(
        self,
        kernel: int,
        heads: int,
        glu: bool,
        normalize: str,
        dropconnect: float,
        dilation: int,
        bias: bool,
        made: Made,
    ) -> None:
        """Everything but the kernels: the constructors of the subclasses share it."""
        self.check_counts(kernel=kernel, dilation=dilation)
        self.check_heads(heads, self.dim)
        self.check_probability("dropconnect", dropconnect)
        if normalize not in NORMALIZATIONS:
            self.refuse(f"unknown normalize={normalize!r}{suggest(normalize, NORMALIZATIONS)}")
        self.kernel, self.heads, self.glu, self.bias = kernel, heads, glu, bias
        self.normalize, self.dropconnect, self.dilation = normalize, dropconnect, dilation
        self.left = kernel - 1 if self.causal else kernel // 2
        width = self.dim * (2 if glu else self.parts)
        self.in_proj = linear(self.dim, width, bias=bias, **made)
        self.out_proj = linear(self.dim, self.dim, bias=bias, **made)

    def reset_parameters(self) -> None:
        super().reset_parameters()
        self.reset_kernel()

    def mix(
        self, x: Tensor, padding: Maybe, cu_seqlens: Maybe = None, context: Maybe = None
    ) -> Tensor:
        return self.mix_projected(self.in_proj(x), padding, cu_seqlens, context)

    def mix_projected(self, x: Tensor, padding: Maybe, cu_seqlens: Maybe, context: Maybe) -> Tensor:
        """x [B, T, width of the in-projection] -> [B, T, D]."""
        x, gate = self.split(x)
        if padding is not None:
            # After the projection: before it, the bias would leak into the real positions.
            x = x.masked_fill(padding.unsqueeze(-1), 0.0)
        dropconnect = self.dropconnect if self.training else 0.0
        options = self.around | gate | {"cu_seqlens": cu_seqlens, "dropconnect": dropconnect}
        out: Tensor = self.out_proj(self.convolve(x, context, options))
        return out

    @property
    def around(self) -> dict[str, Any]:
        """Options of the operators that are not their defaults: an empty frame costs no time."""
        values = {"dilation": self.dilation, "activation": self.activation}
        return {name: value for name, value in values.items() if value not in (1, None)}

    def split(self, x: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Projected x -> input of the convolution [B, T, D], and its gates by name."""
        return F.glu(x, dim=-1) if self.glu else x, {}

    def allocate(self, batch: int, max_len: int, like: Tensor) -> Past:
        """The last (K - 1) * dilation inputs of the convolution, a ring: [B, slots, D]."""
        return (like.new_zeros(batch, (self.kernel - 1) * self.dilation, self.dim),)

    def advance(
        self, x: Tensor, tensors: Past, position: int, context: Maybe = None
    ) -> tuple[Tensor, Past]:
        return self.advance_projected(self.in_proj(x), tensors, position, context)

    def advance_projected(
        self, x: Tensor, tensors: Past, position: int, context: Maybe
    ) -> tuple[Tensor, Past]:
        (window,) = tensors
        # Under autocast the projection is narrower than a window in the dtype of the parameters.
        x, gate = self.split(x.to(window.dtype))
        out, window = self.convolve_step(x, window, position, context, self.around | gate)
        return self.out_proj(out), (window,)

    def reset_kernel(self) -> None:
        """Initialises the parameters of the kernels."""
        raise NotImplementedError

    def convolve(self, x: Tensor, context: Maybe, options: Made) -> Tensor:
        """x [B, T, D] -> [B, T, D]; options of the operator."""
        raise NotImplementedError

    def convolve_step(
        self, x: Tensor, window: Tensor, position: int, context: Maybe, options: Made
    ) -> tuple[Tensor, Tensor]:
        """x [B, n, D], window [B, slots, D] -> [B, n, D] and the new window."""
        raise NotImplementedError
