"""Bad input: the same error, naming the argument and the shapes, wherever the operator runs."""

import functools
import itertools
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import zeros
from torch._subclasses import FakeTensorMode

from .cases import OPERATORS, OPS, bf16, every_backend, every_op, f16, f32, f64, is_dynamic

i32, i64 = torch.int32, torch.int64
B, T, D, H, K = 2, 5, 6, 2, 3
# A tensor that is built later: inside the fake mode if that is tested.
late = functools.partial(functools.partial, zeros)
Changes = dict[str, Any]

FLOATS = "x must be float32, float64, bfloat16 or float16, got"
LIKE_X = "weight must be torch.float32 like x or torch.float32, got"
# Message -> the changed arguments.
EITHER: dict[str, Changes] = {
    r"x must have shape \[B, T, D\], got \[5, 6\]": {"x": late(T, D)},
    r"x must have shape .* got \[2, 1, 5, 6\]": {"x": late(B, 1, T, D)},
    r"weight must have shape .*, got \[3\]": {"weight": late(K)},
    r"weight must .*, got \[5, 2, 3\]": {"weight": late(T, H, K)},
    r"H=2 heads do not divide D=7 channels \(x \[2, 5, 7\], weight \[.*2, 3\]": {
        "x": late(B, T, 7)
    },
    "left must be at least 0, got -1": {"left": -1},
    f"{FLOATS} torch.int64": {"x": late(B, T, D, dtype=i64)},
    f"{FLOATS} torch.complex64": {"x": late(B, T, D, dtype=torch.complex64)},
    "weight must be torch.float64 like x .* got torch.float32": {"x": late(B, T, D, dtype=f64)},
    "x is on meta but weight is on cpu": {"x": late(B, T, D, device="meta")},
}


def bad_weights(*rows: int) -> dict[str, Changes]:
    shape = "".join(f"{row}, " for row in rows)
    return {
        rf"K must be at least 1, .*\[{shape}2, 0\]": {"weight": late(*rows, H, 0)},
        rf"H=0 heads .*\[{shape}0, 3\]": {"weight": late(*rows, 0, K)},
        **{
            f"{LIKE_X} {dtype}": {"weight": late(*rows, H, K, dtype=dtype)}
            for dtype in (f64, f16, i64)
        },
        "weight must be torch.bfloat16 like x or torch.float32, got torch.float16": {
            "x": late(B, T, D, dtype=bf16),
            "weight": late(*rows, H, K, dtype=f16),
        },
    }


SHARED = bad_weights()
DYNAMIC = bad_weights(B, T) | {
    r"weight \[3, 5, 2, 3\] and x \[2, 5, 6\] must agree": {"weight": late(3, T, H, K)},
    r"weight \[2, 4, 2, 3\] and x \[2, 5, 6\] must agree": {"weight": late(B, 4, H, K)},
}
# Options that the band matrix does not support.
EXTRAS: dict[str, Changes] = {
    r"dropconnect must be in \[0, 1\), got 1": {"dropconnect": 1.0},
    r"dropconnect must be in .*got -0\.1": {"dropconnect": -0.1},
    "dropconnect must be in .*got nan": {"dropconnect": float("nan")},
    **{
        message: {"dropconnect": 0.5, "seed": seed}
        for message, seed in {
            r"seed must be one int64, got torch.int32 of shape \[\]": late((), dtype=i32),
            r"seed must be one int64, got torch.int64 of shape \[2\]": late(2, dtype=i64),
            "seed must be an int or one int64 tensor, got float": 1.5,
            "seed must fit in 64 bits, signed, got 9223372036854775808": 2**63,
            "x is on cpu but seed is on meta": late((), dtype=i64, device="meta"),
        }.items()
    },
    r"with cu_seqlens the batch must be 1, got x \[2, 5, 6\]": {"cu_seqlens": late(2, dtype=i64)},
}
PACKED = {
    r"cu_seqlens must have shape \[sequences \+ 1\], got \[\]": late((), dtype=i64),
    r"cu_seqlens must have shape .*, got \[2, 2\]": late(2, 2, dtype=i64),
    r"cu_seqlens must have shape .*, got \[0\]": late(0, dtype=i64),
    "cu_seqlens must be int32 or int64, got torch.float32": late(2, dtype=f32),
    "x is on cpu but cu_seqlens is on meta": late(2, dtype=i64, device="meta"),
}


def good(op: str, rows: int = B) -> Changes:
    weight = late(rows, T, H, K) if is_dynamic(op) else late(H, K)
    return {"x": late(rows, T, D), "weight": weight, "left": 2}


def call(op: str, arguments: Changes, **options: Any) -> Any:
    """The operator with the late tensors built."""
    built = {name: v() if callable(v) else v for name, v in arguments.items()}
    x, weight, left = (built.pop(name) for name in ("x", "weight", "left"))
    return OPERATORS[op](x, weight, left, **built, **options)


def cases() -> Iterator[Any]:
    """(operator, place, arguments, message) of every bad input."""
    for op in OPS:
        packed = {message: good(op, 1) | {"cu_seqlens": ends} for message, ends in PACKED.items()}
        tables: dict[str, dict[str, Changes]] = {
            "auto reference band fake": EITHER | (DYNAMIC if is_dynamic(op) else SHARED),
            "auto reference fake": EXTRAS | packed,
            "band": {
                "'band' supports neither cu_seqlens": {"dropconnect": 0.1},
                "'band' .* nor dropconnect": good(op, 1) | {"cu_seqlens": late(2, dtype=i64)},
            },
        }
        for places, table in tables.items():
            for place, (message, changes) in itertools.product(places.split(), table.items()):
                name = f"{op}-{place}-{message}"
                yield pytest.param(op, place, good(op) | changes, message, id=name)


@pytest.mark.parametrize(("op", "place", "arguments", "message"), list(cases()))
def test_bad_input(op: str, place: str, arguments: Changes, message: str) -> None:
    fake = place == "fake"
    with (
        FakeTensorMode() if fake else nullcontext(),
        pytest.raises((ValueError, RuntimeError), match=message),
    ):
        call(op, arguments, backend="auto" if fake else place)


@every_backend
@every_op
def test_the_good_input_is_good(op: str, backend: str) -> None:
    """So that each error above has one cause."""
    assert call(op, good(op), backend=backend).shape == (B, T, D)


@every_backend
@pytest.mark.parametrize("which", ["x", "weight"])
@every_op
def test_not_a_tensor(op: str, which: str, backend: str) -> None:
    for value, kind in (([1.0], "list"), (zeros(3).numpy(), "ndarray"), (None, "NoneType")):
        with pytest.raises(ValueError, match=f"{which} must be a tensor, got {kind}"):
            call(op, good(op) | {which: value}, backend=backend)


@pytest.mark.parametrize("backend", ["Auto", "triton", "", None])
@every_op
def test_unknown_backend(op: str, backend: object) -> None:
    with pytest.raises(ValueError, match=f"backend must be one of .*reference.*, got {backend!r}"):
        call(op, good(op), backend=backend)


# --- the backward pass as an operator of its own --------------------------------------------------


@pytest.mark.parametrize("fake", [False, True], ids=["cpu", "fake"])
@pytest.mark.parametrize(
    "grad, message",
    [
        (late(B, T, D - 1), r"grad must be like x, .*\[2, 5, 6\].*\[2, 5, 5\]"),
        (late(B, T), r"grad must be like x, .*\[2, 5, 6\].*\[2, 5\]"),
        (late(B, T, D, dtype=f64), "grad must be like x, torch.float32"),
    ],
)
def test_bad_gradient(grad: Any, message: str, fake: bool) -> None:
    for op in ("dynamicconv", "lightconv"):
        with FakeTensorMode() if fake else nullcontext():
            x, weight = (good(op)[name]() for name in ("x", "weight"))
            rest = (2, *([False] if is_dynamic(op) else []), None, 0.0, None, True, True)
            with pytest.raises((ValueError, RuntimeError), match=message):
                getattr(torch.ops.lightconv, f"{op}_backward")(grad(), x, weight, *rest)


# --- steps ----------------------------------------------------------------------------------------

STEP: Changes = {"x": late(B, 1, D), "window": late(B, K - 1, D), "position": 0}
WINDOW = r"window must have shape \[B, K-1, D\] = \[2, 2, 6\], got"
BAD_STEPS: dict[str, Changes] = {
    r"x must have shape \[B, T, D\], got \[2, 6\]": {"x": late(B, D)},
    rf"{WINDOW} \[1, 2, 6\]": {"window": late(1, K - 1, D)},
    rf"{WINDOW} \[2, 3, 6\]": {"window": late(B, K, D)},
    rf"{WINDOW} \[2, 2, 7\]": {"window": late(B, K - 1, D + 1)},
    rf"{WINDOW} \[2, 6\]": {"window": late(K - 1, D)},
    "window is torch.float64 on cpu, x is torch.float32": {"window": late(B, K - 1, D, dtype=f64)},
    "window is torch.float32 on meta, x is torch.float32 on cpu": {
        "window": late(B, K - 1, D, device="meta")
    },
    "position must be at least 0, got -1": {"position": -1},
    "H=2 heads do not divide D=7 channels": {"x": late(B, 1, 7), "window": late(B, K - 1, 7)},
    r"K must be at least 1, got weight \[(2, 1, )?2, 0\]": {"weight": late(B, 1, H, 0)},
    "x must be float32": {"x": late(B, 1, D, dtype=i64)},
    f"{LIKE_X} torch.float64": {"weight": late(B, 1, H, K, dtype=f64)},
}


@pytest.mark.parametrize("place", ["auto", "reference", "fake"])
@pytest.mark.parametrize(("message", "changes"), BAD_STEPS.items(), ids=BAD_STEPS)
@pytest.mark.parametrize("op", ["dynamicconv_step", "lightconv_step"])
def test_bad_step(op: str, message: str, changes: Changes, place: str) -> None:
    """The place "reference" is the formula, which runs while gradients are recorded."""
    with FakeTensorMode() if place == "fake" else nullcontext():
        arguments = STEP | {"weight": late(B, 1, H, K)} | changes
        arguments = {name: v() if callable(v) else v for name, v in arguments.items()}
        if op == "lightconv_step":
            arguments["weight"] = arguments["weight"][0, 0]
        if place == "reference":
            arguments["weight"].requires_grad_()
        with pytest.raises((ValueError, RuntimeError), match=message):
            OPERATORS[op](**arguments)


def test_a_chunk_needs_weights_for_every_position() -> None:
    x, window, weight = zeros(B, 4, D), zeros(B, K - 1, D), zeros(B, 1, H, K)
    with pytest.raises(ValueError, match=r"weight \[2, 1, 2, 3\] and x \[2, 4, 6\] must agree"):
        OPERATORS["dynamicconv_step"](x, window, 0, weight)
