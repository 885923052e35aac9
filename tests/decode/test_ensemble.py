"""Several tables as one model: the mean of their probabilities, and nothing else."""

import math

import pytest
import torch

from lightconv.decode import beam_search, ensemble_steps
from lightconv.decode.engine import Engine
from lightconv.decode.ensemble import Ensemble
from lightconv.ops.library import native

from ..models.examples import PAD, SOURCE_VOCAB, language_model, seq2seq, tokens
from .tables import EOS, Table, Told, define


def test_probabilities_are_averaged() -> None:
    tables = [Table(4, 9, 8, seed) for seed in (1, 2, 3)]
    mean = Table(4, 9, 8)
    mean.logits = torch.stack([table.logits.softmax(-1) for table in tables]).mean(0).log()
    steps = ensemble_steps([table.step for table in tables])
    states = tuple(table.start() for table in tables)
    found = beam_search(steps, states, torch.full((4,), EOS), beam=3, max_len=8, eos=EOS, pad=1)
    for sentence, hypotheses in enumerate(found):
        expected = define(mean, sentence, 3, Told(8, forbidden=(1,)), lambda n: n)
        assert [h.tokens for h in hypotheses] == [tokens for _, tokens in expected]
        assert [h.score for h in hypotheses] == pytest.approx([score for score, _ in expected])


def test_one_model_is_itself() -> None:
    table = Table(4, 9, 8)
    found = beam_search(
        ensemble_steps([table.step]), (table.start(),), torch.full((4,), EOS),
        beam=3, max_len=8, eos=EOS,
    )  # fmt: skip
    for ours, alone in zip(found, table.search(beam=3, max_len=8), strict=True):
        assert [h.tokens for h in ours] == [h.tokens for h in alone]
        assert [h.score for h in ours] == pytest.approx([h.score for h in alone])


def test_attention_is_averaged_if_all_give_it() -> None:
    a, b = Table(3, 9, 8, 1), Table(3, 9, 8, 2)
    first = torch.full((3,), EOS)
    states = (a.start(), b.start())
    steps = ensemble_steps([a.step_attending, b.step_attending])
    for sentence, (best, *_) in enumerate(
        beam_search(steps, states, first, beam=2, max_len=8, eos=EOS)
    ):
        looks = [torch.tensor(table.look(sentence, best.tokens)) for table in (a, b)]
        assert best.attention is not None
        torch.testing.assert_close(best.attention, (looks[0] + looks[1]) / 2)
    steps = ensemble_steps([a.step_attending, b.step])
    found = beam_search(steps, (a.start(), b.start()), first, beam=2, max_len=8, eos=EOS)
    assert found[0][0].attention is None


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


@pytest.mark.skipif(native().library is None, reason="no C++ kernels")
def test_engines_and_models_go_together() -> None:
    models = [seq2seq(kind, torch.float32) for kind in ("dynamicconv", "attention", "average")]
    runner = Ensemble([Engine(models[0]), models[1], Engine(models[2])])
    source = tokens(4, 6, SOURCE_VOCAB)
    state = runner.start(runner.encode(source), 8)
    options = {"beam": 3, "max_len": 8, "eos": EOS, "pad": PAD, "reorder": runner.reorder}
    found = beam_search(runner.step, state, torch.full((4,), EOS), **options)
    for row, hypotheses in zip(source, found, strict=True):
        for h in hypotheses:
            read = torch.tensor([[EOS, *h.tokens[:-1]]])
            with torch.inference_mode():
                each = torch.stack([model(row[None], read).softmax(-1)[0] for model in models])
            expected = each.mean(0).log()[range(len(h.tokens)), h.tokens]
            assert h.logprobs == pytest.approx(expected.tolist(), abs=1e-4)


def test_texts_go_together() -> None:
    models = [language_model(kind) for kind in ("lightconv", "attention")]
    runner = Ensemble(models)
    state = runner.start(2, 9)
    _, state = runner.step(torch.tensor([[EOS, 5], [EOS, 7]]), state)
    state = runner.reorder(state, torch.tensor([1, 1, 0]))
    scores, _ = runner.step(torch.tensor([[4], [6], [8]]), state)
    read = torch.tensor([[EOS, 7, 4], [EOS, 7, 6], [EOS, 5, 8]])
    with torch.inference_mode():
        each = torch.stack([model(read)[:, -1].softmax(-1) for model in models])
    torch.testing.assert_close(scores[:, 0].exp(), each.mean(0))
