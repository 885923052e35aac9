"""Alignments against the attention that a search hands out, which test_models knows by formula."""

import pytest
import torch

from lightconv.decode import beam_search
from lightconv.decode.alignment import align
from lightconv.models import Seq2Seq

from ..models.examples import EOS, PAD, seq2seq

SOURCES = [[4, 5, 6], [7], [], [5, 4, 4, 6, 7, 5]]


def attention(model: Seq2Seq, source: list[int], target: list[int], layer: int) -> torch.Tensor:
    """[T, S] without EOS: the target is forced, one token at a time."""
    state = model.start(model.encode(torch.tensor([[*source, EOS]])), len(target) + 1)
    ((found,),) = beam_search(
        lambda tokens, state: model.step_attending(tokens, state, layer),
        state,
        torch.tensor([EOS]),
        beam=1,
        max_len=len(target) + 1,
        eos=EOS,
        pad=PAD,
        prefix=[target],
    )
    assert found.tokens == [*target, EOS] and found.attention is not None
    return found.attention[:-1, :-1]


@pytest.mark.parametrize("layer", [0, -1])
def test_a_token_comes_from_where_the_layer_looks(layer: int) -> None:
    model = seq2seq("dynamicconv")
    targets = [[5, 4], [4, 4, 6, 7, 5], [4, 5], []]
    found = align([model], SOURCES, targets, layer)
    for source, target, pairs in zip(SOURCES, targets, found, strict=True):
        if not source or not target:
            assert pairs == []
            continue
        best = attention(model, source, target, layer).argmax(1).tolist()
        assert pairs == [(s, t) for t, s in enumerate(best)]
    assert {s for pairs in found for s, _ in pairs} - {0}, "not always the first"


def test_models_are_asked_together() -> None:
    models = [seq2seq("dynamicconv"), seq2seq("attention")]
    source, target = SOURCES[3], [4, 7, 6, 6, 5]
    looks = sum(attention(model, source, target, -1) for model in models)
    assert isinstance(looks, torch.Tensor)
    (pairs,) = align(models, [source], [target])
    assert pairs == [(s, t) for t, s in enumerate(looks.argmax(1).tolist())]
    assert align(models, [], []) == []
