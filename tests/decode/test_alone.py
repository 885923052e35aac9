"""A sentence alone, among 64, and in another order: the same outputs, whatever steps the model."""

import math
from collections.abc import Callable

import pytest
import torch

from lightconv.decode import DecodeConfig
from lightconv.decode.backend import Backend, TorchBackend
from lightconv.decode.engine import Engine
from lightconv.decode.options import Options
from lightconv.decode.search import ModelSearch, pad_right
from lightconv.models import Seq2Seq
from lightconv.ops.library import native

from ..models.examples import EOS, PAD, SOURCE_VOCAB, VOCAB, seq2seq

needs_kernels = pytest.mark.skipif(native().library is None, reason="no C++ kernels")

BACKENDS: dict[str, Callable[[Seq2Seq], Backend]] = {
    "torch": TorchBackend,
    "float32": Engine,
    "int8": lambda model: Engine(model, "int8"),
}
KINDS = ("attention", "lightconv", "dynamicconv", "average")
CONFIG = Options(decode=DecodeConfig(beam=4, alpha=0.7, max_len_ratio=1.0, max_len_plus=4))


def sentences(count: int = 64) -> list[list[int]]:
    """Of 1 to 12 tokens."""
    generator = torch.Generator().manual_seed(4)
    return [
        torch.randint(4, SOURCE_VOCAB, (1 + place % 12,), generator=generator).tolist()
        for place in range(count)
    ]


@needs_kernels
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind", KINDS)
def test_the_batch_changes_no_output(kind: str, backend: str) -> None:
    model = seq2seq(kind, torch.float32)
    search = ModelSearch(BACKENDS[backend](model), CONFIG)
    sources = sentences()
    together = search(sources, range(64))
    order = torch.randperm(64, generator=torch.Generator().manual_seed(1)).tolist()
    turned = search([sources[place] for place in order], order)
    others = dict(zip(order, turned, strict=True))
    for place in range(0, 64, 5):
        (alone,) = search([sources[place]], [place])
        for found in (together[place], others[place]):
            assert [h.tokens for h in found] == [h.tokens for h in alone]
            scores = [h.score for h in alone]
            assert [h.score for h in found] == pytest.approx(scores, abs=1e-5)


@needs_kernels
@pytest.mark.parametrize("quantize", [None, "int8"])
@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_a_row_of_the_engine_has_the_same_bits_anywhere(kind: str, quantize: str | None) -> None:
    engine = Engine(seq2seq(kind, torch.float32), quantize)
    source = pad_right([[*ids, EOS] for ids in sentences()], torch.device("cpu"))
    words = torch.randint(4, VOCAB, (6, 64, 1), generator=torch.Generator().manual_seed(2))
    together = engine.start(engine.encode(source), 6)
    every = torch.stack([engine.step(each, together)[0] for each in words])
    for place in range(0, 64, 9):
        one = source[place : place + 1]
        alone = engine.start(engine.encode(one[:, one[0] != PAD]), 6)
        own = torch.stack([engine.step(each[place : place + 1], alone)[0] for each in words])
        assert torch.equal(own[:, 0], every[:, place])


@needs_kernels
@pytest.mark.parametrize("backend", BACKENDS)
def test_equally_good_outputs_keep_their_order(backend: str) -> None:
    """All words alike: n-best lists are ties from end to end, in any batch."""
    model = seq2seq("lightconv", torch.float32)
    with torch.no_grad():
        model.output.weight.zero_()  # type: ignore[union-attr, operator]
    search = ModelSearch(BACKENDS[backend](model), CONFIG)
    together = search([[5, 6, 7]] * 9 + [[4]], range(10))
    (alone,) = search([[5, 6, 7]], [0])
    tokens = [h.tokens for h in alone]
    assert all([h.tokens for h in found] == tokens for found in together[:9])
    for h in alone:
        assert h.logprobs == pytest.approx([-math.log(VOCAB)] * len(h.tokens), abs=1e-6)
