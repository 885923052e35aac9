"""One compiled or exported graph serves every batch, length and position."""

from collections.abc import Iterable, Iterator
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim, export

from lightconv.mixers import Mixer, State

from .examples import DIM, EXAMPLES, FEW, Example, few_examples, noise, stream

f32 = torch.float32
MAX_LEN = 50
SHAPES = [(3, 7), (2, 4), (5, 40), (4, 17)]

BOOLS = (True, False)


def fast_and_slow(names: str, fast: Iterable[Any], slow: Iterable[Any]) -> pytest.MarkDecorator:
    """Cases as lists of arguments, the latter for slow tests alone."""
    marked = [pytest.param(*case, marks=pytest.mark.slow) for case in slow]
    return pytest.mark.parametrize(names, [*fast, *marked], ids=str)


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    yield
    torch.compiler.reset()


def make_inputs(batch: int, length: int, padded: bool) -> tuple[Tensor, ...]:
    """x, and if padded a mask in which the last two positions of the last row are padding."""
    padding = torch.zeros(batch, length, dtype=torch.bool)
    padding[-1, -2:] = True
    return (noise(batch, length, DIM, dtype=f32), padding)[: 1 + padded]


# Dynamo and the autograd tracer do their work; the code generator is left to the slow tests.
@fast_and_slow(
    "example, causal, padded, backend",
    product(FEW, [True], [False], ["aot_eager"]),
    product(FEW, BOOLS, BOOLS, ["inductor"]),
)
def test_compile(example: Example, causal: bool, padded: bool, backend: str) -> None:
    """One graph, forward and backward, for all of SHAPES."""
    mixer = example.build(causal, f32)
    compiled = torch.compile(mixer, fullgraph=True, dynamic=True, backend=backend)
    with torch._dynamo.config.patch(error_on_recompile=True):
        for batch, length in SHAPES:
            inputs = make_inputs(batch, length, padded)
            results = []
            for run in (mixer, compiled):
                x = inputs[0].clone().requires_grad_()
                out = run(x, *inputs[1:])
                leaves = [x, *mixer.parameters()]
                results.append([out, *torch.autograd.grad(out.square().sum(), leaves)])
            torch.testing.assert_close(results[1], results[0], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", ["lightconv", "dynamicconv"])
def test_compile_with_dropconnect(name: str) -> None:
    example = Example(name, {"kernel": 3, "heads": 2, "dropconnect": 0.5})
    mixer = example.build(True, f32).train()
    compiled = torch.compile(mixer, fullgraph=True, dynamic=True, backend="aot_eager")
    x = noise(2, 6, DIM, dtype=f32)
    torch.manual_seed(3)
    first, second = compiled(x), compiled(x)
    assert not torch.equal(first, second)
    torch.manual_seed(3)
    torch.testing.assert_close(mixer(x), first)


@few_examples
def test_compiled_step(example: Example) -> None:
    mixer = example.build(True, f32)
    step = torch.compile(mixer.step, fullgraph=True, dynamic=True, backend="aot_eager")
    x = noise(2, 20, DIM, dtype=f32)
    with torch.no_grad():
        found = stream(step, x, [1, 1, 1, 2, 5, 3, 1, 6], mixer.start(2, 20))
        torch.testing.assert_close(found, mixer(x), atol=1e-5, rtol=1e-5)


@fast_and_slow(
    "example, causal, padded", product(FEW, [False], [True]), product(EXAMPLES, BOOLS, BOOLS)
)
def test_export(example: Example, causal: bool, padded: bool) -> None:
    mixer = example.build(causal, f32)
    dynamic_shapes = ({0: Dim("batch"), 1: Dim("time")},) * (1 + padded)
    program = export(mixer, make_inputs(3, 37, padded), dynamic_shapes=dynamic_shapes).module()
    for shape in [(1, 1), (1, 9), *SHAPES]:
        inputs = make_inputs(*shape, padded)
        torch.testing.assert_close(program(*inputs), mixer(*inputs), atol=1e-5, rtol=1e-5)


class Step(nn.Module):
    """A mixer's step as a module's forward, which is what export takes."""

    def __init__(self, mixer: Mixer) -> None:
        super().__init__()
        self.mixer = mixer

    def forward(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        return self.mixer.step(x, state)


@fast_and_slow("example, one", product(FEW, BOOLS), product(EXAMPLES, BOOLS))
@torch.no_grad()
def test_export_step(example: Example, one: bool) -> None:
    """Exported for one position or for chunks of any length; batch and position are free."""
    mixer = example.build(True, f32)

    def begin(batch: int, position: int) -> State:
        past = noise(batch, position, DIM, dtype=f32, seed=2)
        return mixer.step(past, mixer.start(batch, MAX_LEN))[1]

    # `position` is an integer among the inputs: Dim.DYNAMIC keeps it from becoming a constant.
    batch, chunk = Dim("batch"), Dim("chunk", min=2, max=MAX_LEN - 1)
    state = begin(3, 5)
    dynamic_shapes = {
        "x": {0: batch} if one else {0: batch, 1: chunk},
        "state": State(tuple({0: batch} for _ in state.tensors), Dim.DYNAMIC),  # type: ignore[arg-type, misc]
    }
    x = noise(3, 1 if one else 4, DIM, dtype=f32)
    program = export(Step(mixer), (x, state), dynamic_shapes=dynamic_shapes).module()
    for size in [1] if one else [2, 3, 20]:
        for rows, position in ((3, 5), (2, 3), (4, 12), (2, 29)):
            x = noise(rows, size, DIM, dtype=f32)
            expected, after = mixer.step(x, begin(rows, position))
            out, found = program(x, begin(rows, position))
            torch.testing.assert_close(out, expected, atol=1e-5, rtol=1e-5)
            assert found.position == after.position == position + size
            torch.testing.assert_close(found.tensors, after.tensors, atol=1e-5, rtol=1e-5)
