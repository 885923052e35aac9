"""Common part of the paper's two convolutions: project, gate, mask, convolve, project.

The ten normalisations of a kernel (appendix A of the paper) take weights [..., K] and return
[..., K], in float32 when the input is narrower than that.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from lightconv.console import suggest
from lightconv.mixers.base import (
    Mixer,
    check_count,
    check_heads,
    check_input,
    check_probability,
    linear,
)
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


class Projected(Mixer):
    """[B, T, D] -> in-projection -> [GLU] -> convolution -> out-projection -> [B, T, D].

    A subclass defines `make_kernel`, `convolve` and `convolve_step`. left = K - 1 causal, K // 2
    centred. DropConnect acts in training, and in `forward` only.
    """

    settings = ("kernel", "heads", "causal", "glu", "normalize", "dropconnect")

    def __init__(
        self,
        dim: int,
        *,
        kernel: int,
        heads: int,
        causal: bool = False,
        glu: bool = False,
        normalize: str = "softmax",
        dropconnect: float = 0.0,
    ) -> None:
        super().__init__(dim, causal)
        check_count("kernel", kernel)
        check_heads(dim, heads)
        check_probability("dropconnect", dropconnect)
        if normalize not in NORMALIZATIONS:
            raise ValueError(f"unknown normalize={normalize!r}{suggest(normalize, NORMALIZATIONS)}")
        self.kernel = kernel
        self.heads = heads
        self.left = kernel - 1 if causal else kernel // 2
        self.glu = glu
        self.normalize = normalize
        self.dropconnect = dropconnect
        self.in_proj = linear(dim, 2 * dim if glu else dim)
        self.out_proj = linear(dim, dim)
        self.make_kernel()

    def forward(
        self, x: Tensor, padding: Tensor | None = None, cu_seqlens: Tensor | None = None
    ) -> Tensor:
        """Mixes whole sequences, or several packed without padding between them.

        x          [B, T, D]; [1, N, D] with cu_seqlens
        padding    [B, T] bool, True at padding
        cu_seqlens [S + 1] int32 or int64: sequence s is x[0, cu_seqlens[s] : cu_seqlens[s + 1]]
        returns    [B, T, D], undefined at padding
        """
        check_input(self.dim, x, padding)
        x = self._project(x)
        if padding is not None:
            # After the projection: before it, the bias would leak into the real positions.
            x = x.masked_fill(padding.unsqueeze(-1), 0.0)
        x = self.convolve(x, cu_seqlens, self.dropconnect if self.training else 0.0)
        out: Tensor = self.out_proj(x)
        return out

    def allocate(
        self, batch: int, max_len: int, device: torch.device, dtype: torch.dtype
    ) -> tuple[Tensor, ...]:
        """The last K - 1 inputs of the convolution, a ring: [B, K-1, D]."""
        return (torch.zeros(batch, self.kernel - 1, self.dim, device=device, dtype=dtype),)

    def advance(
        self, x: Tensor, tensors: tuple[Tensor, ...], position: int
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        (window,) = tensors
        # Under autocast the projection is narrower than a window in the dtype of the parameters.
        x = self._project(x).to(window.dtype)
        out, window = self.convolve_step(x, window, position)
        return self.out_proj(out), (window,)

    def make_kernel(self) -> None:
        """Creates and initialises the parameters of the kernels."""
        raise NotImplementedError

    def convolve(self, x: Tensor, cu_seqlens: Tensor | None, dropconnect: float) -> Tensor:
        """x [B, T, D] -> [B, T, D]."""
        raise NotImplementedError

    def convolve_step(self, x: Tensor, window: Tensor, position: int) -> tuple[Tensor, Tensor]:
        """x [B, n, D], window [B, K-1, D] -> [B, n, D] and the new window."""
        raise NotImplementedError

    def _project(self, x: Tensor) -> Tensor:
        x = self.in_proj(x)
        return F.glu(x, dim=-1) if self.glu else x
