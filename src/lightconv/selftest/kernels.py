"""R10: the kernels of this machine against the formulas in float64."""

import random
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from lightconv import ops
from lightconv.ops.library import native
from lightconv.selftest.promise import Figures, expect

Operator = Callable[..., Tensor]
OPERATORS: dict[str, Operator] = {
    "dynamicconv": ops.dynamicconv,
    "dynamicconv_softmax": ops.dynamicconv_softmax,
    "lightconv": ops.lightconv,
    "lightconv_softmax": ops.lightconv_softmax,
}
# Relative to the largest number: float32 has 24 bits, and a sum of K terms loses some.
LARGEST = 2e-5


def check_kernels(folder: Path, full: bool) -> Figures:
    """R10."""
    draw, worst = random.Random(10), 0.0
    count = 200 if full else 25
    for name, operator in OPERATORS.items():
        for number in range(count):
            inputs, left = _inputs(name, draw, number)
            found = _run(operator, inputs, left)
            exact = _run(operator, [t.double() for t in inputs], left, backend="reference")
            for part, a, b in zip(("out", "grad x", "grad weight"), found, exact, strict=True):
                scale = max(1.0, b.abs().max().item()) if b.numel() else 1.0
                error = (a.double() - b).abs().max().item() / scale if b.numel() else 0.0
                shapes = [list(t.shape) for t in inputs[:2]]
                expect(error < LARGEST, f"{name}, {part}: {error:.1e} at {shapes}, left={left}")
                worst = max(worst, error)
            again = _run(operator, inputs, left)
            expect(all(map(torch.equal, found, again)), f"{name}: another result the second time")
    return {"shapes": count * len(OPERATORS), "worst": worst, "kernels": native().isa or "formula"}


def _inputs(name: str, draw: random.Random, seed: int) -> tuple[list[Tensor], int]:
    """x, weight and the gradient of the output, of any shape, and how far a kernel reaches back."""
    generator = torch.Generator().manual_seed(seed)
    B, T, H, R = (draw.randint(1, most) for most in (3, 40, 4, 40))
    K = draw.choice([1, 2, 3, 5, 7, 15, 31, 40])
    x, grad = (torch.randn(B, T, H * R, generator=generator) for _ in range(2))
    shape = (B, T, H, K) if name.startswith("dynamicconv") else (H, K)
    return [x, torch.randn(*shape, generator=generator), grad], draw.randrange(K)


def _run(operator: Operator, inputs: list[Tensor], left: int, **options: str) -> list[Tensor]:
    x, weight, grad = (tensor.detach() for tensor in inputs)
    x, weight = x.requires_grad_(), weight.requires_grad_()
    out = operator(x, weight, left, **options)
    return [out.detach(), *torch.autograd.grad(out, (x, weight), grad)]
