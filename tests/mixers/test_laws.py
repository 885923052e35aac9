"""Three laws, for every mixer and every example.

1. Stepping, one by one or in chunks, equals forward.
2. The future and the padding change nothing.
3. State follows its row under reorder.
"""

import random
from inspect import signature

import pytest
import torch
from torch import Tensor

from lightconv.mixers import MIXERS, Mixer, State, reorder

from .examples import (
    DIM,
    EXAMPLES,
    FEW,
    Example,
    both_directions,
    every_example,
    few_examples,
    noise,
    stream,
)

TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-5}
BATCH = 3


def test_every_mixer_has_an_example() -> None:
    assert {example.name for example in EXAMPLES} == set(MIXERS)
    assert {example.name for example in FEW} == set(MIXERS)


def stream_from_start(mixer: Mixer, x: Tensor, sizes: list[int]) -> Tensor:
    return stream(mixer.step, x, sizes, mixer.start(*x.shape[:2]))


def random_chunks(length: int, largest: int, rng: random.Random) -> list[int]:
    """Sizes from 0 to largest that add up to length, and an empty one in any case."""
    sizes = [0]
    while sum(sizes) < length:
        sizes.append(min(rng.randint(0, largest), length - sum(sizes)))
    rng.shuffle(sizes)
    return sizes


# --- 1: stepping equals forward -------------------------------------------------------------------


@every_example
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_stepping_equals_forward(example: Example, dtype: torch.dtype) -> None:
    mixer = example.build(causal=True, dtype=dtype)
    rng = random.Random(0)
    tolerance = {"atol": TOLERANCE[dtype], "rtol": TOLERANCE[dtype]}
    with torch.no_grad():
        for length in example.lengths:
            x = noise(BATCH, length, DIM, dtype=dtype)
            whole = mixer(x)
            for sizes in (
                [1] * length,
                [length],
                random_chunks(length, 3, rng),
                random_chunks(length, example.width + 2, rng),
            ):
                torch.testing.assert_close(stream_from_start(mixer, x, sizes), whole, **tolerance)


@few_examples
def test_gradients_through_a_stream_equal_those_of_forward(example: Example) -> None:
    mixer = example.build(causal=True)
    x = noise(BATCH, 11, DIM)
    direction = noise(BATCH, 11, DIM, seed=2)
    results = []
    for run in (mixer, lambda x: stream_from_start(mixer, x, [1, 1, 4, 0, 1, 2, 2])):
        leaf = x.clone().requires_grad_()
        gradients = torch.autograd.grad((run(leaf) * direction).sum(), [leaf, *mixer.parameters()])
        results.append(gradients)
    for stepped, whole in zip(*results, strict=True):
        torch.testing.assert_close(stepped, whole, atol=1e-10, rtol=1e-10)


@few_examples
def test_training_and_inference_mode_change_nothing_in_a_step(example: Example) -> None:
    options = dict(example.options)
    for name in ("dropout", "dropconnect"):
        if name in signature(MIXERS[example.name]).parameters:
            options[name] = 0.5
    mixer = Example(example.name, options).build(causal=True)
    x = noise(BATCH, 9, DIM)
    whole = mixer(x)
    with torch.inference_mode():
        torch.testing.assert_close(stream_from_start(mixer.train(), x, [2] * 4 + [1]), whole)


# --- 2: the future and the padding change nothing -------------------------------------------------


@every_example
def test_the_future_changes_nothing(example: Example) -> None:
    mixer = example.build(causal=True)
    # Attention is given large numbers only: inside F.scaled_dot_product_attention a weight of
    # zero meets the future's value, and 0 * NaN is NaN. No mask can help that.
    poisons = [1e6] if example.name == "attention" else [1e6, torch.nan, torch.inf]
    for length in example.lengths:
        x = noise(BATCH, length, DIM)
        whole = mixer(x)
        for now in {1, length // 2, length - 1} - {0, length}:
            for poison in poisons:
                poisoned = x.clone()
                poisoned[:, now:] = poison
                torch.testing.assert_close(
                    mixer(poisoned)[:, :now], whole[:, :now], atol=1e-12, rtol=0.0
                )


def paddings(length: int) -> Tensor:
    """[5, length]: none, right, left, in the middle, everything."""
    cut = length // 3
    padding = torch.zeros(5, length, dtype=torch.bool)
    padding[1, length - cut :] = True
    padding[2, :cut] = True
    padding[3, cut : 2 * cut] = True
    padding[4] = True
    return padding


@every_example
@both_directions
def test_padding_changes_nothing(example: Example, causal: bool) -> None:
    mixer = example.build(causal)
    for length in example.lengths:
        padding = paddings(length)
        x = noise(5, length, DIM)
        whole = mixer(x.masked_fill(padding.unsqueeze(-1), 0.0), padding)
        for poison in (1e6, torch.nan, torch.inf):
            out = mixer(x.masked_fill(padding.unsqueeze(-1), poison), padding)
            torch.testing.assert_close(out[~padding], whole[~padding], atol=1e-12, rtol=0.0)
        # Padding at an end is as good as a shorter sequence; none is as good as no argument.
        cut = length // 3
        for row, real in ((0, slice(None)), (1, slice(length - cut)), (2, slice(cut, None))):
            torch.testing.assert_close(
                whole[row : row + 1, real], mixer(x[row : row + 1, real]), atol=1e-10, rtol=1e-10
            )


@every_example
@both_directions
def test_gradients_are_finite_beside_padding(example: Example, causal: bool) -> None:
    mixer = example.build(causal)
    padding = paddings(9)
    results = []
    for fill in (0.0, 1e3):
        x = noise(5, 9, DIM).masked_fill(padding.unsqueeze(-1), fill).requires_grad_()
        loss = mixer(x, padding)[~padding].square().sum()
        results.append(torch.autograd.grad(loss, [x, *mixer.parameters()]))
    for zeros, large in zip(*results, strict=True):
        assert zeros.isfinite().all()
        torch.testing.assert_close(large, zeros, atol=1e-10, rtol=1e-10)


@few_examples
@both_directions
def test_nothing_in_nothing_out(example: Example, causal: bool) -> None:
    mixer = example.build(causal)
    for shape in ((2, 0, DIM), (0, 4, DIM), (0, 0, DIM)):
        assert mixer(torch.zeros(shape, dtype=torch.float64)).shape == shape
        padding = torch.zeros(shape[:2], dtype=torch.bool)
        assert mixer(torch.zeros(shape, dtype=torch.float64), padding).shape == shape


# --- 3: state follows its row ---------------------------------------------------------------------


@every_example
def test_state_follows_its_row(example: Example) -> None:
    mixer = example.build(causal=True)
    before, after = example.width + 2, 4
    x = noise(4, before, DIM)
    with torch.no_grad():
        for chosen in ([3, 1, 0, 2], [2, 2, 0, 2, 1, 3], [3], []):
            rows = torch.tensor(chosen, dtype=torch.int64)
            _, state = mixer.step(x, mixer.start(4, before + after))
            state = reorder(state, rows)
            assert state.position == before
            more = noise(len(chosen), after, DIM, seed=3)
            whole = mixer(torch.cat([x[rows], more], dim=1))[:, before:]
            out = stream(mixer.step, more, [1, 2, 1], state)
            torch.testing.assert_close(out, whole, atol=1e-10, rtol=1e-10)


def test_reorder_copies_rows_that_then_part() -> None:
    mixer = Example("dynamicconv", {"kernel": 3, "heads": 2}).build(causal=True)
    with torch.no_grad():
        _, state = mixer.step(noise(1, 5, DIM), mixer.start(1, 9))
        kept = [tensor.clone() for tensor in state.tensors]
        mixer.step(noise(2, 3, DIM), reorder(state, torch.tensor([0, 0])))
    for tensor, copy in zip(state.tensors, kept, strict=True):
        assert torch.equal(tensor, copy)


def test_reorder_walks_any_structure() -> None:
    rows = torch.tensor([1, 0, 1])
    a, b = noise(2, 3), noise(2, 1, 2)
    state = {"layers": [State((a, b), 7), (a, None)], "count": 3}
    found = reorder(state, rows)
    assert found["count"] == 3
    first, second = found["layers"]
    assert isinstance(first, State)
    assert first.position == 7
    assert torch.equal(first.tensors[0], a[rows])
    assert torch.equal(first.tensors[1], b[rows])
    assert torch.equal(second[0], a[rows])
    assert second[1] is None
    with pytest.raises(ValueError, match="got set"):
        reorder({"layers": {1, 2}}, rows)


# --- memory ---------------------------------------------------------------------------------------


@every_example
def test_state_is_allocated_once(example: Example) -> None:
    mixer = example.build(causal=True)
    bounded = example.name != "attention" or "window" in example.options
    with torch.no_grad():
        state = mixer.start(2, 50)
        if bounded:
            sizes = [tensor.shape for tensor in mixer.start(2, 10_000).tensors]
            assert sizes == [tensor.shape for tensor in state.tensors]
        shapes = [(tensor.shape, tensor.dtype) for tensor in state.tensors]
        for size in (1, 7, 0, 2):
            _, state = mixer.step(noise(2, size, DIM), state)
            assert shapes == [(tensor.shape, tensor.dtype) for tensor in state.tensors]
            for tensor in state.tensors:
                # No view into a larger buffer that stays alive with it.
                held = tensor.untyped_storage().nbytes()
                assert held == tensor.numel() * tensor.element_size()
        assert state.position == 10
