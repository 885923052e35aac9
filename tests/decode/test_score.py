"""Scores against the model's own logits, and against what a search says of the same pairs."""

import json
import math
from itertools import count, islice
from typing import Any

import pytest
import torch

import lightconv
from lightconv.data import EOS
from lightconv.decode import DecodeConfig, score
from lightconv.decode.options import TextOptions
from lightconv.decode.score import Scorer
from lightconv.models import AdaptiveConfig
from lightconv.models.folder import build
from tests.decode.fakes import BANDS, words_model, words_pipeline
from tests.trained import Trained, pair_config

VOCAB = 9  # four special tokens and five words


def define(model: torch.nn.Module, *ids: list[int]) -> list[float]:
    """Of one text or pair alone: the logits, their softmax, the words that are there."""
    *sources, target = ids
    inputs = [*([*source, EOS] for source in sources), [EOS, *target]]
    with torch.no_grad():
        logits = model(*(torch.tensor([each]) for each in inputs))[0].double()
    return [logits.log_softmax(-1)[t, w].item() for t, w in enumerate([*target, EOS])]


def test_pairs_follow_the_definition() -> None:
    torch.manual_seed(0)
    model = build(pair_config((VOCAB, VOCAB))).eval()
    sources = ["a b c", "d", "", "a b c d . a b c d .", "zebra"]
    targets = ["c b", "", "a a a a a a a", "b", "d zebra"]
    found = Scorer(model, words_pipeline(), DecodeConfig(alpha=0.5)).score(sources, targets)
    pipeline = words_pipeline()
    for number, scored in enumerate(found, 1):
        source = pipeline.encode(0, [sources[number - 1]])[0]
        target = pipeline.encode(1, [targets[number - 1]])[0]
        expected = define(model, source, target)
        assert scored.logprobs == pytest.approx(expected, abs=1e-5)
        assert scored.line == number and scored.ids == [*target, EOS]
        assert scored.words == len(target)
        assert scored.score == pytest.approx(sum(expected) / len(expected) ** 0.5, abs=1e-5)
        assert scored.logprob == pytest.approx(sum(expected), abs=1e-5)
    assert found[4].tokens == ["d", "<unk>", "</s>"]


@pytest.mark.parametrize("bands", [None, BANDS])
def test_texts_follow_the_definition(
    bands: AdaptiveConfig | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = words_model(bands)
    monkeypatch.setattr(score, "CHUNK", 3)  # several parts, the last one not full
    lines = ["a b c d", "", "d d", "b . a"]
    found = Scorer(model, words_pipeline(sides=1), options=TextOptions(window=3)).score(lines)
    for line, scored in zip(lines, found, strict=True):
        expected = define(model, words_pipeline().encode(0, [line])[0])
        assert scored.logprobs == pytest.approx(expected, abs=1e-5)


def test_translate_and_score_agree(copies: Trained) -> None:
    """Every hypothesis of a trained model, scored on its own: 1e-5."""
    model = lightconv.load(copies.model)
    sources = list(copies.prepared.texts("test", "source"))
    answers = list(model.answers(sources, n_best=3))
    outputs = [(answer.source, output) for answer in answers for output in answer.outputs]
    scored = model.score([source for source, _ in outputs], [out.text for _, out in outputs])
    compared = 0
    for (_, output), found in zip(outputs, scored, strict=True):
        # A word that is unknown or special does not come back from text.
        if found.ids == output.ids:
            compared += 1
            assert found.score == pytest.approx(output.score, abs=1e-5)
            assert found.logprobs == pytest.approx(output.logprobs, abs=1e-5)
    assert compared > len(outputs) / 2


def test_perplexity_of_a_trained_model_is_that_of_its_training(texts: Trained) -> None:
    """The loop measured the same validation data by another way."""
    last = json.loads((texts.run / "log.jsonl").read_text().splitlines()[-1])
    lines = list(texts.prepared.texts("valid", "text"))
    found = lightconv.load(texts.model).score(lines)
    tokens = sum(len(scored.ids) for scored in found)
    total = sum(scored.logprob for scored in found)
    assert math.exp(-total / tokens) == pytest.approx(last["perplexity"], rel=1e-4)


def test_streams_of_any_length() -> None:
    found = Scorer(words_model(), words_pipeline(sides=1))
    endless = ([("a b",), ("c",)] for _ in count())
    assert [scored.line for scored in islice(found.score_windows(endless), 5)] == [1, 2, 3, 4, 5]
    assert found.score([]) == []


@pytest.mark.parametrize(
    "sides, texts, message",
    [
        (2, (["a", "b"], ["c"]), "^2 sources and 1 targets, expected the same number"),
        (2, (iter("ab"), iter("abc")), "^2 sources and 3 targets, "),
        (2, (["a"],), "^line 1: 1 texts, expected source and target"),
        (1, (["a"], ["b"]), "^line 1: 2 texts, expected one"),
        (1, ("a b",), "one text, expected a list"),
        (1, (["a", None],), r"texts\[1\] is NoneType"),
    ],
)
def test_a_wrong_number_of_texts_is_named(sides: int, texts: Any, message: str) -> None:
    scorer = Scorer(words_model(), words_pipeline(sides))
    with pytest.raises(ValueError, match=message):
        scorer.score(*texts)


def test_a_window_with_a_wrong_line_names_it() -> None:
    windows: Any = [[("a", "b")], [("a", "b"), ("c",)]]
    model = build(pair_config((VOCAB, VOCAB))).eval()
    with pytest.raises(ValueError, match="line 3: 1 texts, expected source"):
        list(Scorer(model, words_pipeline()).score_windows(windows))
