"""Bad input: the same error, naming the argument and the shapes, wherever the operator runs."""

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, zeros
from torch._subclasses import FakeTensorMode

from .cases import OPERATORS

B, T, D, H, K = 2, 5, 6, 2, 3
Build = Callable[[], dict[str, Any]]


def dynamic(**changes: Any) -> dict[str, Any]:
    return {"x": zeros(B, T, D), "weight": zeros(B, T, H, K), "left": 2} | changes


def light(**changes: Any) -> dict[str, Any]:
    return {"x": zeros(B, T, D), "weight": zeros(H, K), "left": 2} | changes


def packed(**changes: Any) -> dict[str, Any]:
    return {"x": zeros(1, T, D), "weight": zeros(1, T, H, K), "left": 2} | changes


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
    "seed-too-large": (
        lambda: {"dropconnect": 0.5, "seed": 2**63},
        "seed must fit in 64 bits, signed, got 9223372036854775808",
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
    with FakeTensorMode() if place == "fake" else nullcontext():
        arguments = base(**change())
        backend = "auto" if place == "fake" else place
        x, weight, left = (arguments.pop(name) for name in ("x", "weight", "left"))
        with pytest.raises((ValueError, RuntimeError), match=message):
            OPERATORS[op](x, weight, left, backend=backend, **arguments)


@pytest.mark.parametrize("op", [*DYNAMIC_OPS, *SHARED_OPS])
def test_the_good_input_is_good(op: str) -> None:
    """So that each error above has one cause."""
    good = dynamic() if op in DYNAMIC_OPS else light()
    for backend in ("auto", "reference", "band"):
        assert OPERATORS[op](*good.values(), backend=backend).shape == (B, T, D)


@pytest.mark.parametrize("backend", ["auto", "reference", "band"])
@pytest.mark.parametrize("which", ["x", "weight"])
@pytest.mark.parametrize("op", [*DYNAMIC_OPS, *SHARED_OPS])
def test_not_a_tensor(op: str, which: str, backend: str) -> None:
    good = dynamic() if op in DYNAMIC_OPS else light()
    for value, kind in (([1.0], "list"), (good[which].numpy(), "ndarray"), (None, "NoneType")):
        arguments = (good | {which: value}).values()
        with pytest.raises(ValueError, match=f"{which} must be a tensor, got {kind}"):
            OPERATORS[op](*arguments, backend=backend)


@pytest.mark.parametrize("backend", ["Auto", "triton", "", None])
@pytest.mark.parametrize("op", [*DYNAMIC_OPS, *SHARED_OPS])
def test_unknown_backend(op: str, backend: object) -> None:
    good = dynamic() if op in DYNAMIC_OPS else light()
    with pytest.raises(ValueError, match=f"backend must be one of .*reference.*, got {backend!r}"):
        OPERATORS[op](*good.values(), backend=backend)


# --- the backward pass as an operator of its own --------------------------------------------------

BAD_GRADS: dict[str, tuple[Callable[[], Tensor], str]] = {
    "shape": (lambda: zeros(B, T, D - 1), r"grad must be like x, .*\[2, 5, 6\].*\[2, 5, 5\]"),
    "rank": (lambda: zeros(B, T), r"grad must be like x, .*\[2, 5, 6\].*\[2, 5\]"),
    "dtype": (lambda: zeros(B, T, D, dtype=torch.float64), "grad must be like x, torch.float32"),
}


@pytest.mark.parametrize("fake", [False, True], ids=["cpu", "fake"])
@pytest.mark.parametrize(("grad", "message"), BAD_GRADS.values(), ids=BAD_GRADS)
def test_bad_gradient(grad: Callable[[], Tensor], message: str, fake: bool) -> None:
    with FakeTensorMode() if fake else nullcontext():
        rest = (None, 0.0, None, True, True)
        with pytest.raises((ValueError, RuntimeError), match=message):
            torch.ops.lightconv.dynamicconv_backward(grad(), *dynamic().values(), False, *rest)
        with pytest.raises((ValueError, RuntimeError), match=message):
            torch.ops.lightconv.lightconv_backward(grad(), *light().values(), *rest)


# --- steps ----------------------------------------------------------------------------------------


def steps(**changes: Any) -> dict[str, Any]:
    good = {"x": zeros(B, 1, D), "window": zeros(B, K - 1, D), "position": 0}
    return good | {"weight": zeros(B, 1, H, K)} | changes


BAD_STEPS: dict[str, tuple[Build, str]] = {
    "x-rank-2": (lambda: steps(x=zeros(B, D)), r"x must have shape \[B, T, D\], got \[2, 6\]"),
    "window-rows": (
        lambda: steps(window=zeros(1, K - 1, D)),
        r"window must have shape \[B, K-1, D\] = \[2, 2, 6\], got \[1, 2, 6\]",
    ),
    "window-length": (
        lambda: steps(window=zeros(B, K, D)),
        r"window must have shape \[B, K-1, D\] = \[2, 2, 6\], got \[2, 3, 6\]",
    ),
    "window-channels": (
        lambda: steps(window=zeros(B, K - 1, D + 1)),
        r"window must have shape \[B, K-1, D\] = \[2, 2, 6\], got \[2, 2, 7\]",
    ),
    "window-rank-2": (
        lambda: steps(window=zeros(K - 1, D)),
        r"window must have shape \[B, K-1, D\] = \[2, 2, 6\], got \[2, 6\]",
    ),
    "window-double": (
        lambda: steps(window=zeros(B, K - 1, D, dtype=torch.float64)),
        "window is torch.float64 on cpu, x is torch.float32 on cpu",
    ),
    "window-device": (
        lambda: steps(window=zeros(B, K - 1, D, device="meta")),
        "window is torch.float32 on meta, x is torch.float32 on cpu",
    ),
    "position-negative": (lambda: steps(position=-1), "position must be at least 0, got -1"),
    "heads": (
        lambda: steps(x=zeros(B, 1, 7), window=zeros(B, K - 1, 7)),
        "H=2 heads do not divide D=7 channels",
    ),
    "K-0": (
        lambda: steps(weight=zeros(B, 1, H, 0)),
        r"K must be at least 1, got weight \[(2, 1, )?2, 0\]",
    ),
    "x-integer": (lambda: steps(x=zeros(B, 1, D, dtype=torch.int64)), "x must be float32"),
    "weight-double": (
        lambda: steps(weight=zeros(B, 1, H, K, dtype=torch.float64)),
        "weight must be torch.float32 like x or torch.float32, got torch.float64",
    ),
}


@pytest.mark.parametrize("place", ["auto", "reference", "fake"])
@pytest.mark.parametrize(("build", "message"), BAD_STEPS.values(), ids=BAD_STEPS)
@pytest.mark.parametrize("op", ["dynamicconv_step", "lightconv_step"])
def test_bad_step(op: str, build: Build, message: str, place: str) -> None:
    """The place "reference" is what runs while gradients are recorded."""
    with FakeTensorMode() if place == "fake" else nullcontext():
        arguments = build()
        if op == "lightconv_step":
            arguments["weight"] = arguments["weight"][0, 0]
        if place == "reference":
            arguments["weight"].requires_grad_()
        with pytest.raises((ValueError, RuntimeError), match=message):
            OPERATORS[op](**arguments)


def test_a_chunk_needs_weights_for_every_position() -> None:
    with pytest.raises(ValueError, match=r"weight \[2, 1, 2, 3\] and x \[2, 4, 6\] must agree"):
        OPERATORS["dynamicconv_step"](**steps(x=zeros(B, 4, D)))
