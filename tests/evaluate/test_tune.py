"""Tuned values are those that a search with the same settings would have scored."""

from dataclasses import replace

import pytest
import torch

from lightconv.data.prepared import Prepared
from lightconv.decode import DecodeConfig, Hypothesis
from lightconv.decode.search import rank
from lightconv.evaluate import METRICS
from lightconv.evaluate.metrics import Summed
from lightconv.evaluate.tune import Trial, Tuner, choose_metric, try_alphas
from lightconv.models import Seq2Seq
from lightconv.models.folder import ModelFolder
from tests.evaluate.examples import GOLDEN

PAIRS, DATA = GOLDEN / "end" / "pairs" / "model", GOLDEN / "data" / "pairs"
GRID = {"min_len": ("1", "9"), "length_penalty": ("power", "stepwise")}


@pytest.fixture
def noisy() -> Seq2Seq:
    """A model that is wrong often enough for penalties to matter."""
    model = ModelFolder(PAIRS).load()
    assert isinstance(model, Seq2Seq)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.add_(0.3 * parameter.std() * noise)
    return model


def test_one_search_serves_every_penalty(noisy: Seq2Seq) -> None:
    """Against searches with these values, one for each."""
    tuner = Tuner(PAIRS, DATA, alphas=(0.0, 0.5, 3.0), grid=GRID)
    examples, metric = tuner.examples, METRICS["sacrebleu"]
    assert isinstance(metric, Summed)
    trials = []
    for config in (replace(each, beam=4) for each in tuner.configs):
        found = examples.search(noisy, config).hypotheses
        trials += try_alphas(examples, found, config, tuner.alphas, metric)
    assert len(trials) == 12
    assert len({round(trial.value, 6) for trial in trials}) > 3, "or the test says little"
    for trial in trials:
        _, _, (score,) = examples.evaluate(noisy, trial.config, [metric])
        assert trial.value == pytest.approx(score.value)


def test_the_grid_is_a_product() -> None:
    tuner = Tuner(PAIRS, DATA, grid=GRID)
    wanted = [(1, "power"), (1, "stepwise"), (9, "power"), (9, "stepwise")]
    assert [(each.min_len, each.length_penalty) for each in tuner.configs] == wanted
    assert {each.alpha for each in tuner.configs} == {0.7}
    assert Tuner(PAIRS, DATA).configs == [tuner.decode]


def test_ranks_by_hand() -> None:
    short = Hypothesis([4, 2], -2.0, [-1.0, -1.0])
    long = Hypothesis([4, 5, 6, 2], -3.0, [-1.0, -1.0, -0.5, -0.5])
    none = DecodeConfig(alpha=0.0)
    assert rank([short, long], none, none) == [short, long]
    mean = rank([short, long], none, DecodeConfig(alpha=1.0))
    assert [(len(each.tokens), each.score) for each in mean] == [(4, -0.75), (2, -1.0)]
    # What a score has besides the penalised sum stays: here 0.5.
    besides = [each._replace(score=each.score - 0.5) for each in (short, long)]
    assert [each.score for each in rank(besides, none, DecodeConfig(alpha=1.0))] == [-1.25, -1.5]


def test_the_nearest_alpha_of_equals() -> None:
    tuner = Tuner(PAIRS, DATA)  # its alpha is 0.7
    trials = [Trial(DecodeConfig(alpha=alpha), 3.0) for alpha in (0.0, 0.6, 1.0)]
    assert tuner.best(trials).config.alpha == 0.6
    trials.append(Trial(DecodeConfig(alpha=2.0), 3.1))
    assert tuner.best(trials).config.alpha == 2.0


def test_the_measure() -> None:
    prepared = Prepared.open(DATA)
    assert choose_metric(prepared, None).name == "sacrebleu"
    assert choose_metric(prepared, "tokenized_bleu").name == "tokenized_bleu"
