"""Dropout, residual sum and layer normalisation: the kernel against torch's own functions."""

import ctypes
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from lightconv import ops
from lightconv.ops import build, residual
from lightconv.ops.reference import drop_scale, random_bits

from .cases import bf16, dtypes, f16, f32, f64

SHAPES = [
    (1, 1),
    (3, 2),
    (2, 5, 16),
    (7, 31),
    (4, 3, 64),
    (0, 8),
    (9, 100),
    (2, 33, 1024),
    (65, 17),
]
TOLERANCE = {f32: 2e-6, f64: 1e-13, bf16: 2e-2, f16: 2e-3}


def inputs(shape: tuple[int, ...], dtype: torch.dtype, seed: int = 0) -> list[Tensor]:
    """x, inner, weight, bias."""
    generator = torch.Generator().manual_seed(seed)
    draw = lambda *size: torch.randn(size, generator=generator, dtype=f64)
    x, inner = draw(*shape) + 3.0, draw(*shape)
    weight, bias = 1.0 + 0.3 * draw(shape[-1]), draw(shape[-1])
    return [t.to(dtype).requires_grad_() for t in (x, inner, weight, bias)]


def plain(x: Tensor, inner: Tensor, weight: Tensor, bias: Tensor, p: float, seed: int) -> Tensor:
    """What the operator stands for, in torch's words, in float64."""
    if p > 0.0:
        inner = inner * drop_scale(torch.tensor(seed), tuple(inner.shape), p, f64)
    return F.layer_norm(x + inner, weight.shape, weight, bias)


def assert_like_plain(given: list[Tensor], p: float, note: str = "") -> None:
    out = ops.dropout_add_norm(*given, p, seed=11)
    torch.manual_seed(1)
    grad = torch.randn(out.shape, dtype=f64).to(out.dtype)
    found = [out, *torch.autograd.grad(out, given, grad)]
    exact = [t.detach().double().requires_grad_() for t in given]
    wanted_out = plain(*exact, p, 11)
    wanted = [wanted_out, *torch.autograd.grad(wanted_out, exact, grad.double())]
    for name, a, b in zip(("out", "x", "inner", "weight", "bias"), found, wanted, strict=True):
        if a.numel() == 0:
            continue
        # A row of one or two numbers is all cancellation, times up to 1 / sqrt(eps).
        least, slack = (1.0, 100) if given[0].shape[-1] < 3 else (1e-3, 1)
        error = (a.double() - b).abs().max() / b.abs().max().clamp(min=least)
        assert error <= slack * TOLERANCE[out.dtype], f"{name} {error} {note}"


@pytest.mark.parametrize("p", [0.0, 0.3])
@dtypes(f32, f64, bf16, f16)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.usefixtures("poisoned")
def test_equals_torch(
    kernels: Any, instruction_sets: list[str], shape: Any, dtype: torch.dtype, p: float
) -> None:
    for isa in instruction_sets:
        kernels.lightconv_choose(isa.encode())
        assert_like_plain(inputs(shape, dtype), p, isa)


@pytest.mark.parametrize("p", [0.0, 0.4])
def test_formula_equals_kernel(p: float) -> None:
    x, inner, weight, bias = (t.detach() for t in inputs((5, 37), f64))
    seed = torch.tensor(5)
    drawn = (residual.EPS, p, seed)
    out, total, stats = residual.formula(x, inner, weight, bias, *drawn)
    kernel = torch.ops.lightconv.residual(x, inner, weight, bias, *drawn)
    torch.testing.assert_close(kernel, (out, total, stats), rtol=1e-12, atol=1e-12)
    rest = (weight, f64, p, seed, True, True, True)
    grad = torch.randn_like(out)
    kernel = torch.ops.lightconv.residual_backward(grad, total, stats, *rest)
    expected = residual.formula_backward(grad, total, stats, *rest)
    torch.testing.assert_close(kernel, expected, rtol=1e-12, atol=1e-12)


def test_dropout_and_dropout_add() -> None:
    x, inner, *_ = inputs((6, 50), f64)
    factor = drop_scale(torch.tensor(3), (6, 50), 0.25, f64)
    assert torch.equal(ops.dropout(inner, 0.25, seed=3), inner * factor)
    torch.testing.assert_close(ops.dropout_add(x, inner, 0.25, seed=3), x + inner * factor)
    assert ops.dropout(inner, 0.0) is inner
    assert torch.equal(ops.dropout_add(x, inner, 0.0), x + inner)
    (grad,) = torch.autograd.grad(ops.dropout(inner, 0.25, seed=3).sum(), inner)
    torch.testing.assert_close(grad, factor)
    ones = torch.autograd.grad(ops.dropout_add(x, inner, 0.25, seed=3).sum(), (x, inner))
    assert torch.equal(ones[0], torch.ones_like(x))
    torch.testing.assert_close(ones[1], factor)


CALLS: dict[str, Callable[..., Tensor]] = {
    "dropout": lambda x, inner, weight, bias: ops.dropout(inner, 0.5, seed=7),
    "dropout_add": lambda x, inner, weight, bias: ops.dropout_add(x, inner, 0.5, seed=7),
    "dropout_add_norm": lambda *given: ops.dropout_add_norm(*given, 0.5, seed=7),
    "add_norm": lambda *given: ops.dropout_add_norm(*given, 0.0),
}


@pytest.mark.parametrize("name", CALLS)
def test_gradcheck(name: str) -> None:
    given = inputs((3, 2, 5), f64)
    assert torch.autograd.gradcheck(CALLS[name], given, check_undefined_grad=False)
    assert torch.autograd.gradgradcheck(CALLS[name], given, check_undefined_grad=False)


@pytest.mark.parametrize("wanted", range(1, 16))
def test_any_subset_of_gradients(wanted: int) -> None:
    given = [t.detach() for t in inputs((4, 9), f64)]
    chosen = [t.requires_grad_() for i, t in enumerate(given) if wanted >> i & 1]
    out = ops.dropout_add_norm(*given, 0.5, seed=1)
    expected = torch.autograd.grad(plain(*given, 0.5, 1).cos().sum(), chosen)
    torch.testing.assert_close(torch.autograd.grad(out.cos().sum(), chosen), expected)


@pytest.mark.parametrize("name", CALLS)
def test_opcheck(name: str) -> None:
    x, inner, weight, bias = inputs((3, 7), f32)
    p, seed = (0.0, None) if name == "add_norm" else (0.5, torch.tensor(7))
    x = None if name == "dropout" else x
    affine = (weight, bias) if name.endswith("norm") else (None, None)
    torch.library.opcheck(torch.ops.lightconv.residual.default, (x, inner, *affine, 1e-5, p, seed))


@pytest.mark.parametrize("dynamic", [False, True])
def test_compiles_in_one_graph(dynamic: bool) -> None:
    given = inputs((4, 6, 16), f32)

    def function(*given: Tensor) -> Tensor:
        return ops.dropout_add_norm(*given, 0.3, seed=2).sin()

    compiled = torch.compile(function, fullgraph=True, backend="aot_eager", dynamic=dynamic)
    found, expected = (torch.autograd.grad(f(*given).sum(), given) for f in (compiled, function))
    torch.testing.assert_close(found, expected)


def test_half_precision_beside_a_wide_stream() -> None:
    x, inner, weight, bias = inputs((6, 64), f32)
    narrow = inner.detach().to(bf16).requires_grad_()
    out = ops.dropout_add_norm(x, narrow, weight, bias, 0.2, seed=4)
    assert out.dtype == f32
    wide = narrow.detach().float().requires_grad_()
    expected = ops.dropout_add_norm(x, wide, weight, bias, 0.2, seed=4)
    assert torch.equal(out, expected)
    (grad,) = torch.autograd.grad(out.sin().sum(), narrow)
    (wanted,) = torch.autograd.grad(expected.sin().sum(), wide)
    assert grad.dtype == bf16
    torch.testing.assert_close(grad, wanted.to(bf16))


def test_the_number_of_threads_changes_nothing(threads: None) -> None:
    given = inputs((700, 96), f32)

    def run(count: int) -> list[Tensor]:
        torch.set_num_threads(count)
        out = ops.dropout_add_norm(*given, 0.3, seed=1)
        return [out, *torch.autograd.grad(out.sin().sum(), given)]

    for a, b in zip(run(1), run(3), strict=True):
        assert torch.equal(a, b)


PROBE = """
#define LIGHTCONV_ISA base
#define VEC_BYTES 16
#include "taps.h"
extern "C" void factors(uint64_t seed, uint64_t first, int64_t n, uint32_t below, float* to) {
  base::drop_factors<float>(seed, first, n, below, 1.0f, to);
}
"""


@pytest.mark.parametrize("first", [0, 2**32 - 5, 2**32, 2**40 + 3])
def test_factors_at_large_indices(tmp_path: Path, first: int) -> None:
    """No test has 2**32 elements, so the kernel's function is called alone."""
    source, library = tmp_path / "probe.cpp", tmp_path / "probe.so"
    source.write_text(PROBE)
    flags = ["-std=c++17", "-O2", "-shared", "-fPIC", f"-I{build.SOURCES}", "-w"]
    subprocess.run([*build.compiler(), *flags, str(source), "-o", str(library)], check=True)
    seed, count, below = 987654321987654321, 300, 2**31
    found = (ctypes.c_float * count)()
    ctypes.CDLL(str(library)).factors(
        ctypes.c_uint64(seed), ctypes.c_uint64(first), ctypes.c_int64(count), below, found
    )
    bits = random_bits(torch.tensor(seed), torch.arange(first, first + count))
    assert list(found) == (bits >= below).float().tolist()


def test_seeds_come_from_torchs_generator() -> None:
    inner = torch.ones(4, 256)
    torch.manual_seed(1)
    first, second = (ops.dropout(inner, 0.5) for _ in range(2))
    torch.manual_seed(1)
    assert torch.equal(ops.dropout(inner, 0.5), first)
    assert not torch.equal(first, second)
    assert abs(first.mean().item() - 1.0) < 0.2


@pytest.mark.parametrize(
    "change, message",
    [
        ({"x": torch.ones(2, 3)}, r"x \[2, 3\] .* must be like inner \[4, 3\]"),
        ({"weight": torch.ones(4)}, r"weight must have shape \[3\], got \[4\]"),
        ({"x": torch.ones(4, 3, dtype=f16)}, "must not be narrower than inner"),
        ({"bias": torch.ones(3, dtype=f64)}, "bias must be torch.float32 like x"),
        ({"inner": torch.ones(4, 3, dtype=torch.int64)}, "inner must have .* a float dtype"),
        ({"p": 1.0}, r"dropout must be in \[0, 1\), got 1.0"),
        ({"seed": torch.ones(2)}, "seed must be one int64"),
        ({"bias": None}, "together or not at all"),
        (
            {name: torch.ones(4, 3, dtype=bf16) for name in ("x", "inner")}
            | {"bias": torch.ones(3, dtype=bf16)},
            "weight is torch.float32 but bias is torch.bfloat16",
        ),
    ],
)
def test_bad_input(change: dict[str, object], message: str) -> None:
    given = {"x": torch.ones(4, 3), "inner": torch.ones(4, 3), "weight": torch.ones(3)}
    given |= {"bias": torch.ones(3), "eps": 1e-5, "p": 0.5, "seed": torch.tensor(1), **change}
    for device in ("cpu", "meta"):
        there = {k: v.to(device) if isinstance(v, Tensor) else v for k, v in given.items()}
        with pytest.raises(ValueError, match=message):
            torch.ops.lightconv.residual(*there.values())
