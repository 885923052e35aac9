"""The operators as torch sees them: opcheck, compile, export, autocast, the meta device."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from . import cases
from .cases import OPERATORS, Inputs, Shape, bf16, every_op, f32, f64, is_dynamic, make_inputs, run

pytestmark = pytest.mark.usefixtures("kernels")
SHAPE = Shape(2, 5, 2, 3, 3, 2)
PACKED = SHAPE._replace(B=1)


class Watched(TorchDispatchMode):
    """Names of the operators that run."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore::DeprecationWarning")
@every_op
def test_whoever_watches_sees_the_operators(op: str) -> None:
    """Otherwise calls go past the dispatcher, which takes as long as a short sequence."""
    inputs = make_inputs(op, SHAPE, f32)
    name = f"lightconv.{op.removesuffix('_softmax')}"
    plain = run(op, inputs, 2)
    with Watched() as watched:
        seen = run(op, inputs, 2)
    assert {f"{name}.default", f"{name}_backward.default"} <= set(watched.names)
    assert cases.all_same_bits(plain, seen)
    with torch.profiler.profile() as profiler:
        run(op, inputs, 2)
    names = {event.key.replace("::", ".") for event in profiler.key_averages()}
    assert {name, f"{name}_backward"} <= names
    weight = inputs.weight
    traced = torch.jit.trace(lambda x: OPERATORS[op](x, weight, 2), inputs.x)
    assert torch.equal(traced(inputs.grad), OPERATORS[op](inputs.grad, weight, 2))


# --- opcheck --------------------------------------------------------------------------------------


@cases.every_option(2, 0, 3)
@cases.need_gradients
@pytest.mark.parametrize(
    "op, softmax",
    [("dynamicconv", [False]), ("dynamicconv", [True]), ("lightconv", [])],
    ids=["dynamicconv", "dynamicconv_softmax", "lightconv"],
)
def test_opcheck(
    op: str, softmax: list[bool], need: tuple[bool, bool], options: dict[str, Any]
) -> None:
    x, weight, grad = make_inputs(op, PACKED if "cu_seqlens" in options else SHAPE, f32)
    seed = torch.tensor(options["seed"]) if "seed" in options else None
    rest = (2, *softmax, options.get("cu_seqlens"), options.get("dropconnect", 0.0), seed)
    backward = getattr(torch.ops.lightconv, f"{op}_backward")
    check(backward, grad, x, weight, *rest, *need)
    x.requires_grad_(need[0])
    weight.requires_grad_(need[1])
    check(getattr(torch.ops.lightconv, op), x, weight, *rest)


@pytest.mark.parametrize("position", [0, 5])
@pytest.mark.parametrize("n", [1, 4])
def test_opcheck_steps(n: int, position: int) -> None:
    shape = SHAPE._replace(T=n)
    x, weight, _ = make_inputs("dynamicconv", shape, f32)
    window = torch.randn(2, 2, 6)
    for softmax in (False, True):
        check(torch.ops.lightconv.dynamicconv_step, x, window, position, weight, softmax)
    shared = make_inputs("lightconv", shape, f32).weight
    check(torch.ops.lightconv.lightconv_step, x, window, position, shared)


def check(op: Any, *arguments: Any) -> None:
    found = torch.library.opcheck(op.default, arguments)
    assert set(found.values()) == {"SUCCESS"}


@every_op
def test_sliced_inputs_pass_opcheck(op: str) -> None:
    """The fake kernel predicts contiguous results whatever comes in."""
    x, weight, _ = make_inputs(op, SHAPE, f32)
    x, weight = (t.movedim(-1, 0).contiguous().movedim(0, -1).requires_grad_() for t in (x, weight))
    name = "dynamicconv" if is_dynamic(op) else "lightconv"
    arguments = (x, weight, 2, *((False,) if is_dynamic(op) else ()), None, 0.0, None)
    check(getattr(torch.ops.lightconv, name), *arguments)


# --- compile and export ---------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def fresh() -> Any:
    """No compiled code from other tests."""
    yield
    torch.compiler.reset()


def layer(op: str, **options: Any) -> Callable[[Tensor, Tensor], Tensor]:
    """The operator between two others."""
    return lambda x, weight: OPERATORS[op](x * 2.0, weight, 2, **options) + 1.0


def gradients(function: Callable[..., Tensor], inputs: Inputs) -> tuple[Tensor, ...]:
    x, weight = (t.detach().clone().requires_grad_() for t in inputs[:2])
    out = function(x, weight)
    return (out.detach(), *torch.autograd.grad(out, (x, weight), inputs.grad))


@pytest.mark.parametrize("options", [{}, {"dropconnect": 0.3, "seed": 4}], ids=["plain", "drop"])
@every_op
def test_compile(op: str, options: dict[str, Any]) -> None:
    """One graph, forward and backward, for every batch and length."""
    compiled = torch.compile(
        layer(op, **options), fullgraph=True, dynamic=True, backend="aot_eager"
    )
    first = SHAPE._replace(B=5, T=7)  # no two sizes alike: torch would take them for one
    shapes = [first, SHAPE._replace(B=3, T=70), SHAPE._replace(B=4, T=2)]
    for number, shape in enumerate(shapes):
        inputs = make_inputs(op, shape)
        with torch.compiler.set_stance("fail_on_recompile" if number else "default"):
            found = gradients(compiled, inputs)
        torch.testing.assert_close(found, gradients(layer(op, **options), inputs))


@every_op
def test_compile_packed(op: str) -> None:
    def packed(x: Tensor, weight: Tensor, ends: Tensor) -> Tensor:
        return OPERATORS[op](x, weight, 2, cu_seqlens=ends).square()

    compiled = torch.compile(packed, fullgraph=True, dynamic=True, backend="aot_eager")
    for lengths in ((2, 3), (4, 0, 9), (70, 1, 1, 8)):
        inputs, ends = make_inputs(op, PACKED._replace(T=sum(lengths))), cases.boundaries(lengths)
        found = gradients(lambda x, w, e=ends: compiled(x, w, e), inputs)
        torch.testing.assert_close(found, gradients(lambda x, w, e=ends: packed(x, w, e), inputs))


@every_op
def test_compile_with_inductor(op: str) -> None:
    compiled = torch.compile(OPERATORS[op], fullgraph=True)
    inputs = make_inputs(op, SHAPE, f32)
    found = gradients(lambda x, w: compiled(x, w, 2), inputs)
    torch.testing.assert_close(found, tuple(run(op, inputs, 2)))


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compiled_dropconnect_draws_a_new_seed_at_each_call(backend: str) -> None:
    x, weight, _ = make_inputs("dynamicconv", SHAPE)
    compiled = torch.compile(OPERATORS["dynamicconv"], fullgraph=True, backend=backend)
    torch.manual_seed(0)
    found = [compiled(x, weight, 2, dropconnect=0.5) for _ in range(4)]
    for i, a in enumerate(found):
        assert not any(torch.equal(a, b) for b in found[:i])
    torch.manual_seed(0)
    assert torch.equal(compiled(x, weight, 2, dropconnect=0.5), found[0])


def test_compiled_dropconnect_drops_the_same_in_backward() -> None:
    inputs = Inputs(torch.ones(1, 9, 1), torch.ones(1, 9, 1, 1), torch.ones(1, 9, 1))
    compiled = torch.compile(OPERATORS["dynamicconv"], fullgraph=True, backend="aot_eager")
    seen = set()
    for _ in range(5):
        out, grad_x, _ = gradients(lambda x, w: compiled(x, w, 0, dropconnect=0.5), inputs)
        assert torch.equal(out, grad_x)
        seen |= set(out.flatten().tolist())
    assert seen == {0.0, 2.0}


@pytest.mark.parametrize("op", ["dynamicconv_step", "lightconv_step"])
def test_compile_steps(op: str) -> None:
    """One graph for every position; the window is updated in place."""
    compiled = torch.compile(OPERATORS[op], fullgraph=True, dynamic=True, backend="aot_eager")
    weight = torch.randn(2, 1, 2, 4) if op == "dynamicconv_step" else torch.randn(2, 4)
    windows = [torch.zeros(2, 3, 6), torch.zeros(2, 3, 6)]
    with torch.no_grad():
        for position in range(9):
            x = torch.randn(2, 1, 6)
            with torch.compiler.set_stance("fail_on_recompile" if position > 2 else "default"):
                out, ring = compiled(x, windows[0], position, weight)
            expected, _ = OPERATORS[op](x, windows[1], position, weight)
            assert torch.equal(out, expected)
            assert ring is windows[0]
            assert torch.equal(*windows)


class Module(nn.Module):
    def __init__(self, op: str) -> None:
        super().__init__()
        self.op = op
        self.shared = nn.Parameter(torch.randn(2, 3))
        self.project = nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        weight = self.project(x).unflatten(-1, (2, 3)) if is_dynamic(self.op) else self.shared
        return OPERATORS[self.op](x, weight, 2)


@every_op
def test_export(op: str) -> None:
    module = Module(op)
    dynamic = {0: torch.export.Dim("batch", min=1), 1: torch.export.Dim("time", min=1)}
    program = torch.export.export(module, (torch.randn(2, 5, 6),), dynamic_shapes=({**dynamic},))
    assert any("lightconv" in str(node.target) for node in program.graph.nodes)
    for B, T in ((1, 1), (3, 70), (2, 2)):
        x = torch.randn(B, T, 6)
        assert torch.equal(program.module()(x), module(x))


# --- autocast and meta ----------------------------------------------------------------------------


@every_op
def test_autocast(op: str) -> None:
    """x becomes bfloat16, float32 weights stay, and gradients come back in the inputs' dtypes."""
    inputs = make_inputs(op, SHAPE, f32)
    x, weight = (t.clone().requires_grad_() for t in inputs[:2])
    with torch.autocast("cpu", dtype=bf16):
        out = OPERATORS[op](x, weight, 2)
    assert out.dtype == bf16
    expected = run(op, Inputs(inputs.x.to(bf16), inputs.weight, inputs.grad.to(bf16)), 2)
    assert torch.equal(out, expected.out)
    found = torch.autograd.grad(out, (x, weight), inputs.grad.to(bf16))
    assert torch.equal(found[0], expected.grad_x.float())
    assert torch.equal(found[1], expected.grad_weight)


@every_op
def test_autocast_mixes_what_a_model_mixes(op: str) -> None:
    """A projection gives bfloat16 weights beside a float32 x; float64 is left alone."""
    for x_dtype, weight_dtype, wanted in ((f32, bf16, bf16), (f32, cases.f16, bf16), (f64,) * 3):
        x, weight, _ = make_inputs(op, SHAPE, x_dtype, weight_dtype)
        with torch.autocast("cpu", dtype=bf16):
            out = OPERATORS[op](x, weight, 2)
        assert out.dtype == wanted
        assert torch.equal(out, OPERATORS[op](x.to(wanted), weight.to(wanted), 2))


@cases.dtypes(f32, bf16)
@cases.every_backend
@every_op
def test_meta(op: str, backend: str, dtype: torch.dtype) -> None:
    inputs = Inputs(*(t.to("meta") for t in make_inputs(op, SHAPE, dtype)))
    results = run(op, inputs, 2, backend=backend)
    for found, like in zip(results, (inputs.x, inputs.x, inputs.weight), strict=True):
        assert found.device.type == "meta"
        assert (found.shape, found.dtype) == (like.shape, dtype)


def test_meta_steps() -> None:
    x, window = torch.zeros(2, 1, 6, device="meta"), torch.zeros(2, 2, 6, device="meta")
    out, ring = OPERATORS["lightconv_step"](x, window, 3, torch.zeros(2, 3, device="meta"))
    assert out.shape == x.shape
    assert ring is window
