"""One compiled graph serves training on every batch and length, forward and backward."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lightconv.models import LightConvConfig

from .examples import (
    ADAPTIVE,
    LAYERS,
    PAD,
    SOURCE_VOCAB,
    either_output,
    every_kind,
    language_model,
    seq2seq,
    tokens,
)

ONE = LAYERS["dynamicconv"][:1]


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def check(
    model: nn.Module,
    run: Callable[..., Tensor],
    batches: Sequence[tuple[Tensor, ...]],
    backend: str = "aot_eager",
) -> None:
    """Outputs and all gradients are those of eager mode; nothing is compiled a second time."""
    compiled = torch.compile(run, fullgraph=True, backend=backend)
    parameters = list(model.train().parameters())
    for batch in batches:
        for each in batch:
            torch._dynamo.maybe_mark_dynamic(each, (0, 1))
    # How many targets a band has is known only when it is counted: the second option.
    with torch._dynamo.config.patch(error_on_recompile=True, capture_dynamic_output_shape_ops=True):
        for batch in batches:
            results: list[list[Tensor]] = []
            for each in (run, compiled):
                out = each(*batch)
                results.append([out, *torch.autograd.grad(out.square().mean(), parameters)])
            for expected, found in zip(*results, strict=True):
                torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def pairs() -> list[tuple[Tensor, ...]]:
    """Sources and targets of several shapes, padded."""
    batches = []
    for B, S, T in ((3, 7, 5), (2, 4, 12), (5, 17, 30)):
        source, target = tokens(B, S, SOURCE_VOCAB), tokens(B, T)
        source[0, -2:] = target[0, -2:] = PAD
        batches.append((source, target))
    return batches


def texts() -> list[tuple[Tensor, ...]]:
    """Tokens and what follows them; some bands stay without any."""
    batches = [(tokens(B, T), tokens(B, T, seed=2)) for B, T in ((3, 7), (2, 4), (5, 40))]
    return [*batches, (tokens(3, 6), tokens(3, 6, vocab=6))]


def loss(model: Any) -> Callable[[Tensor, Tensor], Tensor]:
    def run(batch: Tensor, target: Tensor) -> Tensor:
        nll: Tensor = model.output.nll(model.features(batch).flatten(0, 1), target.flatten())
        return nll

    return run


def test_seq2seq() -> None:
    model = seq2seq("dynamicconv", torch.float32, encoder=ONE, decoder=ONE, share_embeddings="none")
    check(model, model.forward, pairs())


def test_adaptive_language_model() -> None:
    model = language_model("dynamicconv", torch.float32, layers=ONE, adaptive=ADAPTIVE)
    check(model, loss(model), texts())


def test_language_model_to_machine_code() -> None:
    layers = (LightConvConfig(kernel=3, heads=2),)
    model = language_model("lightconv", torch.float32, layers=layers)
    check(model, model.forward, [batch[:1] for batch in texts()[:2]], "inductor")


@pytest.mark.slow
@every_kind
@either_output
def test_every_kind(kind: str, adaptive: object) -> None:
    pair = seq2seq(kind, torch.float32, pre_norm=True, adaptive=adaptive)
    check(pair, pair.forward, pairs())
    text = language_model(kind, torch.float32, adaptive=adaptive)
    check(text, loss(text), texts())


@pytest.mark.slow
@either_output
def test_the_loss_to_machine_code(adaptive: object) -> None:
    model = language_model("dynamicconv", torch.float32, layers=ONE, adaptive=adaptive)
    check(model, loss(model), texts(), "inductor")
