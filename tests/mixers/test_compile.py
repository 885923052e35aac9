"""One compiled or exported graph serves every batch, length and position."""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim, export

from lightconv.mixers import Mixer, State

from .examples import DIM, Example, both_directions, every_example, few_examples, noise, stream

MAX_LEN = 50
SHAPES = [(3, 7), (2, 4), (5, 40), (4, 17)]

padded_or_full = pytest.mark.parametrize("padded", [True, False], ids=["padded", "full"])
one_or_chunk = pytest.mark.parametrize("one", [True, False], ids=["one", "chunk"])


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def pad_last(batch: int, length: int) -> Tensor:
    """[batch, length]: the last two positions of the last row are padding."""
    padding = torch.zeros(batch, length, dtype=torch.bool)
    padding[-1, -2:] = True
    return padding


def check_compiled(mixer: Mixer, backend: str, padded: bool) -> None:
    """One graph, forward and backward, for all of SHAPES."""
    compiled = torch.compile(mixer, fullgraph=True, dynamic=True, backend=backend)
    with torch._dynamo.config.patch(error_on_recompile=True):
        for batch, length in SHAPES:
            inputs = [noise(batch, length, DIM, dtype=torch.float32)]
            if padded:
                inputs.append(pad_last(batch, length))
            results = []
            for run in (mixer, compiled):
                x = inputs[0].clone().requires_grad_()
                out = run(x, *inputs[1:])
                loss = out.square().sum()
                results.append([out, *torch.autograd.grad(loss, [x, *mixer.parameters()])])
            for expected, found in zip(*results, strict=True):
                torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)


@few_examples
def test_compile(example: Example) -> None:
    # Dynamo and the autograd tracer do their work; the code generator is left to the slow tests.
    check_compiled(example.build(True, torch.float32), "aot_eager", padded=False)


@pytest.mark.slow
@few_examples
@both_directions
@padded_or_full
def test_compile_to_machine_code(example: Example, causal: bool, padded: bool) -> None:
    check_compiled(example.build(causal, torch.float32), "inductor", padded)


@pytest.mark.parametrize("name", ["lightconv", "dynamicconv"])
def test_compile_with_dropconnect(name: str) -> None:
    example = Example(name, {"kernel": 3, "heads": 2, "dropconnect": 0.5})
    mixer = example.build(True, torch.float32).train()
    compiled = torch.compile(mixer, fullgraph=True, dynamic=True, backend="aot_eager")
    x = noise(2, 6, DIM, dtype=torch.float32)
    torch.manual_seed(3)
    first, second = compiled(x), compiled(x)
    assert not torch.equal(first, second)
    torch.manual_seed(3)
    torch.testing.assert_close(mixer(x), first)


@few_examples
def test_compiled_step(example: Example) -> None:
    mixer = example.build(True, torch.float32)
    step = torch.compile(mixer.step, fullgraph=True, dynamic=True, backend="aot_eager")
    x = noise(2, 20, DIM, dtype=torch.float32)
    with torch.no_grad():
        found = stream(step, x, [1, 1, 1, 2, 5, 3, 1, 6], mixer.start(2, 20))
        torch.testing.assert_close(found, mixer(x), atol=1e-5, rtol=1e-5)


def check_exported(mixer: Mixer, padded: bool) -> None:
    batch, time = Dim("batch"), Dim("time")
    inputs = [noise(3, 37, DIM, dtype=torch.float32), pad_last(3, 37)][: 1 + padded]
    dynamic_shapes = [{0: batch, 1: time}] * len(inputs)
    program = export(mixer, tuple(inputs), dynamic_shapes=tuple(dynamic_shapes)).module()
    for shape in [(1, 1), (1, 9), *SHAPES]:
        inputs = [noise(*shape, DIM, dtype=torch.float32), pad_last(*shape)][: 1 + padded]
        torch.testing.assert_close(program(*inputs), mixer(*inputs), atol=1e-5, rtol=1e-5)


@few_examples
def test_export(example: Example) -> None:
    check_exported(example.build(False, torch.float32), padded=True)


@pytest.mark.slow
@every_example
@both_directions
@padded_or_full
def test_export_every_example(example: Example, causal: bool, padded: bool) -> None:
    check_exported(example.build(causal, torch.float32), padded)


class Step(nn.Module):
    """A mixer's step as a module's forward, which is what export takes."""

    def __init__(self, mixer: Mixer) -> None:
        super().__init__()
        self.mixer = mixer

    def forward(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        return self.mixer.step(x, state)


def check_exported_step(mixer: Mixer, one: bool) -> None:
    """Exported for one position or for chunks of any length; batch and position are free."""

    def begin(batch: int, position: int) -> State:
        past = noise(batch, position, DIM, dtype=torch.float32, seed=2)
        return mixer.step(past, mixer.start(batch, MAX_LEN))[1]

    # `position` is an integer among the inputs: Dim.DYNAMIC keeps it from becoming a constant.
    batch, chunk = Dim("batch"), Dim("chunk", min=2, max=MAX_LEN - 1)
    state = begin(3, 5)
    dynamic_shapes = {
        "x": {0: batch} if one else {0: batch, 1: chunk},
        "state": State(tuple({0: batch} for _ in state.tensors), Dim.DYNAMIC),  # type: ignore[arg-type, misc]
    }
    x = noise(3, 1 if one else 4, DIM, dtype=torch.float32)
    program = export(Step(mixer), (x, state), dynamic_shapes=dynamic_shapes).module()
    for size in [1] if one else [2, 3, 20]:
        for rows, position in ((3, 5), (2, 3), (4, 12), (2, 29)):
            x = noise(rows, size, DIM, dtype=torch.float32)
            expected, after = mixer.step(x, begin(rows, position))
            out, found = program(x, begin(rows, position))
            torch.testing.assert_close(out, expected, atol=1e-5, rtol=1e-5)
            assert found.position == after.position == position + size
            for ours, theirs in zip(found.tensors, after.tensors, strict=True):
                torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)


@few_examples
@one_or_chunk
@torch.no_grad()
def test_export_step(example: Example, one: bool) -> None:
    check_exported_step(example.build(True, torch.float32), one)


@pytest.mark.slow
@every_example
@one_or_chunk
@torch.no_grad()
def test_export_step_every_example(example: Example, one: bool) -> None:
    check_exported_step(example.build(True, torch.float32), one)
