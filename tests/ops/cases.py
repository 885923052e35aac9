"""Shapes, inputs and comparisons that the operators' tests share."""

import itertools
import random
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from lightconv import ops
from lightconv.ops.check import accumulate_dtype

f16, f32, f64, bf16 = torch.float16, torch.float32, torch.float64, torch.bfloat16
NAMES = {f16: "f16", f32: "f32", f64: "f64", bf16: "bf16"}
OPERATORS = {name: getattr(ops, name) for name in ops.__all__}
OPS = ("dynamicconv", "dynamicconv_softmax", "lightconv", "lightconv_softmax")
INTEGER = {f16: torch.int16, bf16: torch.int16, f32: torch.int32, f64: torch.int64}
every_op = pytest.mark.parametrize("op", OPS)
need_gradients = pytest.mark.parametrize(
    "need",
    [(True, True), (True, False), (False, True), (False, False)],
    ids=["both", "x", "weight", "none"],
)
every_backend = pytest.mark.parametrize("backend", ["auto", "reference", "band"])


def dtypes(*dtypes: torch.dtype) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("dtype", dtypes, ids=NAMES.get)


class Shape(NamedTuple):
    """Batch, length, heads, channels of a head, taps, and how far back the first tap reaches."""

    B: int
    T: int
    H: int
    R: int
    K: int
    left: int

    def __str__(self) -> str:
        return "-".join(f"{name}{value}" for name, value in self._asdict().items())


class Inputs(NamedTuple):
    x: Tensor
    weight: Tensor
    grad: Tensor

    def to(self, dtype: torch.dtype) -> "Inputs":
        return Inputs(*(tensor.to(dtype) for tensor in self))


class Results(NamedTuple):
    out: Tensor
    grad_x: Tensor
    grad_weight: Tensor


def is_dynamic(op: str) -> bool:
    return op.startswith("dynamicconv")


def is_softmax(op: str) -> bool:
    return op.endswith("softmax")


def make_inputs(
    op: str,
    shape: Shape,
    dtype: torch.dtype = f64,
    weight_dtype: torch.dtype | None = None,
    seed: int = 0,
) -> Inputs:
    generator = torch.Generator().manual_seed(seed)

    def normal(*size: int) -> Tensor:
        return torch.randn(*size, generator=generator, dtype=f64)

    B, T, H, R, K, _ = shape
    weight = normal(*((B, T) if is_dynamic(op) else ()), H, K)
    return Inputs(
        normal(B, T, H * R).to(dtype),
        weight.to(weight_dtype or dtype),
        normal(B, T, H * R).to(dtype),
    )


def run(op: str, inputs: Inputs, left: int, **options: Any) -> Results:
    """The output and both gradients; the inputs keep their strides."""
    x, weight = (tensor.detach().requires_grad_() for tensor in inputs[:2])
    out = OPERATORS[op](x, weight, left, **options)
    return Results(out.detach(), *torch.autograd.grad(out, (x, weight), inputs.grad))


def run_exact(op: str, inputs: Inputs, left: int, **options: Any) -> Results:
    """The formula in float64."""
    return run(op, inputs.to(f64), left, backend="reference", **options)


def check(
    op: str, inputs: Inputs, left: int, about: str = "", *, floor: float = 0.0, **options: Any
) -> None:
    """An operator against the formula in float64, which knows one backend."""
    found = run(op, inputs, left, **options)
    options.pop("backend", None)
    assert_close(found, run_exact(op, inputs, left, **options), inputs, about, floor)


def errors_allowed(dtype: torch.dtype, expected: Tensor, floor: float) -> Tensor:
    """The sum may be off by a share of the largest result, the result rounded once to half."""
    share = 1e-12 if accumulate_dtype(dtype) == f64 else 1e-5
    allowed = torch.full_like(expected, share * max(floor, expected.abs().max().item()))
    if dtype in (f16, bf16):
        info = torch.finfo(dtype)
        allowed += expected.abs() * info.eps / 2 + info.smallest_normal * info.eps / 2
    return allowed


def assert_close(
    found: Results, expected: Results, inputs: Inputs, about: str = "", floor: float = 0.0
) -> None:
    """Shapes, dtypes and values of the output and both gradients.

    Errors count against the largest result; `floor` is for results that are zero by cancellation.
    """
    dtypes = (inputs.x.dtype, inputs.x.dtype, inputs.weight.dtype)
    for name, a, b, dtype in zip(Results._fields, found, expected, dtypes, strict=True):
        assert a.dtype == dtype, f"{about} {name}: {a.dtype}, expected {dtype}"
        assert a.shape == b.shape, f"{about} {name}: {a.shape}, expected {b.shape}"
        if b.numel() == 0:
            continue
        error = (a.double() - b).abs()
        good = error <= errors_allowed(dtype, b, floor)  # a NaN is not
        assert good.all(), (
            f"{about} {name}: {(~good).sum()} of {good.numel()} wrong, by up to {error.max():.2e}, "
            f"largest value {b.abs().max():.2e}, first at {(~good).nonzero()[0].tolist()}"
        )


def same_bits(a: Tensor, b: Tensor) -> bool:
    """NaN equals itself here, and 0 is not -0."""
    bits = [tensor.contiguous().view(INTEGER[tensor.dtype]) for tensor in (a, b)]
    return torch.equal(*bits)


def all_same_bits(a: Results, b: Results) -> bool:
    return all(same_bits(*pair) for pair in zip(a, b, strict=True))


# --- shapes ---------------------------------------------------------------------------------------

SHAPES = [
    # Lengths: none, one, below the kernel, odd, around the blocks (4, 8) and the tile (64).
    *(Shape(2, T, 2, 3, 5, 4) for T in (0, 1, 2, 3, 4, 5, 7, 8, 9)),
    *(Shape(1, T, 2, 16, 3, 2) for T in (63, 64, 65, 127, 128, 129)),
    # Taps: one, two, even, the paper's 31, wider than the tile, wider than the sequence.
    *(Shape(2, 11, 2, 4, K, K - 1) for K in (1, 2, 3, 4, 6, 7, 8, 9, 31, 32, 64)),
    *(Shape(1, T, 2, 3, K, K // 2) for K in (65, 70, 130) for T in (1, 50, 71, 140)),
    # How far back: only forward, centred, causal, beyond the kernel, beyond the sequence.
    *(Shape(2, 13, 2, 5, 6, left) for left in (0, 1, 3, 5, 6, 8, 12, 13, 18, 19, 1000)),
    *(Shape(1, 130, 1, 17, 7, left) for left in (0, 3, 6, 7, 70, 129, 200)),
    *(Shape(1, 70, 1, 3, 66, left) for left in (0, 65, 66, 69, 100)),
    # Channels of a head, around vectors of 2 to 16 numbers and four of them.
    *(Shape(1, 9, 2, R, 3, 1) for R in (1, 2, 3, 4, 7, 8, 9, 15, 16, 17, 31, 33, 48)),
    *(Shape(1, 9, 2, R, 31, 30) for R in (64, 65, 80, 127, 128, 130, 200)),
    # Heads: one, many, depthwise.
    *(Shape(2, 10, H, 1, 4, 2) for H in (1, 5, 64, 65, 130)),
    # Heads narrower than a vector: a whole vector, a part, more; every power of two of taps.
    *(Shape(1, 70, H, R, K, K - 1) for H in (16, 19) for R in (1, 2, 4, 8) for K in (3, 4, 8, 17)),
    *(Shape(2, 9, 32, R, K, 1) for R in (1, 4) for K in (1, 2, 16, 33)),
    # Their number of channels no power of two: whole vectors of heads, and a part of one.
    *(Shape(1, 70, H, R, K, K - 1) for H in (16, 19) for R in (3, 5, 6, 7) for K in (1, 3, 9)),
    # Few taps, read where they are, and at a sequence's ends.
    *(Shape(1, 130, 2, R, K, 1) for R in (32, 64, 80) for K in (1, 3, 4)),
    Shape(3, 20, 16, 4, 7, 6),
    # Batches: none, three.
    *(Shape(B, 66, 3, 8, 5, 2) for B in (0, 3)),
    Shape(0, 0, 1, 1, 1, 0),
]

# One shape for every way through the kernels, for what is tested many times over.
FEW_SHAPES = [
    Shape(2, 9, 2, 3, 5, 4),
    Shape(1, 70, 2, 16, 31, 30),
    Shape(3, 6, 5, 1, 4, 1),
    Shape(1, 130, 1, 65, 70, 35),
    Shape(1, 12, 3, 17, 3, 6),
    Shape(1, 70, 18, 2, 4, 3),
    Shape(1, 9, 21, 6, 7, 6),
]
few_shapes = pytest.mark.parametrize("shape", FEW_SHAPES, ids=str)


class RandomCase(NamedTuple):
    shape: Shape
    dtype: torch.dtype
    weight_dtype: torch.dtype
    lengths: tuple[int, ...]
    dropconnect: float
    seed: int

    @property
    def options(self) -> dict[str, Any]:
        options: dict[str, Any] = {}
        if self.lengths:
            options["cu_seqlens"] = boundaries(self.lengths)
        if self.dropconnect:
            options |= {"dropconnect": self.dropconnect, "seed": self.seed}
        return options


def boundaries(lengths: tuple[int, ...], dtype: torch.dtype = torch.int64) -> Tensor:
    """The cu_seqlens of sequences of these lengths."""
    return torch.tensor([0, *itertools.accumulate(lengths)], dtype=dtype)


def every_option(*lengths: int) -> pytest.MarkDecorator:
    """None, DropConnect, and sequences of these lengths packed."""
    options: dict[str, dict[str, Any]] = {
        "plain": {},
        "dropconnect": {"dropconnect": 0.3, "seed": 2},
        "packed": {"cu_seqlens": boundaries(lengths)},
    }
    return pytest.mark.parametrize("options", options.values(), ids=options)


def random_cases(count: int, seed: int) -> Iterator[RandomCase]:
    draw = random.Random(seed)
    for _ in range(count):
        dtype = draw.choice((f64, f32, f32, f16, bf16))
        lengths: tuple[int, ...] = ()
        B, T = draw.choice((1, 1, 2, 3)), draw.choice((draw.randint(1, 20), draw.randint(20, 140)))
        if draw.random() < 0.25:
            lengths = tuple(draw.choice((0, 1, 3, 9, 20, 65)) for _ in range(draw.randint(1, 5)))
            B, T = 1, sum(lengths)
        K = draw.choice((1, 2, 3, 4, 5, 7, 8, 15, 31, draw.randint(1, 40), draw.randint(64, 90)))
        left = draw.choice((0, K // 2, K - 1, K - 1, draw.randint(0, 2 * K), draw.randint(0, 150)))
        shape = Shape(
            B,
            T,
            draw.choice((1, 2, 3, 5, 16, 21)),
            draw.choice((1, 2, 3, 4, 6, 8, 16, 17, 32, 65)),
            K,
            left,
        )
        yield RandomCase(
            shape,
            dtype,
            draw.choice((dtype, accumulate_dtype(dtype))),
            lengths,
            draw.choice((0.0, 0.0, 0.0, 0.25, 0.7)),
            draw.randint(-(2**63), 2**63 - 1),
        )
