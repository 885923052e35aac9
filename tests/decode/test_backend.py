"""Backends: the engine and PyTorch agree, the choice is told, an ensemble is a mean."""

import math
from typing import Any

import pytest
import torch

import lightconv
from lightconv.decode import Ensemble, Hypothesis, beam_search, ensemble_steps
from lightconv.decode.backend import Backend, TorchBackend, choose_backend
from lightconv.decode.engine import Engine
from lightconv.decode.options import Options, TextOptions
from lightconv.decode.text import TextModel
from lightconv.models import LanguageModel
from lightconv.ops.library import native
from tests.trained import Trained

from ..models.examples import PAD, SOURCE_VOCAB, language_model, seq2seq, tokens
from .fakes import BANDS, words_model
from .tables import EOS, Table, Told, define

needs_kernels = pytest.mark.skipif(native().library is None, reason="no C++ kernels")


@pytest.fixture
def pairs(copies: Trained) -> TextModel:
    return lightconv.load(copies.model)


@needs_kernels
def test_engine_and_torch_agree(copies: Trained, pairs: TextModel) -> None:
    lines = list(copies.prepared.texts("test", "source"))
    ours = list(pairs.answers(lines, engine="native", n_best=2))
    torchs = list(pairs.answers(lines, engine="torch", n_best=2))
    for one, other in zip(ours, torchs, strict=True):
        assert one.text == other.text
        for a, b in zip(one.outputs, other.outputs, strict=True):
            assert a.score == pytest.approx(b.score, abs=1e-4)
    assert pairs.translate(["w1 w2 w3", "w9"], quantize="int8") == ["w1 w2 w3", "w9"]


@needs_kernels
def test_the_engine_is_compiled_again_only_when_the_model_changes(pairs: TextModel) -> None:
    def backend() -> Backend:
        search: Any = pairs.build_translator(pairs.options({})).search
        return search.backend

    first = backend()
    assert isinstance(first, Engine) and backend() is first
    before = pairs.score(["w1 w2"], ["w1 w2"])[0].logprob
    with torch.no_grad():
        pairs.output.weight.mul_(0.5)
    assert backend() is not first
    (answer,) = pairs.answers(["w1 w2"])
    after = pairs.score(["w1 w2"], [answer.text])[0].logprob
    assert sum(answer.outputs[0].logprobs) == pytest.approx(after, abs=1e-4)
    assert after < before


def choose(model: LanguageModel, told: list[str], **options: Any) -> Backend:
    return choose_backend([model], Options(text=TextOptions(**options)), tell=told.append)


def test_a_model_that_the_engine_does_not_support() -> None:
    model, told = words_model(BANDS), list[str]()
    assert choose(model, told).name == "torch"
    assert len(told) == 1 and told[0].startswith("decoding in torch, not in the C++ engine: ")
    assert choose(model, told, engine="torch").name == "torch" and len(told) == 1
    for options, asked in (({"engine": "native"}, "engine='native'"), ({"quantize": "int8"}, "qu")):
        with pytest.raises(ValueError, match=f"^{asked}.* cannot run this model"):
            choose(model, told, **options)


def test_the_former_module_of_ensembles() -> None:
    from lightconv.decode.ensemble import Ensemble as Former

    assert Former is Ensemble and lightconv.decode.ensemble.ensemble_steps is ensemble_steps


# --- Ensembles


@pytest.mark.parametrize("seeds", [(1, 2, 3), (1,)])
def test_probabilities_are_averaged(seeds: tuple[int, ...]) -> None:
    tables = [Table(4, 9, 8, seed) for seed in seeds]
    mean = Table(4, 9, 8)
    mean.logits = torch.stack([table.logits.softmax(-1) for table in tables]).mean(0).log()
    steps = ensemble_steps([table.step for table in tables])
    states = tuple(table.start() for table in tables)
    found = beam_search(steps, states, torch.full((4,), EOS), beam=3, max_len=8, eos=EOS, pad=1)
    for sentence, hypotheses in enumerate(found):
        expected = define(mean, sentence, 3, Told(8, forbidden=(1,)), lambda n: n)
        assert [h.tokens for h in hypotheses] == [tokens for _, tokens in expected]
        assert [h.score for h in hypotheses] == pytest.approx([score for score, _ in expected])


def test_attention_is_averaged_if_all_give_it() -> None:
    a, b = Table(3, 9, 8, 1), Table(3, 9, 8, 2)

    def search(*steps: Any) -> list[list[Hypothesis]]:
        states, first = (a.start(), b.start()), torch.full((3,), EOS)
        return beam_search(ensemble_steps(steps), states, first, beam=2, max_len=8, eos=EOS)

    for sentence, (best, *_) in enumerate(search(a.step_attending, b.step_attending)):
        looks = [torch.tensor(table.look(sentence, best.tokens)) for table in (a, b)]
        assert best.attention is not None
        torch.testing.assert_close(best.attention, (looks[0] + looks[1]) / 2)
    assert search(a.step_attending, b.step)[0][0].attention is None


def test_impossible_words_stay_impossible_only_for_all() -> None:
    a, b = Table(1, 4, 1), Table(1, 4, 1)
    a.logits[..., 3] = b.logits[..., 3] = -torch.inf
    a.logits[..., 0] = -torch.inf
    steps = ensemble_steps([a.step, b.step])
    scores, _ = steps(torch.tensor([[EOS]]), (a.start(), b.start()))[:2]
    assert scores[0, 0, 3] == -torch.inf
    half = b.logits[0, 0, b.digest([])].log_softmax(-1)[0].item() - math.log(2)
    assert scores[0, 0, 0].item() == pytest.approx(half)


def test_what_cannot_be_combined_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one"):
        ensemble_steps([])
    a, b = Table(1, 4, 1), Table(1, 5, 1)
    with pytest.raises(ValueError, match=r"one vocabulary, got \[4, 5\] words"):
        ensemble_steps([a.step, b.step])(torch.tensor([[EOS]]), (a.start(), b.start()))


@needs_kernels
def test_engines_and_models_go_together() -> None:
    models = [seq2seq(kind, torch.float32) for kind in ("dynamicconv", "attention", "average")]
    backend = Ensemble([Engine(models[0]), models[1], Engine(models[2])])
    assert backend.name == "torch" and Ensemble(backend.backends[::2]).name == "native"
    source = tokens(4, 6, SOURCE_VOCAB)
    state = backend.start(backend.encode(source), 8)
    options = {"beam": 3, "max_len": 8, "eos": EOS, "pad": PAD, "reorder": backend.reorder}
    found = beam_search(backend.step, state, torch.full((4,), EOS), **options)
    for row, hypotheses in zip(source, found, strict=True):
        for h in hypotheses:
            read = torch.tensor([[EOS, *h.tokens[:-1]]])
            with torch.inference_mode():
                each = torch.stack([model(row[None], read).softmax(-1)[0] for model in models])
            expected = each.mean(0).log()[range(len(h.tokens)), h.tokens]
            assert h.logprobs == pytest.approx(expected.tolist(), abs=1e-4)


def test_texts_go_together() -> None:
    models = [language_model(kind) for kind in ("lightconv", "attention")]
    backend = Ensemble([models[0], TorchBackend(models[1])])
    state = backend.start(2, 9)
    _, state = backend.step(torch.tensor([[EOS, 5], [EOS, 7]]), state)
    state = backend.reorder(state, torch.tensor([1, 1, 0]))
    scores, _ = backend.step(torch.tensor([[4], [6], [8]]), state)
    read = torch.tensor([[EOS, 7, 4], [EOS, 7, 6], [EOS, 5, 8]])
    with torch.inference_mode():
        each = torch.stack([model(read)[:, -1].softmax(-1) for model in models])
    torch.testing.assert_close(scores[:, 0].exp(), each.mean(0))
