"""R10: the kernels of this machine against the formulas in float64."""

import random
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from lightconv import ops
from lightconv.ops.library import native
from lightconv.selftest.promise import Figures, expect

NAMES = ("dynamicconv", "dynamicconv_softmax", "lightconv", "lightconv_softmax")
OPERATORS: dict[str, Callable[..., Tensor]] = {name: getattr(ops, name) for name in NAMES}
# Relative to the largest value: float32 has 24 bits, and a sum of K terms loses some of them.
TOLERANCE = 2e-5


def check_kernels(folder: Path, full: bool) -> Figures:
    """R10."""
    draw, worst = random.Random(10), 0.0
    count = 200 if full else 25
    for name, operator in OPERATORS.items():
        for seed in range(count):
            generator = torch.Generator().manual_seed(seed)
            B, T, H, R = (draw.randint(1, most) for most in (3, 40, 4, 40))
            K = draw.choice([1, 2, 3, 5, 7, 15, 31, 40])
            left = draw.randrange(K)
            x, grad = (torch.randn(B, T, H * R, generator=generator) for _ in range(2))
            shape = (B, T, H, K) if name.startswith("dynamicconv") else (H, K)
            inputs = [x, torch.randn(*shape, generator=generator), grad]
            found = _run(operator, inputs, left)
            exact = _run(operator, [t.double() for t in inputs], left, backend="reference")
            for part, a, b in zip(("out", "grad x", "grad weight"), found, exact, strict=True):
                error = (a.double() - b).abs().max().item() / max(1.0, b.abs().max().item())
                where = f"{[B, T, H * R]}, K={K}, left={left}"
                expect(error < TOLERANCE, f"{name}, {part}: {error:.1e} at {where}")
                worst = max(worst, error)
            again = _run(operator, inputs, left)
            expect(all(map(torch.equal, found, again)), f"{name}: the second call differs")
    return {"shapes": count * len(OPERATORS), "worst": worst, "kernels": native().isa or "formula"}


def _run(
    operator: Callable[..., Tensor], inputs: list[Tensor], left: int, **options: str
) -> list[Tensor]:
    x, weight = (tensor.detach().requires_grad_() for tensor in inputs[:2])
    out = operator(x, weight, left, **options)
    return [out.detach(), *torch.autograd.grad(out, (x, weight), inputs[2])]
