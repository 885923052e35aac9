"""The Triton kernels against the formulas, in Triton's interpreter, and compiled without a GPU.

The interpreter must be chosen before Triton is imported and would then rule this whole process, so
tests marked `interpreted` run in a process of their own.
"""

import functools
import math
import multiprocessing
import os
import random
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import pytest
import torch
from torch import Tensor

from lightconv.ops import frame, gpu, reference, residual, schema
from lightconv.ops.check import Extras
from lightconv.ops.reference import random_bits

if sys.platform != "linux":
    pytest.skip("Triton is published for Linux only", allow_module_level=True)

import triton
import triton.language as tl

from lightconv.ops import gpu_kernels

from . import cases
from .cases import bf16, f16, f32, f64

ROOT = Path(__file__).parents[2]
# Triton's interpreter truncates to bfloat16 where a GPU rounds.
TOLERANCE = {f64: 1e-12, f32: 1e-5, f16: 2e-3, bf16: 1.6e-2}
INTERPRETED: dict[str, Callable[..., None]] = {}


@functools.cache
def interpreter() -> ProcessPoolExecutor:
    """A process in which Triton interprets its kernels."""
    pool = ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn"))
    with mock.patch.dict(os.environ, TRITON_INTERPRET="1"):
        pool.submit(prepare).result()
    return pool


@pytest.fixture(scope="module", autouse=True)
def close_interpreter() -> Iterator[None]:
    yield
    if interpreter.cache_info().currsize:
        interpreter().shutdown()
        interpreter.cache_clear()


def prepare() -> None:
    assert triton.knobs.runtime.interpret
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)  # uninitialised memory is NaN
    warnings.filterwarnings("ignore", "divide by zero", RuntimeWarning)  # log(0) of unused lanes


def run_by_name(name: str, arguments: dict[str, Any]) -> None:
    INTERPRETED[name](**arguments)


def interpreted(test: Callable[..., None]) -> Callable[..., None]:
    """The test, run in the interpreter's process."""
    INTERPRETED[test.__name__] = test

    @functools.wraps(test)
    def run(**arguments: Any) -> None:
        interpreter().submit(run_by_name, test.__name__, arguments).result()

    return run


# --- parity with the formulas ---------------------------------------------------------------------


class Case(NamedTuple):
    op: str
    B: int
    T: int
    H: int
    R: int
    K: int
    left: int
    softmax: bool = False
    dtype: torch.dtype = f32
    weight_dtype: torch.dtype | None = None
    lengths: tuple[int, ...] = ()
    dropconnect: float = 0.0

    def __str__(self) -> str:
        shape = cases.Shape(*self[1:7])
        options = (f"{name}={v}" for name, v in zip(self._fields[7:], self[7:], strict=True) if v)
        return "-".join([self.op, str(shape), *options]).replace("torch.", "")


class Inputs(NamedTuple):
    x: Tensor
    weight: Tensor
    grad: Tensor
    rest: tuple[Any, ...]


def make_inputs(case: Case, seed: int = -0x123456789ABCDEF) -> Inputs:
    shape = cases.Shape(*case[1:7])
    tensors = cases.make_inputs(case.op, shape, case.dtype, case.weight_dtype)
    ends = cases.boundaries(case.lengths, torch.int32) if case.lengths else None
    softmax = (case.softmax,) if case.op == "dynamicconv" else ()
    drop = (case.dropconnect, torch.tensor(seed) if case.dropconnect else None)
    return Inputs(*tensors, (case.left, *softmax, ends, *drop))


def run(kernels: dict[str, Any], op: str, inputs: Inputs) -> tuple[Tensor, Tensor, Tensor]:
    """The output and the gradients of x and weight."""
    x, weight, grad, rest = inputs
    out = kernels[op](x, weight, *rest)
    return (out, *kernels[f"{op}_backward"](grad, x, weight, *rest, True, True))


def compare(case: Case, inputs: Inputs) -> None:
    """The kernels' results against the formula's in float64."""
    x, weight, grad, rest = inputs
    exact = Inputs(x.double(), weight.double(), grad.double(), rest)
    found = run(gpu.KERNELS, case.op, inputs)
    expected = run(schema.REFERENCE_KERNELS, case.op, exact)
    dtypes = (x.dtype, x.dtype, weight.dtype)
    for name, a, b, dtype in zip(("out", "x", "weight"), found, expected, dtypes, strict=True):
        assert a.dtype == dtype, name
        assert a.is_contiguous(), name
        rtol = TOLERANCE[dtype]
        atol = rtol * max(1.0, b.abs().max().item() if b.numel() else 0.0)
        text = functools.partial("{}: {}".format, name)
        torch.testing.assert_close(a.double(), b, rtol=rtol, atol=atol, msg=text)


def identical(found: Any, expected: Any) -> None:
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


def same(case: Case, found: Any, expected: Any) -> None:
    """Equal; up to rounding for products, whose tiles with a NaN are computed tap by tap."""
    close = 1e-5 if case.R >= 16 else 0.0
    torch.testing.assert_close(found, expected, rtol=close, atol=close)


dynamic, light = (functools.partial(Case, op) for op in ("dynamicconv", "lightconv"))


def cases_of(*cases: Any) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("case", cases, ids=str)


def both(*shape: int, softmax: bool = True) -> pytest.MarkDecorator:
    return cases_of(dynamic(*shape, softmax=softmax), light(*shape))


CASES = [
    # products with the band: lengths around a tile, dtypes, heads of odd width, wide kernels
    *(dynamic(1, T, 2, 16, 7, 6, softmax=True) for T in (1, 15, 16, 17, 33)),
    *(light(1, T, 2, 16, 7, 6) for T in (1, 15, 16, 17, 33)),
    *(dynamic(2, 35, 2, 20, 5, 2, softmax=s, dtype=d) for d in (f16, bf16) for s in (True, False)),
    *(dynamic(1, 9, 2, 16, 5, 4, softmax=True, dtype=d, weight_dtype=f32) for d in (f16, bf16)),
    dynamic(1, 9, 2, 16, 5, 4, dtype=f16, weight_dtype=f32),
    dynamic(1, 9, 2, 16, 5, 9, dtype=bf16, weight_dtype=f32),
    light(2, 35, 2, 20, 5, 2, dtype=bf16),
    light(1, 19, 2, 20, 5, 2, dtype=bf16, weight_dtype=f32),
    *(dynamic(1, 40, 1, 16, K, K // 2, softmax=True) for K in (1, 31, 70)),
    *(light(1, 40, 1, 16, K, K // 2) for K in (1, 31, 70)),
    dynamic(1, 9, 1, 130, 3, 1, softmax=True),
    dynamic(2, 20, 2, 16, 5, 4, softmax=True, dropconnect=0.3),
    light(2, 20, 2, 16, 5, 4, dropconnect=0.3),
    dynamic(1, 35, 1, 16, 4, 1, softmax=True, lengths=(0, 20, 13, 2), dropconnect=0.5),
    light(1, 35, 1, 16, 4, 1, lengths=(33, 2), dropconnect=0.5),
    dynamic(1, 6, 1, 16, 5, 40, softmax=True),
    # B, T, H, R, K, left: lengths around nothing, the kernel and the blocks (16 and 32 positions)
    *(dynamic(2, T, 2, 4, 3, 2, softmax=True) for T in (0, 1, 2, 3, 15, 17)),
    *(dynamic(1, T, 1, 64, 4, 2, softmax=T % 2 == 0) for T in (31, 32, 33)),
    *(light(2, T, 2, 4, 3, 2) for T in (0, 1, 2, 3, 16, 17)),
    *(light(1, T, 1, 64, 4, 2) for T in (31, 32, 33, 65)),
    dynamic(1, 33, 1, 64, 31, 30, softmax=True, dtype=bf16, dropconnect=0.1),
    dynamic(0, 5, 2, 4, 3, 2),
    light(0, 5, 2, 4, 3, 2),
    # how far back: not at all, centred, causal, beyond the kernel, beyond everything
    *(dynamic(1, 6, 2, 3, 5, left, softmax=True) for left in (0, 2, 4, 7, 40)),
    *(light(1, 6, 2, 3, 5, left) for left in (0, 2, 4, 7, 40)),
    # heads: depthwise, odd, one, wider than a tile, more than a tile holds
    dynamic(1, 5, 7, 1, 3, 1),
    dynamic(1, 5, 70, 1, 3, 1, softmax=True),
    dynamic(1, 5, 1, 3, 3, 1, softmax=True),
    dynamic(1, 5, 2, 130, 3, 1, softmax=True, dropconnect=0.3),
    light(2, 5, 70, 1, 3, 1),
    light(1, 5, 1, 3, 3, 1, dropconnect=0.3),
    light(1, 5, 2, 130, 3, 1),
    # kernels: one tap, wider than the sequence, several blocks of taps, even
    dynamic(1, 5, 2, 3, 1, 0, softmax=True),
    dynamic(1, 5, 2, 3, 1, 0),
    dynamic(1, 3, 1, 2, 70, 40, softmax=True),
    dynamic(1, 3, 40, 1, 6, 3, softmax=True, dropconnect=0.3),
    light(1, 5, 2, 3, 1, 0),
    light(1, 3, 1, 2, 70, 40),
    light(1, 3, 40, 1, 6, 3, dropconnect=0.3),
    # packed sequences, empty ones among them
    dynamic(1, 21, 2, 3, 3, 2, softmax=True, lengths=(4, 0, 1, 16, 0)),
    dynamic(1, 35, 1, 4, 4, 1, lengths=(0, 0, 33, 2)),
    dynamic(1, 9, 2, 3, 4, 5, softmax=True, lengths=(3, 6), dropconnect=0.5),
    light(1, 21, 2, 3, 3, 2, lengths=(4, 0, 1, 16, 0)),
    light(1, 35, 1, 4, 4, 1, lengths=(33, 2), dropconnect=0.5),
    # DropConnect below and above one half, where the threshold does not fit in 31 bits
    *(dynamic(2, 9, 3, 4, 3, 1, softmax=s, dropconnect=p) for s, p in ((False, 0.1), (True, 0.9))),
    *(light(2, 9, 3, 4, 3, 1, dropconnect=p) for p in (0.1, 0.9)),
    # dtypes
    *(dynamic(2, 9, 2, 8, 5, 4, softmax=True, dtype=dtype) for dtype in (f64, f16, bf16)),
    *(dynamic(2, 9, 2, 8, 5, 4, dtype=dtype, dropconnect=0.3) for dtype in (f64, f16, bf16)),
    *(light(2, 9, 2, 8, 5, 4, dtype=dtype, dropconnect=0.3) for dtype in (f64, f16, bf16)),
    *(dynamic(1, 9, 2, 8, 5, 4, softmax=True, dtype=d, weight_dtype=f32) for d in (f16, bf16)),
    light(1, 9, 2, 8, 5, 4, dtype=bf16, weight_dtype=f32),
    pytest.param(dynamic(1, 2, 1, 2, 1023, 1022, softmax=True), marks=pytest.mark.slow),
    pytest.param(light(1, 2, 1, 2, 1023, 511), marks=pytest.mark.slow),
]


@cases_of(*CASES)
@interpreted
def test_parity(case: Case) -> None:
    compare(case, make_inputs(case))


@pytest.mark.parametrize(
    "part", [pytest.param(i, marks=[pytest.mark.slow] if i else []) for i in range(64)]
)
@interpreted
def test_random_parity(part: int) -> None:
    """Eight random cases each, 512 in all, also dilated behind a state of their own."""
    rng = random.Random(part)
    for shape, dtype, weight_dtype, lengths, dropconnect, _ in cases.random_cases(8, part):
        B, T, H, R, K, left = shape
        T, H, R, K = min(T, 20), min(H, 3), min(R, 17), min(K, 9)
        parts = tuple(min(each, 7) for each in lengths)
        make = functools.partial(rng.choice((dynamic, light)), B, sum(parts) if lengths else T, H)
        options = {"dtype": dtype, "weight_dtype": weight_dtype, "lengths": parts}
        case = make(R, K, left % 12, dropconnect=dropconnect, **options)
        if case.op == "dynamicconv":
            case = case._replace(softmax=rng.random() < 0.5)
        compare(case, make_inputs(case))
        compare_framed(case, rng.choice((1, 2, 3)))


def compare_framed(case: Case, dilation: int) -> None:
    """A causal kernel with a dilation and states, composed of the kernels, against the formula."""
    inputs = make_inputs(case._replace(dropconnect=0.0, left=case.K - 1))
    x, weight, _, (left, *rest) = inputs
    ends = rest[-3]
    S = x.shape[0] if ends is None else len(ends) - 1
    state = torch.randn(S, left * dilation, x.shape[2], dtype=f64).to(x.dtype)
    around = frame.Frame(dilation=dilation, initial_state=state)
    softmax = rest[: len(rest) - 3]
    plain = lambda x, w, cu: gpu.KERNELS[case.op](x, w, left, *softmax, cu, 0.0, None)
    found = frame.convolve(plain, x, weight, ends, around)
    options = Extras(ends), dilation, state.double()
    exact = reference.convolve(x.double(), weight.double(), left, case.softmax, *options)
    rtol = TOLERANCE[x.dtype]
    atol = rtol * max(1.0, exact.abs().max().item() if exact.numel() else 0.0)
    torch.testing.assert_close(found.double(), exact, rtol=rtol, atol=atol)


@both(2, 5, 2, 3, 3, 1)
@interpreted
def test_not_contiguous(case: Case) -> None:
    inputs = make_inputs(case)
    x = torch.randn(case.B, case.T * 2, case.H * case.R + 3)[:, ::2, 2:-1]
    weight = inputs.weight.transpose(-1, -2).contiguous().transpose(-1, -2)
    grad = torch.randn(case.H * case.R).expand_as(x)
    assert not (x.is_contiguous() or weight.is_contiguous() or grad.is_contiguous())
    compare(case, Inputs(x, weight, grad, inputs.rest))


@cases_of(light(5, 3, 20, 3, 3, 1, dropconnect=0.3))
@interpreted
def test_partial_sums(case: Case) -> None:
    with mock.patch.object(gpu, "PROGRAMS", 4):  # 2 head blocks: 2 partial sums of 5 time blocks
        compare(case, make_inputs(case))


@both(1, 3, 1, 2, 3, 2**40, softmax=False)
@interpreted
def test_everything_out_of_reach(case: Case) -> None:
    for result in run(gpu.KERNELS, case.op, make_inputs(case)):
        assert not result.any()


@both(1, 4, 2, 3, 3, 1)
@interpreted
def test_unneeded_gradients(case: Case) -> None:
    x, weight, grad, rest = make_inputs(case)
    backward = gpu.KERNELS[f"{case.op}_backward"]
    grad_x, grad_weight = backward(grad, x, weight, *rest, True, True)
    alone_x, no_weight = backward(grad, x, weight, *rest, True, False)
    no_x, alone_weight = backward(grad, x, weight, *rest, False, True)
    identical((alone_x, alone_weight), (grad_x, grad_weight))
    nothing = backward(grad, x, weight, *rest, False, False)
    assert [t.shape for t in (no_weight, no_x, *nothing)] == [(0,)] * 4


# --- what must not leak ---------------------------------------------------------------------------


SHORT, PACKED = (2, 5, 2, 3, 3, 2), (1, 9, 2, 3, 5, 2)
PARTS = (3, 2, 4)


@pytest.mark.parametrize(
    "case, poison, reach",
    [
        # Causal, K = 3: x[t] reaches out[t .. t + 2], grad[t] reaches x[t - 2 .. t].
        *(
            (case, (row, t), (max(0, t - 2), t + 3))
            for row, t in ((0, 4), (1, 0))
            for case in (
                dynamic(*SHORT, softmax=True),
                dynamic(*SHORT, dropconnect=0.3),
                light(*SHORT),
                dynamic(2, 5, 2, 16, 3, 2, softmax=True),
                light(2, 5, 2, 16, 3, 2, dropconnect=0.3),
            )
        ),
        # The sequence of three that are packed.
        (dynamic(*PACKED, softmax=True, lengths=PARTS), (0, 3), (3, 5)),
        (dynamic(*PACKED, lengths=PARTS), (0, 3), (3, 5)),
        (light(*PACKED, lengths=PARTS), (0, 3), (3, 5)),
        (dynamic(1, 9, 1, 16, 5, 2, softmax=True, lengths=PARTS), (0, 3), (3, 5)),
    ],
    ids=str,
)
@interpreted
def test_nan_stays_within_reach(
    case: Case, poison: tuple[int, int], reach: tuple[int, int]
) -> None:
    """NaN in everything at (b, t) changes nothing outside `reach` of that batch row."""
    inputs = make_inputs(case)
    x, weight, grad, rest = inputs
    poisoned = [x.clone(), weight.clone(), grad.clone()]
    for tensor in poisoned if case.op == "dynamicconv" else poisoned[::2]:
        tensor[poison] = float("nan")
    clean = run(gpu.KERNELS, case.op, inputs)
    found = run(gpu.KERNELS, case.op, Inputs(*poisoned, rest))
    for a, b in zip(found, clean, strict=True):
        if a.dim() > 2:  # lightconv's weights belong to every position
            a[poison[0], slice(*reach)] = b[poison[0], slice(*reach)] = 0.0
            same(case, a, b)


@cases_of(*(op(2, 5, 2, R, 3, 2) for op in (dynamic, light) for R in (3, 16)))
@interpreted
def test_skipped_taps(case: Case) -> None:
    """NaN in a weight that meets nothing, or in the gradient that would meet it, is not seen."""
    inputs = make_inputs(case)
    clean = run(gpu.KERNELS, case.op, inputs)
    if case.op == "lightconv":
        inputs.weight[:, 0] = float("nan")  # reaches from t back to t - 2
        out, grad_x, _ = run(gpu.KERNELS, case.op, inputs)
        same(case, out[:, :2], clean[0][:, :2])
        same(case, grad_x[:, -2:], clean[1][:, -2:])
    else:
        inputs.weight[:, 0, :, :2] = float("nan")
        same(case, run(gpu.KERNELS, case.op, inputs), clean)
        inputs.grad[:, 0] = float("nan")
        assert not run(gpu.KERNELS, case.op, inputs)[2][:, 0, :, :2].any()


@cases_of(dynamic(1, 3, 40, 1, 6, 5, softmax=True))
@interpreted
def test_infinite_logits(case: Case) -> None:
    inputs = make_inputs(case)
    inputs.weight[..., :-1] = float("-inf")  # whole blocks of taps without a finite logit
    compare(case, inputs)


@cases_of(dynamic(2, 19, 2, 16, 7, 6, softmax=True), dynamic(1, 5, 3, 4, 3, 1, softmax=True))
@interpreted
def test_kept_log_sum_exp(case: Case) -> None:
    """Forward keeps logsumexp(logits); a backward pass that gets it gives the same gradients."""
    x, weight, grad, rest = make_inputs(case)
    out, lse = gpu.KERNELS["dynamicconv_lse"](x, weight, case.left, *rest[2:])
    identical(out, gpu.KERNELS["dynamicconv"](x, weight, *rest))
    torch.testing.assert_close(lse, weight.logsumexp(-1))
    backward = functools.partial(gpu.KERNELS["dynamicconv_backward"], grad, x, weight, *rest)
    torch.testing.assert_close(backward(True, True, lse=lse), backward(True, True))
    wrong = backward(True, True, lse=lse + 1.0)[0]
    torch.testing.assert_close(wrong, backward(True, True)[0] / math.e)


# --- streams --------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [f32, f64, bf16], ids=str)
@pytest.mark.parametrize(
    "B, n, H, R, K, position",
    [
        *((2, 1, 2, 3, 4, 0), (1, 1, 3, 16, 31, 100), (2, 3, 2, 5, 3, 7), (1, 9, 1, 130, 5, 2)),
        *((1, 1, 70, 1, 4, 5), (1, 2, 2, 3, 1, 3), (1, 1, 2, 3, 2, 2**40), (1, 1, 1, 8, 40, 3)),
    ],
)
@pytest.mark.parametrize("mode", ["shared", "dynamic", "softmax"])
@interpreted
def test_step(
    B: int, n: int, H: int, R: int, K: int, position: int, mode: str, dtype: torch.dtype
) -> None:
    torch.manual_seed(0)
    x, window = torch.randn(B, n, H * R).to(dtype), torch.randn(B, K - 1, H * R).to(dtype)
    weight = torch.randn(*(() if mode == "shared" else (B, n)), H, K).to(dtype)
    rest = (position, weight, *(() if mode == "shared" else (mode == "softmax",)))
    op = "lightconv_step" if mode == "shared" else "dynamicconv_step"
    expected_window = window.clone()
    expected = schema.REFERENCE_KERNELS[op](x, expected_window, *rest)
    strided = torch.stack([window, window], -1)[..., 0]
    found = gpu.KERNELS[op](x, strided, *rest)
    torch.testing.assert_close(found, expected, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])
    identical(strided, expected_window)


# --- dropout, residual sum, layer normalisation ---------------------------------------------------


@pytest.mark.parametrize(
    "shape, dtype, inner_dtype, p",
    [
        *(((2, 3, 8), f32, f32, 0.0), ((2, 3, 70), f32, f32, 0.3), ((1, 5), f64, f64, 0.3)),
        *(((7, 33), bf16, bf16, 0.5), ((3, 16), f32, bf16, 0.1), ((0, 4), f32, f32, 0.1)),
    ],
    ids=str,
)
@pytest.mark.parametrize("kind", ["dropout", "add", "norm"])
@interpreted
def test_residual(
    kind: str, shape: tuple[int, ...], dtype: torch.dtype, inner_dtype: torch.dtype, p: float
) -> None:
    torch.manual_seed(0)
    x, grad = torch.randn(shape).to(dtype), torch.randn(shape).to(dtype)
    inner = torch.randn(shape).to(inner_dtype)
    weight, bias = torch.randn(2, shape[-1]).to(dtype) if kind == "norm" else (None, None)
    arguments = (None if kind == "dropout" else x, inner, weight, bias, 1e-5, p, torch.tensor(5))
    error = max(TOLERANCE[dtype], TOLERANCE[inner_dtype])
    close = functools.partial(torch.testing.assert_close, rtol=error, atol=error)
    with mock.patch.object(gpu, "PROGRAMS", 3):
        results = 3 if kind == "norm" else 1  # the others are empty
        close(*(f(*arguments)[:results] for f in (residual.KERNELS["residual"], residual.formula)))
        if kind == "norm":
            _, total, stats = residual.formula(*arguments)
            kept = (grad, total, stats, weight, inner_dtype, p, torch.tensor(5))
            for need in ((True, True, True), (True, False, False), (False, True, True)):
                found = residual.KERNELS["residual_backward"](*kept, *need)
                expected = residual.formula_backward(*kept, *need)
                for a, b in zip(found, expected, strict=True):
                    close(a, b, check_dtype=b.numel() > 0)


# --- DropConnect's bits ---------------------------------------------------------------------------


@triton.jit
def draw(out, seed, first, threshold: tl.uint32, N: tl.constexpr):
    i = tl.arange(0, N)
    kept = gpu_kernels._kept(tl.load(seed), tl.load(first) + i, threshold)
    tl.store(out + i, kept.to(tl.float64))


@pytest.mark.parametrize("first", [0, 2**32 - 7, 5 * 2**32 + 123456789])
@pytest.mark.parametrize("seed", [0, 1, -1, 2**63 - 1, 0x0123456789ABCDEF])
@interpreted
def test_bits(seed: int, first: int) -> None:
    N, index = 64, torch.tensor(first)
    bits = random_bits(torch.tensor(seed), index + torch.arange(N))
    for threshold in (0, bits[3].item(), bits[3].item() + 1, 2**31, 2**32 - 1):
        out = torch.empty(N, dtype=f64)
        draw[(1,)](out, torch.tensor(seed), index, threshold, N=N)
        identical(out, (bits >= threshold).double())


# --- errors, registration, a missing Triton -------------------------------------------------------


X, WEIGHT = torch.zeros(2, 5, 6), torch.zeros(2, 5, 2, 3)
NONE = (None, 0.0, None)


@pytest.mark.parametrize(
    "kernel, arguments, message",
    [
        ("dynamicconv", (X, WEIGHT, -1, False, *NONE), "dynamicconv: left must be"),
        ("lightconv", (X, WEIGHT, 1, *NONE), "lightconv: weight must have shape"),
        ("dynamicconv_backward", (X[1:], X, WEIGHT, 1, False, *NONE, True, True), "grad must be"),
        ("lightconv_backward", (X, X, WEIGHT[0, 0], 1, None, 0.5, None, True, True), "a seed"),
        (
            "dynamicconv",
            (X[:1], WEIGHT[:1], 1, False, torch.tensor([0]), 0.0, None),
            "cu_seqlens must run from 0 to the packed length 5",
        ),
    ],
)
def test_wrong_inputs(kernel: str, arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        gpu.KERNELS[kernel](*arguments)


@pytest.mark.parametrize("key", ["CUDA", "CPU"])
@both(1, 3, 2, 3, 3, 1, softmax=False)
@interpreted
def test_register(key: str, case: Case) -> None:
    """For CUDA; and, for want of a GPU, for CPU, where the dispatcher can be watched calling."""
    library = torch.library.Library(f"test_gpu_{case.op}_{key}", "DEF")
    for name in gpu.KERNELS:
        library.define(name + schema.SCHEMAS[name])
    kernels = gpu.KERNELS, schema.REFERENCE_KERNELS
    if key == "CUDA":
        gpu.register(library, *kernels)
        for name in gpu.KERNELS:
            assert torch._C._dispatch_has_kernel_for_dispatch_key(f"{library.ns}::{name}", key)
    else:
        with mock.patch.object(library, "impl", lambda *a, to=library.impl: to(*a[:2], key)):
            gpu.register(library, *kernels)
        ops = {name: getattr(getattr(torch.ops, library.ns), name) for name in gpu.KERNELS}
        identical(*(run(kernels, case.op, make_inputs(case)) for kernels in (ops, gpu.KERNELS)))


def test_import_leaves_triton_alone() -> None:
    code = "import sys, lightconv.ops, lightconv.ops.gpu; assert 'triton' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
    assert gpu.available() == (True, f"triton {triton.__version__}")


def test_missing_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "triton", None)
    assert gpu.available() == (False, "triton is not installed: pip install lightconv[gpu]")
    guarded = gpu._guard(gpu.KERNELS["lightconv"], schema.REFERENCE_KERNELS["lightconv"])
    arguments = (torch.randn(1, 3, 2), torch.randn(1, 2), 1, None, 0.0, None)
    gpu._fallback_reason.cache_clear()
    monkeypatch.setenv("LIGHTCONV_REQUIRE_NATIVE", "1")
    with pytest.raises(RuntimeError, match=r"pip install lightconv\[gpu\]"):
        guarded(*arguments)
    monkeypatch.setenv("LIGHTCONV_REQUIRE_NATIVE", "0")
    with pytest.warns(RuntimeWarning, match=r"pip install lightconv\[gpu\]"):
        out = guarded(*arguments)
    torch.testing.assert_close(out, schema.REFERENCE_KERNELS["lightconv"](*arguments))
    guarded(*arguments)  # silent the second time: warnings are errors here
    gpu._fallback_reason.cache_clear()


# --- compiled for GPUs that are not here ----------------------------------------------------------


@pytest.mark.parametrize("options", [["--quick"], pytest.param([], marks=pytest.mark.slow)])
def test_compiled_kernels_keep_their_limits(options: list[str]) -> None:
    """benchmarks/gpu_compile.py fails on spills and on too many instructions or exchanges."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, str(ROOT / "benchmarks" / "gpu_compile.py"), *options]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    for name in ("convolve", "gradients of x and weight", "lightconv_taps", "A100", "H100", "gfx"):
        assert name in done.stdout
