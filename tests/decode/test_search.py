"""Searches of models: against whole passes through them, alone and in batches, on every backend."""

import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lightconv.data import BatchPlan
from lightconv.decode import DecodeConfig, Hypothesis
from lightconv.decode.backend import Backend, TorchBackend
from lightconv.decode.engine import Engine
from lightconv.decode.options import Options, SampleConfig, TextOptions
from lightconv.decode.score import token_logprobs
from lightconv.decode.search import (
    ModelSearch,
    batch_by_length,
    derive_seed,
    normalize,
    pad_right,
)
from lightconv.ops.library import native
from tests.models.examples import (
    EOS,
    LAYERS,
    PAD,
    SOURCE_VOCAB,
    VOCAB,
    every_kind,
    language_model,
    seq2seq,
)

CPU = torch.device("cpu")
SOURCES = [[4, 5, 6], [7], [8, 9, 10, 11, 4, 5], []]
needs_kernels = pytest.mark.skipif(native().library is None, reason="no C++ kernels")
BACKENDS: dict[str, Callable[[Any], Backend]] = {
    "torch": TorchBackend,
    "float32": Engine,
    "int8": lambda model: Engine(model, "int8"),
}
every_backend = pytest.mark.parametrize("backend", BACKENDS)
# What the engine runs.
TORCH_ONLY = ("conv", "mixed", "lowrankconv", "shortconv", "hyena")
KINDS = [kind for kind in LAYERS if kind not in TORCH_ONLY]


def make(model: Any, **config: Any) -> ModelSearch:
    return ModelSearch(TorchBackend(model), Options(decode=DecodeConfig(**config)))


def tokens(hypotheses: list[Hypothesis]) -> list[list[int]]:
    return [each.tokens for each in hypotheses]


@every_kind
@pytest.mark.parametrize(
    "family, beam, block, options",
    [
        (seq2seq, 1, 0, {}),
        (seq2seq, 4, 0, {}),
        (seq2seq, 3, 0, {"sampling": SampleConfig(top_k=9), "text": TextOptions(n_best=3)}),
        (language_model, 3, 0, {}),
        (language_model, 3, 2, {}),
    ],
)
def test_outputs_have_the_probabilities_of_whole_passes(
    kind: str, family: Any, beam: int, block: int, options: dict[str, Any]
) -> None:
    model, pairs = family(kind, torch.float32), family is seq2seq
    decode = DecodeConfig(beam=beam, max_len_plus=7, block_ngrams=block)
    found = ModelSearch(TorchBackend(model), Options(decode=decode, **options))(SOURCES, range(4))
    for source, hypotheses in zip(SOURCES, found, strict=True):
        assert len(hypotheses) == beam
        for h in hypotheses:
            read = [EOS, *h.tokens[:-1]] if pairs else [EOS, *source, *h.tokens[:-1]]
            before = [torch.tensor([[*source, EOS]])] if pairs else []
            with torch.no_grad():
                logprobs = model(*before, torch.tensor([read]))[0].double().log_softmax(-1)
            logprobs = logprobs[-len(h.tokens) :]
            expected = [logprobs[t, word].item() for t, word in enumerate(h.tokens)]
            assert h.logprobs == pytest.approx(expected, abs=1e-5)
            assert h.score == pytest.approx(sum(expected) / len(expected), abs=1e-5)


@every_kind
@pytest.mark.parametrize(
    "family, vocab", [(seq2seq, "target_vocab"), (language_model, "vocab")], ids=["seq2seq", "lm"]
)
def test_a_beam_wide_enough_finds_every_output(kind: str, family: Any, vocab: str) -> None:
    """All sequences of up to four tokens, of five words and EOS, scored by whole passes."""
    model, pairs, source = family(kind, **{vocab: 7}), family is seq2seq, [5, 4]
    expected = []
    for words in itertools.chain(*(itertools.product([0, 3, 4, 5, 6], repeat=n) for n in range(4))):
        read = [EOS, *words] if pairs else [EOS, *source, *words]
        before = [torch.tensor([[*source, EOS]])] if pairs else []
        with torch.no_grad():
            logprobs = model(*before, torch.tensor([read]))[0].log_softmax(-1)[-len(words) - 1 :]
        total = logprobs[range(len(words) + 1), [*words, EOS]].sum().item()
        expected.append((total / (len(words) + 1) ** 0.6, [*words, EOS]))
    expected.sort(reverse=True)
    (found,) = make(model, beam=len(expected), alpha=0.6, max_len_plus=4)([source], [0])
    assert tokens(found) == [words for _, words in expected]
    assert [h.score for h in found] == pytest.approx([score for score, _ in expected], abs=1e-9)


# --- A sentence alone, among 64, and in another order

CONFIG = Options(decode=DecodeConfig(beam=4, alpha=0.7, max_len_ratio=1.0, max_len_plus=4))


def sentences() -> list[list[int]]:
    """64 of 1 to 12 tokens."""
    generator = torch.Generator().manual_seed(4)
    lengths = [1 + place % 12 for place in range(64)]
    return [torch.randint(4, SOURCE_VOCAB, (n,), generator=generator).tolist() for n in lengths]


@needs_kernels
@pytest.mark.parametrize(
    "kind, backend",
    [(kind, name) for kind in LAYERS for name in BACKENDS if kind in KINDS or name == "torch"],
)
def test_the_batch_changes_no_output(kind: str, backend: str) -> None:
    search = ModelSearch(BACKENDS[backend](seq2seq(kind, torch.float32)), CONFIG)
    sources = sentences()
    together = search(sources, range(64))
    assert len({len(h.tokens) for each in together for h in each}) > 2
    order = torch.randperm(64, generator=torch.Generator().manual_seed(1)).tolist()
    turned = search([sources[place] for place in order], order)
    others = dict(zip(order, turned, strict=True))
    for place in range(0, 64, 5):
        (alone,) = search([sources[place]], [place])
        for found in (together[place], others[place]):
            assert tokens(found) == tokens(alone)
            scores = [h.score for h in alone]
            assert [h.score for h in found] == pytest.approx(scores, abs=1e-5)


@needs_kernels
@pytest.mark.parametrize("quantize", [None, "int8"])
@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_a_row_of_the_engine_has_the_same_bits_anywhere(kind: str, quantize: str | None) -> None:
    engine = Engine(seq2seq(kind, torch.float32), quantize)
    source = pad_right([[*ids, EOS] for ids in sentences()], CPU)
    words = torch.randint(4, VOCAB, (6, 64, 1), generator=torch.Generator().manual_seed(2))
    together = engine.start(engine.encode(source), 6)
    every = torch.stack([engine.step(each, together)[0] for each in words])
    for place in range(0, 64, 9):
        one = source[place : place + 1]
        alone = engine.start(engine.encode(one[:, one[0] != PAD]), 6)
        own = torch.stack([engine.step(each[place : place + 1], alone)[0] for each in words])
        assert torch.equal(own[:, 0], every[:, place])


@needs_kernels
@every_backend
def test_equally_good_outputs_keep_their_order(backend: str) -> None:
    """All words alike: n-best lists are ties from end to end, in any batch."""
    model = seq2seq("lightconv", torch.float32)
    with torch.no_grad():
        model.output.weight.zero_()  # type: ignore[union-attr, operator]
    search = ModelSearch(BACKENDS[backend](model), CONFIG)
    together = search([[5, 6, 7]] * 9 + [[4]], range(10))
    (alone,) = search([[5, 6, 7]], [0])
    assert all(tokens(found) == tokens(alone) for found in together[:9])
    for h in alone:
        assert h.logprobs == pytest.approx([-math.log(VOCAB)] * len(h.tokens), abs=1e-6)


@pytest.mark.parametrize("options", [{}, {"top_k": 4}, {"top_p": 0.8}])
@pytest.mark.parametrize("family", [seq2seq, language_model])
def test_draws_are_the_numbers_affair(family: Any, options: dict[str, Any]) -> None:
    chosen = Options(
        decode=DecodeConfig(max_len_plus=9),
        text=TextOptions(n_best=2),
        sampling=SampleConfig(seed=3, temperature=9.0, **options),
    )
    search = ModelSearch(TorchBackend(family("lightconv", torch.float32)), chosen)
    sources, numbers = [[4], [4], [5, 6], [7, 4, 9, 8, 5, 6]], [1, 2, 3, 4]
    together = search(sources, numbers)
    assert tokens(together[0]) != tokens(together[1])
    assert all(len(each) == 2 for each in together)
    for source, number, found in zip(sources, numbers, together, strict=True):
        (alone,) = search([source], [number])
        assert tokens(alone) == tokens(found)
        assert [h.score for h in alone] == pytest.approx([h.score for h in found], abs=1e-5)
    assert len({derive_seed(seed, number) for seed in range(5) for number in range(5)}) == 25


# --- Lengths and batches


def test_every_source_has_its_own_limit() -> None:
    """Half of the length with EOS, and one more."""
    model = seq2seq("dynamicconv")
    step = model.step

    def never_ends(tokens, state):  # type: ignore[no-untyped-def]
        scores, state = step(tokens, state)
        return scores - 1e4 * torch.nn.functional.one_hot(torch.tensor(EOS), VOCAB), state

    model.step = never_ends  # type: ignore[method-assign]
    found = make(model, beam=2, max_len_ratio=0.5, max_len_plus=1, min_len=1)(SOURCES, range(4))
    assert [len(each[0].tokens) for each in found] == [3, 2, 4, 1]


def test_the_prompt_does_not_count_as_output() -> None:
    """Attention keeps as many positions as a search will step, the prompt's included."""
    search = make(language_model("attention", torch.float32), beam=2, max_len_plus=3)
    (found,) = search([[4, 5, 6, 7, 8]], [0])
    assert max(len(h.tokens) for h in found) == 3
    with pytest.raises(ValueError, match="no prefix"):
        search([[4]], [1], [[5]])


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
    assert [*itertools.chain(*bounded[::-1])] == [*itertools.chain(*found[::-1])]
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


def test_padding_stands_on_the_right_and_has_no_probability() -> None:
    rows = pad_right([[4], [5, 6, 7]], CPU)
    assert rows.tolist() == [[4, PAD, PAD], [5, 6, 7]]
    target = pad_right([[4, EOS], [5, 6, EOS]], CPU)
    read = pad_right([[EOS, 4], [EOS, 5, 6]], CPU)
    found = token_logprobs(seq2seq("dynamicconv"), (rows, read), target)
    assert found[0, 2] == 0.0 and (found[target != PAD] < 0.0).all()
