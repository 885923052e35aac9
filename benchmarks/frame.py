"""A short convolution with bias, SiLU and residual: one operator against separate calls.

    python -m benchmarks.frame

Forward and backward of lightconv [8, 512, 1024], K = 4, one kernel per channel; separate calls are
the same convolution, then torch's sum, SiLU and sum.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.measure import interleave
from lightconv.ops import lightconv

B, T, D, K = 8, 512, 1024, 4


def fused(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return lightconv(x, weight, K - 1, bias=bias, activation="silu", residual=True)


def separate(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return x + F.silu(lightconv(x, weight, K - 1) + bias)


def main() -> dict[str, float]:
    leaves = [torch.randn(*shape).requires_grad_() for shape in ((B, T, D), (D, K), (D,))]
    grad = torch.randn(B, T, D)
    sides = {
        f.__name__: lambda f=f: torch.autograd.grad(f(*leaves), leaves, grad)
        for f in (fused, separate)
    }
    torch.testing.assert_close(*(call() for call in sides.values()), atol=1e-3, rtol=1e-3)
    seconds = interleave(sides, rounds=25)
    for name, value in seconds.items():
        print(f"{name:9} {1e3 * value:6.2f} ms")
    print(f"ratio {seconds['separate'] / seconds['fused']:.2f} ({torch.get_num_threads()} threads)")
    return seconds


if __name__ == "__main__":
    main()
