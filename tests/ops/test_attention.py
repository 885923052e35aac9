"""Attention in training: the kernel, a block of queries at a time, against the formula."""

from typing import Any

import pytest
import torch
from torch import Tensor

from lightconv.mixers.attention import attend, attention_weights
from lightconv.ops import attention as module
from lightconv.ops.attention import attention, formula
from lightconv.ops.reference import drop_scale

from .cases import bf16, dtypes, f16, f32, f64

SHAPES = [
    (1, 1, 1, 1, 1),
    (2, 5, 7, 2, 8),
    (3, 7, 7, 3, 5),
    (2, 33, 33, 4, 16),
    (1, 130, 130, 2, 32),
    (5, 17, 64, 1, 64),
    (0, 4, 4, 2, 8),
]  # B, T, S, H, R
TOLERANCE = {f32: 3e-6, f64: 1e-13, bf16: 3e-2, f16: 4e-3}
MASKS = ["none", "causal", "keys", "all"]


def inputs(shape: tuple[int, ...], dtype: torch.dtype) -> list[Tensor]:
    """q, k and v as parts of one projection, not contiguous."""
    B, T, S, H, R = shape
    generator = torch.Generator().manual_seed(0)
    long = torch.randn(B, max(T, S), 3, H, R, generator=generator, dtype=f64).to(dtype)
    q, k, v = (each.requires_grad_() for each in long.unbind(2))
    return [q[:, :T], k[:, :S], v[:, :S]]


def mask_of(kind: str, shape: tuple[int, ...]) -> dict[str, Any]:
    """Options of the call; with "all" a query in some row sees no key."""
    B, T, S, H, _ = shape
    generator = torch.Generator().manual_seed(1)
    if kind == "keys":
        return {"mask": torch.rand(B, 1, 1, S, generator=generator) < 0.7}
    if kind == "all":
        return {"mask": torch.rand(B, H, T, S, generator=generator) < 0.4}
    return {"causal": True} if kind == "causal" else {}


def results(function: Any, given: list[Tensor], *more: Any, **options: Any) -> list[Tensor]:
    out = function(*given, *more, **options)
    torch.manual_seed(2)
    grad = torch.randn(out.shape, dtype=f64).to(out.dtype)
    return [out, *torch.autograd.grad(out, given, grad)]


def assert_like_formula(
    given: list[Tensor], options: dict[str, Any], p: float, note: str = ""
) -> None:
    found = results(attention, given, **options, dropout=p, seed=11)
    exact = [t.detach().double().requires_grad_() for t in given]
    more = options.get("mask"), options.get("causal", False), p, torch.tensor(11)
    for name, a, b in zip("oqkv", found, results(formula, exact, *more), strict=True):
        assert a.dtype == given[0].dtype
        if a.numel() > 0:
            error = (a.double() - b).abs().max() / b.abs().max().clamp(min=0.1)
            assert error <= TOLERANCE[a.dtype], f"{name} {error} {note}"


@pytest.mark.parametrize("p", [0.0, 0.3])
@dtypes(f32, f64, bf16, f16)
@pytest.mark.parametrize("kind", MASKS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.usefixtures("poisoned")
def test_equals_the_formula(
    kernels: Any,
    instruction_sets: list[str],
    shape: Any,
    kind: str,
    dtype: torch.dtype,
    p: float,
) -> None:
    for isa in instruction_sets:
        kernels.lightconv_choose(isa.encode())
        assert_like_formula(inputs(shape, dtype), mask_of(kind, shape), p, isa)


@pytest.mark.parametrize("largest", [1, 300, 5000])
@pytest.mark.parametrize("kind", MASKS)
@dtypes(f32, bf16)
def test_blocks_of_any_size_are_the_same(
    kind: str, dtype: torch.dtype, largest: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LARGEST", largest)
    monkeypatch.setattr(module, "QUERIES", 8)
    shape = (3, 33, 33, 2, 16)
    assert_like_formula(inputs(shape, dtype), mask_of(kind, shape), 0.3)


def test_the_formula_is_attention() -> None:
    q, k, v = (t.detach() for t in inputs((2, 5, 7, 2, 8), f64))
    mask = mask_of("keys", (2, 5, 7, 2, 8))["mask"]
    mask[:, ..., 0] = True
    weights = attention_weights(q.flatten(2), k.flatten(2), 2, mask=mask)
    factors = drop_scale(torch.tensor(5), (2, 2, 5, 7), 0.25, f64)
    expected = torch.einsum("bhts,bshr->bthr", weights * factors, v)
    torch.testing.assert_close(formula(q, k, v, mask, False, 0.25, torch.tensor(5)), expected)
    plain = attend(q.flatten(2), k.flatten(2), v.flatten(2), 2, mask=mask)
    torch.testing.assert_close(formula(q, k, v, mask, False, 0.0, None).flatten(2), plain)


@pytest.mark.parametrize("kind", MASKS)
def test_gradcheck(kind: str) -> None:
    shape = (2, 3, 3, 2, 2)
    given, options = inputs(shape, f64), mask_of(kind, shape)
    given = [t.detach().requires_grad_() for t in given]
    call = lambda *given: attention(*given, **options, dropout=0.4, seed=7)
    assert torch.autograd.gradcheck(call, given)
    assert torch.autograd.gradgradcheck(call, given)


def test_opcheck() -> None:
    given = [t.detach().requires_grad_() for t in inputs((2, 4, 5, 2, 8), f32)]
    rest = (torch.ones(2, 1, 1, 5, dtype=torch.bool), False, 0.5, torch.tensor(7))
    torch.library.opcheck(torch.ops.lightconv.attention.default, (*given, *rest))


@pytest.mark.parametrize("dynamic", [False, True])
def test_compiles_in_one_graph(dynamic: bool) -> None:
    given = [t.detach().requires_grad_() for t in inputs((2, 6, 6, 2, 8), f32)]

    def function(*given: Tensor) -> Tensor:
        return attention(*given, causal=True, dropout=0.3, seed=2).sin()

    compiled = torch.compile(function, fullgraph=True, backend="aot_eager", dynamic=dynamic)
    found, expected = (torch.autograd.grad(f(*given).sum(), given) for f in (compiled, function))
    torch.testing.assert_close(found, expected)


def test_forward_mode_runs_the_formula() -> None:
    q, k, v = (t.detach() for t in inputs((2, 4, 4, 2, 3), f64))
    call = lambda q: attention(q, k, v, dropout=0.3, seed=3)
    _, tangent = torch.func.jvp(call, (q,), (torch.ones_like(q),))
    step = 1e-6
    expected = (call(q + step) - call(q - step)) / (2 * step)
    torch.testing.assert_close(tangent, expected, rtol=1e-6, atol=1e-8)


def test_the_number_of_threads_changes_nothing(threads: None) -> None:
    given = inputs((6, 40, 40, 4, 32), f32)

    def run(count: int) -> list[Tensor]:
        torch.set_num_threads(count)
        return results(attention, given, causal=True, dropout=0.3, seed=1)

    for a, b in zip(run(1), run(3), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0)


def test_memory_holds_a_block() -> None:
    """The largest tensor that lives after the forward pass is one of the inputs."""
    given = [t.detach().requires_grad_() for t in inputs((2, 300, 300, 2, 4), f32)]
    kept: list[int] = []
    pack = lambda t: kept.append(t.numel()) or t  # type: ignore[func-returns-value]
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        attention(*given, causal=True, dropout=0.1)
    assert max(kept) == given[0].numel()


@pytest.mark.parametrize(
    "change, message",
    [
        ({"k": torch.ones(1, 5, 2, 4)}, r"k must be torch.float32 \[2, S, 2, 4\]|k must be"),
        ({"v": torch.ones(2, 5, 2, 4, dtype=f64)}, "v must be torch.float32"),
        ({"q": torch.ones(2, 3, 8)}, r"q must be floats \[B, T, H, R\]"),
        ({"mask": torch.ones(2, 5, dtype=torch.bool)}, r"mask must be bool, broadcast to"),
        ({"mask": torch.ones(2, 1, 1, 5)}, "mask must be bool"),
        ({"p": 1.0}, r"dropout must be in \[0, 1\), got 1.0"),
        ({"seed": None}, "needs a seed"),
    ],
)
def test_bad_input(change: dict[str, Any], message: str) -> None:
    given: dict[str, Any] = {name: torch.ones(2, 5, 2, 4) for name in "qkv"}
    given |= {"mask": None, "causal": False, "p": 0.5, "seed": torch.tensor(1), **change}
    for device in ("cpu", "meta"):
        there = {k: v.to(device) if isinstance(v, Tensor) else v for k, v in given.items()}
        with pytest.raises(ValueError, match=message):
            torch.ops.lightconv.attention(*there.values())
