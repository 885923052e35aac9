"""Dynamic convolution (section 4 of the paper): every position predicts its own kernels."""

import math

from torch import Tensor, nn

from lightconv.mixers.base import Device, Dtype, Made
from lightconv.mixers.projected import NORMALIZATIONS, Projected
from lightconv.ops import dynamicconv, dynamicconv_softmax, dynamicconv_step
from lightconv.ops.check import Maybe


class DynamicConv(Projected):
    """[B, T, D] -> [B, T, D] with kernels [H, K] predicted from the convolution's input at t.

    dim, kernel, heads  D, the number of taps K, and H, which divides D: channel c uses the kernel
                        of head c // (D / H)
    causal              the kernel ends at its own position, and the layer can be streamed with
                        `start` and `step`; otherwise it reaches K // 2 back
    glu                 gated linear unit after the in-projection, as in the paper
    normalize           of the kernels over their taps: "softmax", "none", "l2", ...
                        (`NORMALIZATIONS`)
    dropconnect         probability of dropping a weight, in training
    dilation            distance of two taps: reaches (K - 1) * dilation back
    bias                of both projections
    device, dtype       of the parameters
    kernel_dim          if given, kernels are predicted from another tensor [B, T, kernel_dim]:
                        layer(x, context=...)
    rank                if given, predicted by two matrices with SiLU between them, through that
                        width, added to a kernel that is the same everywhere

    >>> layer = DynamicConv(512, 31, 8, causal=True)
    >>> y = layer(torch.randn(2, 100, 512))                     # [2, 100, 512]
    >>> state = layer.start(batch=2, max_len=100)
    >>> y, state = layer.step(torch.randn(2, 1, 512), state)    # the next position
    """

    def __init__(
        self,
        dim: int,
        kernel: int,
        heads: int,
        *,
        causal: bool = False,
        glu: bool = False,
        normalize: str = "softmax",
        dropconnect: float = 0.0,
        dilation: int = 1,
        bias: bool = True,
        kernel_dim: int | None = None,
        rank: int | None = None,
        device: Device = None,
        dtype: Dtype = None,
    ) -> None:
        super().__init__(dim, causal)
        made: Made = {"device": device, "dtype": dtype}
        self.build(kernel, heads, glu, normalize, dropconnect, dilation, bias, made)
        self.build_generator(kernel_dim, rank, made)

    def build_generator(self, kernel_dim: int | None, rank: int | None, made: Made) -> None:
        given = {"kernel_dim": kernel_dim, "rank": rank}
        self.check_counts(**{name: v for name, v in given.items() if v is not None})
        self.kernel_dim, self.rank = kernel_dim, rank
        inputs, outputs = kernel_dim or self.dim, self.heads * self.kernel
        self.kernel_proj: nn.Module
        if rank is None:
            self.kernel_proj = nn.Linear(inputs, outputs, bias=False, **made)
        else:
            first = nn.Linear(inputs, rank, bias=False, **made)
            self.kernel_proj = nn.Sequential(first, nn.SiLU(), nn.Linear(rank, outputs, **made))
        self.reset_kernel()

    def reset_kernel(self) -> None:
        first, *more = (m for m in self.kernel_proj.modules() if isinstance(m, nn.Linear))
        bound = 1.0 / math.sqrt(first.in_features)
        nn.init.uniform_(first.weight, -bound, bound)
        for last in more:  # begins as its bias, a kernel that is the same everywhere
            nn.init.zeros_(last.weight)
            bound = 1.0 / math.sqrt(self.kernel)
            nn.init.uniform_(last.bias, -bound, bound)

    def convolve(self, x: Tensor, context: Maybe, options: Made) -> Tensor:
        logits = self._predict(x, context)
        if self.normalize == "softmax":
            return dynamicconv_softmax(x, logits, self.left, **options)
        return dynamicconv(x, NORMALIZATIONS[self.normalize](logits), self.left, **options)

    def convolve_step(
        self, x: Tensor, window: Tensor, position: int, context: Maybe, options: Made
    ) -> tuple[Tensor, Tensor]:
        logits = self._predict(x, context).to(x.dtype)
        if self.normalize == "softmax":
            return dynamicconv_step(x, window, position, logits, softmax=True, **options)
        weight = NORMALIZATIONS[self.normalize](logits)
        return dynamicconv_step(x, window, position, weight, **options)

    def _predict(self, x: Tensor, context: Tensor | None) -> Tensor:
        """x [B, T, D], context [B, T, kernel_dim] -> [B, T, H, K]."""
        if (context is None) != (self.kernel_dim is None):
            self.refuse(f"context goes with kernel_dim, which is {self.kernel_dim}")
        source = x if context is None else context
        if context is not None and context.shape != (*x.shape[:2], self.kernel_dim):
            wanted = [*x.shape[:2], self.kernel_dim]
            self.refuse(f"context must have shape {wanted}, got {list(context.shape)}")
        logits: Tensor = self.kernel_proj(source)
        return logits.view(*x.shape[:2], self.heads, self.kernel)


class LowRankConv(DynamicConv):
    """Kernels per channel from a low-rank generator, SiLU after (the JetBlock's convolution).

    dim, kernel  D and K; a kernel for every channel and position, without a softmax
    rank         width of the generator; D / 8 if None
    Other arguments as of `DynamicConv`.

    >>> y = LowRankConv(512, 4, causal=True)(torch.randn(2, 100, 512))    # [2, 100, 512]
    """

    activation = "silu"

    def __init__(
        self,
        dim: int,
        kernel: int = 4,
        rank: int | None = None,
        *,
        causal: bool = False,
        dropconnect: float = 0.0,
        dilation: int = 1,
        bias: bool = True,
        kernel_dim: int | None = None,
        device: Device = None,
        dtype: Dtype = None,
    ) -> None:
        super(DynamicConv, self).__init__(dim, causal)
        made: Made = {"device": device, "dtype": dtype}
        self.build(kernel, dim, False, "none", dropconnect, dilation, bias, made)
        self.build_generator(kernel_dim, max(1, dim // 8) if rank is None else rank, made)
