"""The rows of docs/operators.md's table of other libraries: this library's column runs."""

import re
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from torch import Tensor

from lightconv import DynamicConv, LowRankConv, ops
from lightconv.ops.functional import explain

B, T, D = 2, 7, 12
CU = torch.tensor([0, 3, 3, 2 * T])


def noise(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def same(op: str, *shape: int, left: int = 2, **options: object) -> None:
    """The kernels and the formula agree, with gradients of every tensor."""
    packed = "cu_seqlens" in options
    x = noise(1, 2 * T, D) if packed else noise(B, T, D)
    found = []
    for backend in ("auto", "reference"):
        tensors = {k: v for k, v in options.items() if isinstance(v, Tensor) and k != "cu_seqlens"}
        tensors = {"x": x, "weight": noise(*shape)} | tensors
        tensors = {key: v.clone().requires_grad_() for key, v in tensors.items()}
        rest = {**options, **tensors, "backend": backend}
        out = getattr(ops, op)(rest.pop("x"), rest.pop("weight"), left, **rest)
        found.append([out, *torch.autograd.grad(out.square().sum(), list(tensors.values()))])
    torch.testing.assert_close(*found)


def states() -> None:
    same("lightconv", 3, 3, initial_state=noise(B, 2, D))
    same("lightconv", 3, 3, initial_state=noise(3, 2, D), cu_seqlens=CU)
    x, past = noise(1, 2 * T, D), noise(3, 2, D).requires_grad_()
    last = ops.final_state(x, 2, initial_state=past, cu_seqlens=CU)
    assert last.shape == (3, 2, D)
    assert torch.autograd.grad(last.sum(), past)[0].any()


def rows() -> None:
    pool, weight, at = torch.zeros(5, 2, D, dtype=torch.float64), noise(3, 3), torch.tensor([4, 1])
    whole, x = ops.lightconv(noise(B, T, D), weight, 2), noise(B, T, D)
    for t in range(T):
        position, one = torch.tensor([t, t]), x[:, t : t + 1]
        out, pool = ops.lightconv_step(one, pool, position, weight, state_indices=at)
        torch.testing.assert_close(out, whole[:, t : t + 1])


def another() -> None:
    layer = DynamicConv(D, 3, 2, causal=True, kernel_dim=5, rank=2)
    assert layer(torch.randn(B, T, D), context=torch.randn(B, T, 5)).shape == (B, T, D)


def transforms() -> None:
    x, weight = noise(B, T, D), noise(3, 3)
    run = lambda x: ops.lightconv(x, weight, 2)
    _, tangent = torch.func.jvp(run, (x,), (x,))
    torch.testing.assert_close(tangent, run(x))  # linear


def onnx() -> None:
    if find_spec("onnxscript") is None:
        pytest.skip("ONNX is not installed (extra: onnx)")
    from lightconv.interop.onnx import translations

    assert {op.name() for op in translations()} >= {
        "lightconv::dynamicconv",
        "lightconv::lightconv",
    }


FEATURES: dict[str, Callable[[], object]] = {
    "forward and backward on the CPU": lambda: explain("lightconv_backward").index("C++"),
    "any K": lambda: [same("lightconv", 3, K, left=K - 1) for K in (1, 5, 31, 200)],
    "one kernel per group of channels; softmax inside; centred": lambda: same(
        "dynamicconv_softmax", B, T, 3, 5
    ),
    "dynamic, per channel": lambda: (
        same("dynamicconv", B, T, D, 3),
        LowRankConv(D, 4)(torch.randn(B, T, D)),
    ),
    "bias, SiLU, residual, gates before and after": lambda: same(
        *("lightconv", 3, 3),
        bias=noise(D),
        activation="silu",
        residual=True,
        gate_in=noise(B, T, D),
        gate_out=noise(B, T, D),
    ),
    "packed sequences": lambda: same("lightconv", 3, 3, cu_seqlens=CU),
    "state in and out, with gradients, of packed sequences too": states,
    "rows of a state with positions of their own, chosen rows": rows,
    "dilation": lambda: same("lightconv", 3, 3, dilation=3),
    "kernels from another tensor, low rank": another,
    "torch.func, forward mode": transforms,
    "ONNX": onnx,
}


def test_the_table_has_these_rows() -> None:
    page = (Path(__file__).parents[2] / "docs" / "operators.md").read_text()
    table = page.split("## Beside other libraries")[1].split("\n## ")[0]
    rows = re.findall(r"^\| (\w.*?) \|.*\| (\S+) \|$", table, re.MULTILINE)
    assert dict(rows) == dict.fromkeys(FEATURES, "●")


@pytest.mark.parametrize("name", FEATURES)
def test_a_feature(name: str) -> None:
    FEATURES[name]()
