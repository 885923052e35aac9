"""What `lightconv.load` returns takes text, and is the model it was before."""

import copy
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import lightconv
from lightconv.data.vocabulary import Vocabulary
from lightconv.decode import DecodeConfig
from lightconv.decode.text import TextModel
from lightconv.models import LanguageModel, Seq2Seq
from lightconv.models.folder import build
from tests.trained import Trained, pair_config, text_config


def test_it_translates(copies: Trained) -> None:
    model = lightconv.load(copies.model)
    assert model.translate(["w1 w2 w3", "", "w4 w4"]) == ["w1 w2 w3", "", "w4 w4"]
    assert model.translate([]) == []
    with pytest.warns(UserWarning, match="only the first 2 are read"):
        assert model.summarize(["w1 w2 w3"], max_source=2) == ["w1 w2"]
    assert "model.translate([" in (copies.model / "README.md").read_text()
    assert lightconv.load(copies.run).translate(["w5 w0"], beam=1) == ["w5 w0"], "a run will do"


def test_the_search_is_that_of_the_folder(copies: Trained) -> None:
    model = lightconv.load(copies.model)
    expected = DecodeConfig(beam=3, alpha=0.7, max_len_ratio=1.0, max_len_plus=5)
    assert model.options({}).decode == expected
    # Lengths count EOS, of source and target.
    for source, limits, words in (
        ("w1 w2 w3 w4", {"max_len_ratio": 0.0, "max_len_plus": 3}, 2),
        ("w1 w2 w3 w4", {"max_len_ratio": 0.4, "max_len_plus": 0}, 1),
        ("w1", {"min_len": 4}, 3),
    ):
        (text,) = model.translate([source], **limits)
        assert len(text.split()) == words


def test_it_generates(texts: Trained) -> None:
    model = lightconv.load(texts.model)
    prompts = ["the", "on Tuesday", "", "the"]
    found = model.generate(prompts, max_len_plus=30)
    for prompt, text in zip(prompts, found, strict=True):
        assert text.startswith(prompt) and len(text) > len(prompt)
    assert found[0] == found[3]
    # Alone, where no other prompt has another length.
    assert model.generate(["on Tuesday"], max_len_plus=30) == [found[1]]


def test_draws_have_seeds(texts: Trained) -> None:
    model = lightconv.load(texts.model)

    def draw(seed: int, prompts: list[str], **options: Any) -> list[str]:
        return model.generate(prompts, sample=True, seed=seed, max_len_plus=30, **options)

    first = draw(1, ["the", "the", ""])
    assert first == draw(1, ["the", "the", ""])
    assert first != draw(2, ["the", "the", ""])
    assert first[0] != first[1], "equal prompts get draws of their own"
    (answer,) = model.answers(["the"], sample=True, n_best=4, beam=1)
    assert len(answer.outputs) == 4
    assert draw(3, ["the"], top_k=1) == model.generate(["the"], beam=1, max_len_plus=30)
    with pytest.raises(ValueError, match=r"top_p=2\.0"):
        draw(3, ["the"], top_p=2.0)


def test_it_holds_the_model_and_answers_for_it(
    copies: Trained, texts: Trained, tmp_path: Path
) -> None:
    pairs, text = lightconv.load(copies.model), lightconv.load(texts.model)
    assert type(pairs.model) is Seq2Seq and type(text.model) is LanguageModel
    assert not pairs.training and pairs.train().training and not pairs.eval().training
    assert pairs.config == pairs.model.config and isinstance(pairs.eval(), TextModel)
    plain = Seq2Seq.from_pretrained(copies.model)
    assert list(plain.state_dict()) == list(pairs.state_dict())
    assert list(dict(plain.named_parameters())) == list(dict(pairs.named_parameters()))
    ids = torch.tensor([[4, 5, 2]])
    assert torch.equal(plain(ids, ids), pairs(ids, ids))
    assert pairs.to(torch.float64)(ids, ids).dtype == torch.float64
    assert copy.deepcopy(text).score(["the"]) == text.score(["the"])
    with pytest.raises(AttributeError, match="nothing"):
        _ = pairs.nothing
    again = tmp_path / "again"
    text.save(again, vocabulary=text.pipeline.vocabularies())
    assert lightconv.load(again).score(["the"])[0].logprobs == text.score(["the"])[0].logprobs


def test_an_ensemble_is_the_mean_of_its_models(copies: Trained) -> None:
    first = lightconv.load(copies.model)
    second = lightconv.load(copies.model)
    with torch.no_grad():
        for parameter in second.parameters():
            parameter.mul_(0.7)
    sources = ["w1 w2", "w3 w4 w5 w6"]
    for engine in ("auto", "torch"):
        options = {"ensemble": [second], "engine": engine, "coverage": 0.0}
        answers = list(first.answers(sources, **options))
        targets = [answer.text for answer in answers]
        each = [[s.logprobs for s in model.score(sources, targets)] for model in (first, second)]
        for answer, *logprobs in zip(answers, *each, strict=True):
            mean = torch.tensor(logprobs).exp().mean(0).log()
            assert answer.outputs[0].logprobs == pytest.approx(mean.tolist(), abs=1e-4)
    looking = list(first.answers(sources, ensemble=[second], coverage=0.2))
    assert [answer.text for answer in looking] == targets


def untrained(path: Path, words: Vocabulary | None, config: Any = None) -> TextModel:
    build(config or pair_config((9, 9))).save(path, vocabulary=words)
    return lightconv.load(path)


def test_a_model_with_a_vocabulary_only_reads_words(tmp_path: Path) -> None:
    """Such as imported ones."""
    words = Vocabulary.of("abcde")
    model = untrained(tmp_path / "pairs", words)
    (text,) = model.translate(["a b zebra"], max_len_plus=4)
    assert set(text.split()) <= {*"abcde", "<unk>", "<s>"}
    assert untrained(tmp_path / "texts", words, text_config(9)).score(["a b"])[0].ids == [4, 5, 2]


def test_pieces_are_put_together_without_codes(tmp_path: Path) -> None:
    """The codes of an imported model may be lost: its texts come cut, `un@@ able`."""
    model = untrained(tmp_path / "pairs", Vocabulary.of(("un@@", "able", "a", "b", "c")))
    assert model.pipeline.encode(0, ["un@@ able a"]) == [[4, 5, 6]]
    ids = [6, 4, 4, 5, 7, 4, 2]
    assert model.pipeline.decode(1, ids) == "a ununable b un"
    assert model.pipeline.decode_words(1, ids) == "a ununable b un"
    (answer,) = model.answers(["a b"], max_len_plus=9)
    special = ("<s>", "<pad>", "</s>")
    joined = " ".join(token for token in answer.outputs[0].tokens if token not in special)
    (text,) = model.translate(["a b"], max_len_plus=9, subwords=True)
    assert text == joined and answer.text == f"{joined} ".replace("@@ ", "").removesuffix(" ")


def test_a_model_without_a_vocabulary_says_so(tmp_path: Path) -> None:
    model = untrained(tmp_path / "model", None)
    assert model(torch.tensor([[4, 2]]), torch.tensor([[2]])).shape == (1, 1, 9)
    with pytest.raises(ValueError, match=r"has no vocabulary.*reads ids only"):
        model.translate(["a"])


def test_importing_lightconv_imports_none_of_it() -> None:
    code = (
        "import sys, lightconv; assert 'torch' not in sys.modules; "
        "assert {n for n in sys.modules if n.startswith('lightconv.')} == {'lightconv.lazy'}"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_wrong_calls(copies: Trained, texts: Trained) -> None:
    pairs, text = lightconv.load(copies.model), lightconv.load(texts.model)
    wrong: dict[str, Callable[[], object]] = {
        "beam=0": lambda: pairs.translate(["w1"], beam=0),
        "beem": lambda: pairs.translate(["w1"], beem=3),
        "line 1: at least 9": lambda: pairs.translate(["w1"], min_len=9, max_len_plus=1),
        "cannot generate, expected translate or summarize": lambda: pairs.generate(["w1"]),
        r"expected score\(sources, targets": lambda: pairs.score(["w1"]),
        "1 sources and 0 targets": lambda: pairs.score(["w1"], []),
        "one text, expected a list": lambda: pairs.translate("w1"),
        "ensemble is one model": lambda: pairs.translate(["w1"], ensemble=pairs),
        "ensemble is one": lambda: pairs.translate(["w1"], ensemble=str(copies.model)),
        r"ensemble\[0\] is \w+, expected": lambda: pairs.translate(["w"], ensemble=[copies.model]),
        r"ensemble\[1\] is another": lambda: pairs.translate(["w1"], ensemble=[pairs, text]),
        "alignments are for sources": lambda: text.generate(["the"], alignments=True),
        "cannot begin outputs": lambda: text.generate(["the"], prefixes=["a"]),
        "cannot translate, expected generate": lambda: text.translate(["a"]),
        "scores texts": lambda: text.score(["a"], ["b"]),
    }
    for message, call in wrong.items():
        with pytest.raises(ValueError, match=message):
            call()


@pytest.mark.parametrize("engine", ["native", "torch"])
@pytest.mark.parametrize(
    "duplicate", [copy.deepcopy, copy.copy, lambda model: pickle.loads(pickle.dumps(model))]
)
def test_copies_after_use(duplicate: Callable[[Any], Any], engine: str, copies: Trained) -> None:
    """D9: the backend of the first holds addresses, which mean nothing elsewhere."""
    model = lightconv.load(copies.model)
    assert model.translate(["w1 w2"], engine=engine) == ["w1 w2"]
    other = duplicate(model)
    del model
    assert other.translate(["w1 w2"], engine=engine) == ["w1 w2"]
