"""Bad input: the same error, naming the argument and the shapes, wherever the operator runs."""

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, zeros
from torch._subclasses import FakeTensorMode

from lightconv.ops.functional import OPERATORS

B, T, D, H, K = 2, 5, 6, 2, 3
Build = Callable[[], dict[str, Any]]


def dynamic(**changes: Any) -> dict[str, Any]:
    return {"x": zeros(B, T, D), "weight": zeros(B, T, H, K), "left": 2} | changes


def light(**changes: Any) -> dict[str, Any]:
    return {"x": zeros(B, T, D), "weight": zeros(H, K), "left": 2} | changes


def packed(**changes: Any) -> dict[str, Any]:
    return {"x": zeros(1, T, D), "weight": zeros(1, T, H, K), "left": 2} | changes


def both(change: Callable[[], dict[str, Any]]) -> Callable[[str], dict[str, Any]]:
    """The change applied to the inputs of either operator."""
    return lambda op: (dynamic if op.startswith("dynamic") else light)(**change())


# name -> changed arguments (built late: inside the fake mode when that is tested), message
EITHER: dict[str, tuple[Build, str]] = {
    "x-rank-2": (lambda: {"x": zeros(T, D)}, r"x must have shape \[B, T, D\], got \[5, 6\]"),
    "x-rank-4": (lambda: {"x": zeros(B, 1, T, D)}, r"x must have shape .* got \[2, 1, 5, 6\]"),
    "weight-rank-1": (lambda: {"weight": zeros(K)}, r"weight must have shape .*, got \[3\]"),
    "weight-rank-3": (lambda: {"weight": zeros(T, H, K)}, r"weight must .*, got \[5, 2, 3\]"),
    "heads-do-not-divide": (
        lambda: {"x": zeros(B, T, 7)},
        r"H=2 heads do not divide D=7 channels \(x \[2, 5, 7\], weight \[.*2, 3\]\)",
    ),
    "left-negative": (lambda: {"left": -1}, "left must be at least 0, got -1"),
    "x-integer": (
        lambda: {"x": zeros(B, T, D, dtype=torch.int64)},
        "x must be float32, float64, bfloat16 or float16, got torch.int64",
    ),
    "x-complex": (
        lambda: {"x": zeros(B, T, D, dtype=torch.complex64)},
        "x must be float32, float64, bfloat16 or float16, got torch.complex64",
    ),
    "x-double": (
        lambda: {"x": zeros(B, T, D, dtype=torch.float64)},
        "weight must be torch.float64 like x or torch.float64, got torch.float32",
    ),
    "other-device": (
        lambda: {"x": zeros(B, T, D, device="meta")},
        "x is on meta but weight is on cpu",
    ),
}
DYNAMIC: dict[str, tuple[Build, str]] = {
    "K-0": (lambda: {"weight": zeros(B, T, H, 0)}, r"K must be at least 1, .*\[2, 5, 2, 0\]"),
    "H-0": (lambda: {"weight": zeros(B, T, 0, K)}, r"H=0 heads .*\[2, 5, 0, 3\]"),
    "other-B": (
        lambda: {"weight": zeros(3, T, H, K)},
        r"weight \[3, 5, 2, 3\] and x \[2, 5, 6\] must agree in B and T",
    ),
    "other-T": (
        lambda: {"weight": zeros(B, 4, H, K)},
        r"weight \[2, 4, 2, 3\] and x \[2, 5, 6\] must agree in B and T",
    ),
    "weight-double": (
        lambda: {"weight": zeros(B, T, H, K, dtype=torch.float64)},
        "weight must be torch.float32 like x or torch.float32, got torch.float64",
    ),
    "weight-half": (
        lambda: {"weight": zeros(B, T, H, K, dtype=torch.float16)},
        "weight must be torch.float32 like x or torch.float32, got torch.float16",
    ),
    "two-halves": (
        lambda: {
            "x": zeros(B, T, D, dtype=torch.bfloat16),
            "weight": zeros(B, T, H, K, dtype=torch.float16),
        },
        "weight must be torch.bfloat16 like x or torch.float32, got torch.float16",
    ),
    "weight-integer": (
        lambda: {"weight": zeros(B, T, H, K, dtype=torch.int64)},
        "weight must be torch.float32 like x or torch.float32, got torch.int64",
    ),
}
SHARED: dict[str, tuple[Build, str]] = {
    "K-0": (lambda: {"weight": zeros(H, 0)}, r"K must be at least 1, .*\[2, 0\]"),
    "H-0": (lambda: {"weight": zeros(0, K)}, r"H=0 heads .*\[0, 3\]"),
    "weight-double": (
        lambda: {"weight": zeros(H, K, dtype=torch.float64)},
        "weight must be torch.float32 like x or torch.float32, got torch.float64",
    ),
    "weight-half": (
        lambda: {"weight": zeros(H, K, dtype=torch.float16)},
        "weight must be torch.float32 like x or torch.float32, got torch.float16",
    ),
    "two-halves": (
        lambda: {
            "x": zeros(B, T, D, dtype=torch.bfloat16),
            "weight": zeros(H, K, dtype=torch.float16),
        },
        "weight must be torch.bfloat16 like x or torch.float32, got torch.float16",
    ),
    "weight-integer": (
        lambda: {"weight": zeros(H, K, dtype=torch.int64)},
        "weight must be torch.float32 like x or torch.float32, got torch.int64",
    ),
}
# What the band matrix does not know.
EXTRAS: dict[str, tuple[Build, str]] = {
    "dropconnect-1": (lambda: {"dropconnect": 1.0}, r"dropconnect must be in \[0, 1\), got 1"),
    "dropconnect-negative": (lambda: {"dropconnect": -0.1}, r"dropconnect must be in .*got -0\.1"),
    "dropconnect-nan": (
        lambda: {"dropconnect": float("nan")},
        r"dropconnect must be in \[0, 1\), got nan",
    ),
    "seed-int32": (
        lambda: {"dropconnect": 0.5, "seed": zeros((), dtype=torch.int32)},
        r"seed must be one int64, got torch.int32 of shape \[\]",
    ),
    "seeds": (
        lambda: {"dropconnect": 0.5, "seed": zeros(2, dtype=torch.int64)},
        r"seed must be one int64, got torch.int64 of shape \[2\]",
    ),
    "seed-float": (
        lambda: {"dropconnect": 0.5, "seed": 1.5},
        "seed must be an int or one int64 tensor, got float",
    ),
    "seed-device": (
        lambda: {"dropconnect": 0.5, "seed": zeros((), dtype=torch.int64, device="meta")},
        "x is on cpu but seed is on meta",
    ),
    "batch-packed": (
        lambda: {"cu_seqlens": zeros(2, dtype=torch.int64)},
        r"with cu_seqlens the batch must be 1, got x \[2, 5, 6\]",
    ),
}
PACKED: dict[str, tuple[Build, str]] = {
    "cu_seqlens-rank-0": (
        lambda: {"cu_seqlens": zeros((), dtype=torch.int64)},
        r"cu_seqlens must have shape \[sequences \+ 1\], got \[\]",
    ),
    "cu_seqlens-rank-2": (
        lambda: {"cu_seqlens": zeros(2, 2, dtype=torch.int64)},
        r"cu_seqlens must have shape \[sequences \+ 1\], got \[2, 2\]",
    ),
    "cu_seqlens-empty": (
        lambda: {"cu_seqlens": zeros(0, dtype=torch.int64)},
        r"cu_seqlens must have shape \[sequences \+ 1\], got \[0\]",
    ),
    "cu_seqlens-float": (
        lambda: {"cu_seqlens": zeros(2)},
        "cu_seqlens must be int32 or int64, got torch.float32",
    ),
    "cu_seqlens-device": (
        lambda: {"cu_seqlens": zeros(2, dtype=torch.int64, device="meta")},
        "x is on cpu but cu_seqlens is on meta",
    ),
}
DYNAMIC_OPS, SHARED_OPS = ("dynamicconv", "dynamicconv_softmax"), ("lightconv", "lightconv_softmax")
PLACES = ("auto", "reference", "band", "fake")


def cases() -> Iterator[Any]:
    """(operator, place, inputs, message) of every bad input."""
    for op in (*DYNAMIC_OPS, *SHARED_OPS):
        good = dynamic if op in DYNAMIC_OPS else light
        own = DYNAMIC if op in DYNAMIC_OPS else SHARED
        tables = [(EITHER | own, good, PLACES), (EXTRAS, good, ("auto", "reference", "fake"))]
        if op in DYNAMIC_OPS:
            tables.append((PACKED, packed, ("auto", "reference", "fake")))
        for table, base, places in tables:
            for name, (change, message) in table.items():
                for place in places:
                    yield pytest.param(op, place, base, change, message, id=f"{op}-{place}-{name}")


@pytest.mark.parametrize(("op", "place", "base", "change", "message"), list(cases()))
def test_bad_input(op: str, place: str, base: Any, change: Build, message: str) -> None:
    if place == "fake" and "meta" in message:
        message = message.replace("meta", "cuda:0")
    with FakeTensorMode() if place == "fake" else nullcontext():
        arguments = base(**change())
        backend = "auto" if place == "fake" else place
        x, weight, left = (arguments.pop(name) for name in ("x", "weight", "left"))
        with pytest.raises((ValueError, RuntimeError), match=message) as caught:
            OPERATORS[op](x, weight, left, backend=backend, **arguments)
        assert op.removesuffix("_softmax") in str(caught.value)
