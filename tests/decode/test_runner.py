"""Which of the two steps a model, that both say the same, and that no choice is silent."""

import io
import sys
from pathlib import Path

import pytest
import torch

import lightconv
from lightconv import cli
from lightconv.data.vocabulary import Vocabulary
from lightconv.decode.engine import Engine
from lightconv.decode.runner import bare_model, choose_runner
from lightconv.decode.text import TextSeq2Seq
from lightconv.models import AdaptiveConfig, DynamicConvConfig, LanguageModel, LanguageModelConfig
from lightconv.ops.library import native
from tests.trained import Trained

needs_kernels = pytest.mark.skipif(native().library is None, reason="no C++ kernels")


@pytest.fixture
def pairs(copies: Trained) -> TextSeq2Seq:
    model = lightconv.load(copies.model)
    assert isinstance(model, TextSeq2Seq)
    return model


def banded() -> LanguageModel:
    """An output that the engine does not know."""
    layers = (DynamicConvConfig(kernel=3, heads=2),)
    bands = AdaptiveConfig(cutoffs=(6,), factor=2)
    config = LanguageModelConfig(dim=8, ffn_dim=8, layers=layers, vocab=9, adaptive=bands)
    return LanguageModel(config).eval()


@needs_kernels
def test_both_say_the_same(copies: Trained, pairs: TextSeq2Seq) -> None:
    lines = list(copies.prepared.texts("test", "source"))
    ours = list(pairs.answers(lines, engine="native", n_best=2))
    torchs = list(pairs.answers(lines, engine="torch", n_best=2))
    for one, other in zip(ours, torchs, strict=True):
        assert one.text == other.text
        for a, b in zip(one.outputs, other.outputs, strict=True):
            assert a.score == pytest.approx(b.score, abs=1e-4)


@needs_kernels
def test_eight_bits_still_copy(pairs: TextSeq2Seq) -> None:
    assert pairs.translate(["w1 w2 w3", "w9"], quantize="int8") == ["w1 w2 w3", "w9"]


@needs_kernels
def test_the_engine_is_made_once_and_anew_when_the_model_changes(pairs: TextSeq2Seq) -> None:
    def engine() -> object:
        return pairs.translator().search.runner  # type: ignore[attr-defined]

    first = engine()
    assert isinstance(first, Engine) and engine() is first
    before = pairs.score(["w1 w2"], ["w1 w2"])[0].logprob
    with torch.no_grad():
        pairs.output.weight.mul_(0.5)
    assert engine() is not first
    (answer,) = pairs.answers(["w1 w2"])
    after = pairs.score(["w1 w2"], [answer.text])[0].logprob
    assert sum(answer.outputs[0].logprobs) == pytest.approx(after, abs=1e-4)
    assert after < before


def test_a_bare_model_shares_its_parameters(pairs: TextSeq2Seq) -> None:
    bare = bare_model(pairs)
    assert type(bare) is lightconv.models.Seq2Seq and not bare.training
    own = dict(pairs.named_parameters())
    assert all(each.data_ptr() == own[name].data_ptr() for name, each in bare.named_parameters())
    assert bare_model(bare) is bare


def test_what_cannot_run_is_said() -> None:
    model, told = banded(), list[str]()
    assert choose_runner(model, tell=told.append) is model
    assert len(told) == 1 and told[0].startswith("decoding in torch, not in the C++ engine: ")
    assert choose_runner(model, "torch", tell=told.append) is model and len(told) == 1
    with pytest.raises(ValueError, match="engine='native' cannot run this model"):
        choose_runner(model, "native")
    with pytest.raises(ValueError, match="quantize='int8' cannot run this model"):
        choose_runner(model, quantize="int8")
    with pytest.raises(ValueError, match="needs the C\\+\\+ engine, got engine='torch'"):
        choose_runner(model, "torch", "int8")


def test_the_command_says_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    banded().save(tmp_path / "model", vocabulary=Vocabulary.of("abcde"))
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"a b\n")))
    command = ["generate", str(tmp_path / "model"), "--set", "max_len_plus=3"]
    assert cli.main(command) == 0
    assert capsys.readouterr().err.startswith("note: decoding in torch, not in the C++ engine")
    assert cli.main([*command, "--engine", "native"]) == 2
    assert "error: engine='native' cannot run this model" in capsys.readouterr().err
