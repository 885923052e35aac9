"""The laws of the mixers hold for whole models of either family.

Stepping, one by one or in chunks, equals forward; the future and the padding change nothing; the
state follows its rows.
"""

import random

import pytest
import torch

from lightconv.mixers import MIXERS, reorder

from .examples import (
    ADAPTIVE,
    EOS,
    FAMILIES,
    LAYERS,
    PAD,
    either_output,
    every_family,
    every_kind,
    tokens,
)

VARIANTS = {
    "post": {"pre_norm": False},
    "pre": {"pre_norm": True, "final_norm": True},
    "pre-open": {"pre_norm": True, "final_norm": False},
    "post-adaptive": {"pre_norm": False, "adaptive": ADAPTIVE},
    "pre-adaptive": {"pre_norm": True, "adaptive": ADAPTIVE},
}
every_variant = pytest.mark.parametrize("variant", VARIANTS)
EXACT = {"rtol": 0.0, "atol": 1e-10}
LONGEST = 12


def test_every_mixer_is_tested() -> None:
    assert set(LAYERS) == {*MIXERS, "mixed"}


def random_chunks(length: int, largest: int, rng: random.Random) -> list[int]:
    """Sizes from 0 to largest that add up to length."""
    sizes: list[int] = []
    while sum(sizes) < length:
        sizes.append(min(rng.randint(0, largest), length - sum(sizes)))
    return sizes


@every_family
@every_kind
@every_variant
def test_stepping_equals_forward_at_every_length(family: str, kind: str, variant: str) -> None:
    run = FAMILIES[family](kind, **VARIANTS[variant])
    batch = tokens(3, LONGEST)
    batch[:, 0] = EOS
    rng = random.Random(0)
    with torch.inference_mode():
        wholes = [run.whole(batch[:, :length]) for length in range(1, LONGEST + 1)]
        one_by_one = run.stream(batch, [1] * LONGEST)
        for length, whole in enumerate(wholes, start=1):
            torch.testing.assert_close(one_by_one[:, :length], whole, **EXACT)
            sizes = random_chunks(length, 5, rng)
            torch.testing.assert_close(run.stream(batch[:, :length], sizes), whole, **EXACT)


@every_family
@every_kind
@every_variant
def test_the_future_changes_nothing(family: str, kind: str, variant: str) -> None:
    run = FAMILIES[family](kind, **VARIANTS[variant])
    batch = tokens(3, 8)
    with torch.inference_mode():
        whole = run.whole(batch)
        for now in (1, 5, 7):
            other = batch.clone()
            other[:, now:] = tokens(3, 8 - now, seed=5)
            torch.testing.assert_close(run.whole(other)[:, :now], whole[:, :now], **EXACT)


@every_family
@every_kind
@every_variant
def test_padding_on_the_right_changes_nothing(family: str, kind: str, variant: str) -> None:
    run = FAMILIES[family](kind, **VARIANTS[variant])
    batch = tokens(3, 8)
    for row, length in enumerate((8, 5, 1)):
        batch[row, length:] = PAD
    with torch.inference_mode():
        padded = run.whole(batch)
        for row, length in enumerate((8, 5, 1)):
            alone = run.whole(batch[:, :length])[row]
            torch.testing.assert_close(padded[row, :length], alone, **EXACT)


@every_family
def test_padding_teaches_nothing(family: str) -> None:
    # What the loss leaves out must not reach the parameters by another way.
    run = FAMILIES[family]("mixed", pre_norm=True)
    batch = tokens(3, 8)
    batch[1, 5:] = PAD
    gradients = []
    for width in (8, 11):
        wide = torch.full((3, width), PAD)
        wide[:, :8] = batch
        loss = run.whole(wide)[wide != PAD].square().sum()
        gradients.append(torch.autograd.grad(loss, list(run.model.parameters())))
    for narrow, wide in zip(*gradients, strict=True):
        torch.testing.assert_close(wide, narrow, rtol=0, atol=1e-9)


@every_family
@every_kind
@either_output
def test_the_state_follows_its_row(family: str, kind: str, adaptive: object) -> None:
    run = FAMILIES[family](kind, adaptive=adaptive)
    batch = tokens(3, 9)
    with torch.inference_mode():
        whole = run.whole(batch)
        for rows in ([2, 0, 0, 1, 2], [1], [0, 2, 1]):
            chosen = torch.tensor(rows)
            _, state = run.model.step(batch[:, :4], run.start(9))
            state = reorder(state, chosen)
            assert type(state) is type(run.start(9))
            assert state.position == 4
            found = run.stream(batch[chosen, 4:], [1, 3, 1], state)
            torch.testing.assert_close(found, whole[chosen, 4:], **EXACT)


@every_family
@every_kind
@either_output
def test_every_parameter_gets_a_gradient(family: str, kind: str, adaptive: object) -> None:
    run = FAMILIES[family](kind, pre_norm=True, final_norm=True, adaptive=adaptive)
    run.model.train()
    run.whole(tokens(3, 9)).square().mean().backward()
    for name, parameter in run.model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().max() > 0.0, name


@every_family
def test_training_mode_drops_out_and_does_not_step(family: str) -> None:
    run = FAMILIES[family]("dynamicconv", dropout=0.5)
    batch = tokens(3, 4)
    assert torch.equal(run.whole(batch), run.whole(batch))
    run.model.train()
    assert not torch.equal(run.whole(batch), run.whole(batch))
    with pytest.raises(ValueError, match=r"call eval\(\)"):
        run.start(5)


@every_family
@either_output
def test_autocast(family: str, adaptive: object) -> None:
    run = FAMILIES[family]("mixed", torch.float32, pre_norm=False, adaptive=adaptive)
    batch = tokens(3, 9)
    with torch.no_grad():
        exact = run.whole(batch).log_softmax(-1)
        with torch.autocast("cpu", torch.bfloat16):
            for found in (run.whole(batch), run.stream(batch, [1, 4, 1, 3])):
                torch.testing.assert_close(
                    found.float().log_softmax(-1), exact, rtol=0.0, atol=0.15
                )


@every_family
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_narrow_parameters(family: str, dtype: torch.dtype) -> None:
    run = FAMILIES[family]("mixed", torch.float32, pre_norm=False, adaptive=ADAPTIVE)
    batch = tokens(3, 9)
    with torch.no_grad():
        exact = run.whole(batch)
        run.model.to(dtype)
        for found in (run.whole(batch), run.stream(batch, [1, 4, 1, 3])):
            torch.testing.assert_close(found, exact, rtol=0.0, atol=0.15)


@every_family
def test_nothing_in_nothing_out(family: str) -> None:
    run = FAMILIES[family]("mixed", adaptive=ADAPTIVE)
    assert run.whole(tokens(3, 0)).shape == (3, 0, 17)
    with torch.inference_mode():
        scores, state = run.model.step(tokens(3, 0), run.start(4))
    assert scores.shape == (3, 0, 17)
    assert state.position == 0
