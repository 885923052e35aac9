"""What a search is told, and what it says of a model, against whole passes through it."""

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lightconv.data import EOS, PAD, BatchPlan
from lightconv.decode import DecodeConfig
from lightconv.decode.backend import TorchBackend
from lightconv.decode.options import Options, SampleConfig, TextOptions
from lightconv.decode.score import token_logprobs
from lightconv.decode.search import (
    ModelSearch,
    batch_by_length,
    derive_seed,
    normalize,
    pad_right,
    search_batches,
)
from lightconv.models import LanguageModel, Seq2Seq
from tests.decode.fakes import Reverse
from tests.models.examples import language_model
from tests.trained import pair_config, text_config

VOCAB = 12


@pytest.fixture
def pairs() -> Seq2Seq:
    torch.manual_seed(1)
    model = Seq2Seq(pair_config((VOCAB, VOCAB))).eval()
    return _spread(model)


@pytest.fixture
def texts() -> LanguageModel:
    torch.manual_seed(1)
    return _spread(LanguageModel(text_config(VOCAB)).eval())


def _spread(model):  # type: ignore[no-untyped-def]
    """Larger weights: probabilities far from equal, so that what is read matters."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(1.5)
    return model


def make(model: Seq2Seq | LanguageModel, **config: Any) -> ModelSearch:
    return ModelSearch(TorchBackend(model), Options(decode=DecodeConfig(**config)))


SOURCES = [[4, 5, 6], [7], [8, 9, 10, 11, 4, 5], []]


@pytest.mark.parametrize("kind", ["pairs", "texts"])
def test_outputs_have_the_probabilities_of_whole_passes(
    kind: str, request: pytest.FixtureRequest
) -> None:
    model = request.getfixturevalue(kind)
    found = make(model, beam=3, max_len_plus=7)(SOURCES, range(4))
    for source, hypotheses in zip(SOURCES, found, strict=True):
        assert len(hypotheses) == 3
        for h in hypotheses:
            read = [EOS, *h.tokens[:-1]] if kind == "pairs" else [EOS, *source, *h.tokens[:-1]]
            before = [torch.tensor([[*source, EOS]])] if kind == "pairs" else []
            with torch.no_grad():
                logprobs = model(*before, torch.tensor([read]))[0].double().log_softmax(-1)
            logprobs = logprobs[-len(h.tokens) :]
            expected = [logprobs[t, word].item() for t, word in enumerate(h.tokens)]
            assert h.logprobs == pytest.approx(expected, abs=1e-5)
            assert h.score == pytest.approx(sum(expected) / len(expected), abs=1e-5)


def test_every_source_has_its_own_limit(pairs: Seq2Seq) -> None:
    """Half of the length with EOS, and one more."""
    forbid = 1e4 * torch.nn.functional.one_hot(torch.tensor(EOS), VOCAB)
    step = pairs.step

    def never_ends(tokens, state):  # type: ignore[no-untyped-def]
        scores, state = step(tokens, state)
        return scores - forbid, state

    pairs.step = never_ends  # type: ignore[method-assign]
    search = make(pairs, beam=2, max_len_ratio=0.5, max_len_plus=1, min_len=1)
    found = search(SOURCES, range(4))
    assert [len(each[0].tokens) for each in found] == [3, 2, 4, 1]


def test_draws_are_the_numbers_affair(texts: LanguageModel) -> None:
    options = Options(
        decode=DecodeConfig(max_len_plus=9),
        text=TextOptions(n_best=2),
        sampling=SampleConfig(seed=3, temperature=9.0),
    )
    search = ModelSearch(TorchBackend(texts), options)
    together = search([[4], [4], [5, 6]], [1, 2, 3])
    assert together[0] != together[1]
    assert all(len(each) == 2 for each in together)
    for prompt, number, found in zip([[4], [4], [5, 6]], [1, 2, 3], together, strict=True):
        (alone,) = search([prompt], [number])
        assert [each.tokens for each in alone] == [each.tokens for each in found]
    assert len({derive_seed(seed, number) for seed in range(5) for number in range(5)}) == 25


def test_the_prompt_does_not_count_as_output() -> None:
    """Attention keeps as many positions as a search will step, the prompt's included."""
    search = make(language_model("attention", torch.float32), beam=2, max_len_plus=3)
    (found,) = search([[4, 5, 6, 7, 8]], [0])
    assert max(len(h.tokens) for h in found) == 3


def test_a_language_model_takes_no_prefix(texts: LanguageModel) -> None:
    with pytest.raises(ValueError, match="no prefix"):
        make(texts)([[4]], [1], [[5]])


@given(
    st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=40),
    st.integers(1, 40),
    st.integers(1, 9),
    st.booleans(),
)
def test_batches_are_those_of_the_plan(
    rows: list[tuple[int, int]], max_tokens: int, max_sentences: int, both: bool
) -> None:
    """But for the bound on sentences, which the plan of training does not have."""
    lengths = [np.array([row[side] + 1 for row in rows]) for side in range(1 + both)]
    plan = BatchPlan(lengths, max_tokens=max_tokens, too_long="alone").by_length()
    sides = [[[4] * row[side] for row in rows] for side in range(1 + both)]
    found = batch_by_length(sides, max_tokens, len(rows))
    assert found == [plan[index].tolist() for index in range(len(plan))]
    bounded = batch_by_length(sides, max_tokens, max_sentences)
    # In the same order, cut sooner: a batch ends where one more would pass a bound.
    assert [row for batch in bounded[::-1] for row in batch] == [
        row for batch in found[::-1] for row in batch
    ]
    longest = np.maximum.reduce(lengths)
    for batch, after in itertools.pairwise([*bounded[::-1], [0]]):
        fits = max(1, min(max_sentences, max_tokens // longest[batch].max()))
        assert len(batch) <= fits
        room = max(1, min(max_sentences, max_tokens // longest[after[0]]))
        assert len(batch) >= room or batch == bounded[0]


def test_scores_by_hand() -> None:
    assert normalize(-6.0, 4, DecodeConfig(alpha=0.5)) == -3.0
    assert normalize(-6.0, 4, DecodeConfig(alpha=0.0)) == -6.0
    assert normalize(-6.0, 7, DecodeConfig(length_penalty="stepwise", alpha=1.0)) == -3.0


def test_batches_know_their_rows() -> None:
    sources = [[4] * length for length in (3, 1, 2, 3)]
    found = {each.row: each for each in search_batches(Reverse(), sources, TextOptions())}
    assert sorted(found) == [0, 1, 2, 3]
    assert all(len(found[row].hypotheses[0].tokens) == len(sources[row]) + 1 for row in found)
    assert list(search_batches(Reverse(), [], TextOptions())) == []


def test_padding_stands_on_the_right_and_has_no_probability(pairs: Seq2Seq) -> None:
    rows = pad_right([[4], [5, 6, 7]], torch.device("cpu"))
    assert rows.tolist() == [[4, PAD, PAD], [5, 6, 7]]
    target = pad_right([[4, EOS], [5, 6, EOS]], torch.device("cpu"))
    read = pad_right([[EOS, 4], [EOS, 5, 6]], torch.device("cpu"))
    found = token_logprobs(pairs, (rows, read), target)
    assert found[0, 2] == 0.0 and (found[target != PAD] < 0.0).all()
