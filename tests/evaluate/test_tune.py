"""What is tuned is what a search with that value would have scored, and it is written down."""

import json
import shutil
from argparse import ArgumentTypeError
from dataclasses import replace
from pathlib import Path

import pytest

import lightconv
from lightconv import cli
from lightconv.decode.beam import Hypothesis
from lightconv.decode.config import DecodeConfig
from lightconv.decode.search import rank
from lightconv.decode.text import TextSeq2Seq
from lightconv.evaluate import METRICS
from lightconv.evaluate.bootstrap import Summed
from lightconv.evaluate.forms import of_references
from lightconv.evaluate.system import evaluate_pairs, search_split
from lightconv.evaluate.tune.grid import Trial, best_trial, choose_metric, tune_search
from lightconv.evaluate.tune.numbers import parse_counts, parse_grid, parse_numbers
from lightconv.models.folder import ModelFolder
from lightconv.train.checkpoints import Checkpoints, average
from tests.trained import DECODE, Trained

ALPHAS = (0.0, 0.5, 3.0)


@pytest.fixture
def early(copies: Trained) -> TextSeq2Seq:
    """A model that is wrong often enough for penalties to matter: noise on its output."""
    import torch

    model = lightconv.load(copies.model)
    assert isinstance(model, TextSeq2Seq)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(parameter + 0.6 * parameter.std() * noise)
    return model


def test_one_search_knows_every_penalty(copies: Trained, early: TextSeq2Seq) -> None:
    """Against searches with these values, one for each."""
    prepared, metric = copies.prepared, METRICS["sacrebleu"]
    assert isinstance(metric, Summed)
    config = replace(DECODE, beam=4)
    searches: list[DecodeConfig] = []

    def search(setting: DecodeConfig) -> list[list[Hypothesis]]:
        searches.append(setting)
        return search_split(early, prepared, "valid", setting).hypotheses

    trials = list(
        tune_search(
            search,
            prepared,
            of_references(prepared, "valid"),
            metric,
            config,
            alphas=ALPHAS,
            grid={"min_len": ("1", "3"), "length_penalty": ("power", "stepwise")},
        )
    )
    assert len(searches) == 4 and len(trials) == 12
    assert len({round(trial.value, 6) for trial in trials}) > 3, "or the test says little"
    for trial in trials:
        _, _, (score,) = evaluate_pairs(
            early, prepared, "valid", trial.config, [METRICS["sacrebleu"]]
        )
        assert trial.value == pytest.approx(score.value)


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


def test_of_equals_the_nearest_alpha() -> None:
    trials = [Trial(DecodeConfig(alpha=alpha), 3.0) for alpha in (0.0, 0.5, 1.0)]
    assert best_trial(trials, 0.6).config.alpha == 0.5
    trials.append(Trial(DecodeConfig(alpha=2.0), 3.1))
    assert best_trial(trials, 0.6).config.alpha == 2.0


def test_what_is_measured(copies: Trained) -> None:
    assert choose_metric(copies.prepared, None).name == "sacrebleu"
    assert choose_metric(copies.prepared, "tokenized_bleu").name == "tokenized_bleu"
    with pytest.raises(ValueError, match="chrf is no sum over lines"):
        choose_metric(copies.prepared, "chrf")


def test_lists_of_values() -> None:
    assert parse_numbers("0,0.5,2") == (0.0, 0.5, 2.0)
    assert parse_counts("5,1,5") == (1, 5)
    assert parse_grid("max_len_plus=100, 140") == ("max_len_plus", ("100", "140"))
    for parse, wrong in (
        (parse_numbers, "a"),
        (parse_numbers, "-1"),
        (parse_numbers, "nan"),
        (parse_counts, "0"),
        (parse_counts, "1.5"),
        (parse_grid, "beam"),
        (parse_grid, "beam="),
        (parse_grid, "alpha=1"),
    ):
        with pytest.raises(ArgumentTypeError):
            parse(wrong)


# --- The command


def tune(*arguments: object) -> int:
    return cli.main(["tune", *map(str, arguments)])


def test_the_choice_is_written_into_the_model(
    copies: Trained, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = shutil.copytree(copies.model, tmp_path / "model")
    before = (model / "config.json").read_bytes()
    common = (model, "--data", copies.data, "--alphas", "0.2,0.9", "--grid", "beam=2,4")
    assert tune(*common, "--limit", "5", "--dry-run") == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert rows[0] == ["checkpoints", "alpha", "beam", "score"]
    assert [row[0] for row in rows].count("*") == 1 and len(rows) == 5
    assert (model / "config.json").read_bytes() == before
    assert tune(*common) == 0
    out, err = capsys.readouterr()
    (best,) = (line.split() for line in out.splitlines() if "*" in line)
    assert err.count("note: decoding in ") == 1
    tables = ModelFolder(model).tables
    assert tables["decode"] == json.loads(before)["decode"] | {
        "alpha": float(best[2]),
        "beam": int(best[3]),
    }
    assert tables["tuned"]["split"] == "valid" and tables["tuned"]["lines"] == 40
    assert tables["tuned"]["value"] == pytest.approx(float(best[4]), abs=0.01)
    assert lightconv.load(model).translate(["w1 w2"]) == ["w1 w2"]
    assert {path.name for path in model.iterdir()} == {path.name for path in copies.model.iterdir()}


def test_a_run_chooses_its_checkpoints(
    copies: Trained, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = shutil.copytree(copies.run, tmp_path / "run")
    assert tune(run, "--data", copies.data, "--alphas", "1", "--counts", "2", "--limit", "9") == 0
    (best,) = (line.split() for line in capsys.readouterr().out.splitlines() if "*" in line)
    tables = ModelFolder(run / "model").tables
    steps = tables["tuned"]["averaged"]
    assert steps == [40, 80, 120][-int(best[1]) :]
    folders = Checkpoints(run / "checkpoints", writer=False).folders()
    wanted = average([folders[step] for step in steps])
    found = dict(lightconv.load(run / "model").named_parameters())
    assert all((wanted[name] == tensor).all() for name, tensor in found.items())
    assert tables["decode"]["alpha"] == 1.0 and tables["task"]["corpus"] == "synthetic-copy"


def test_a_run_of_texts_is_tuned_by_perplexity(
    texts: Trained, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = shutil.copytree(texts.run, tmp_path / "run")
    assert tune(run, "--data", texts.data) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()[1:]]
    values = {int(row[-3]): float(row[-1]) for row in rows}
    (best,) = (row for row in rows if row[0] == "*")
    assert values[int(best[1])] == min(values.values())
    assert set(values) == {1, 2, 3}
    assert ModelFolder(run / "model").tables["tuned"]["metric"] == "perplexity"


def test_mistakes_are_one_line(
    copies: Trained, texts: Trained, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def refused(*arguments: object) -> str:
        assert tune(*arguments) == 2
        out, err = capsys.readouterr()
        assert out == "" and err.startswith("error: ") and err.count("\n") == 1
        return err

    assert "--data" in refused(copies.model)
    data = ("--data", copies.data)
    assert "is no run" in refused(copies.model, *data, "--counts", "2")
    assert "3 regular checkpoints, expected at least 9" in refused(
        copies.run, *data, "--counts", "9"
    )
    assert "--alphas" in refused(copies.model, *data, "--alphas", "x")
    assert "no 'dev'" in refused(copies.model, *data, "--split", "dev")
    assert "expected a run" in refused(texts.model, "--data", texts.data)
    assert "holds texts" in refused(copies.model, "--data", texts.data)
    assert "bem" in refused(copies.model, *data, "--grid", "bem=1")
    assert "does not exist" in refused(tmp_path / "no", *data)
