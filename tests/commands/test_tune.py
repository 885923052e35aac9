"""`lightconv tune` on folders of tests/golden."""

import json
import shutil
from pathlib import Path

import pytest

import lightconv
from lightconv import cli
from lightconv.models.folder import ModelFolder
from lightconv.train.run import Run

GOLDEN = Path(__file__).parents[1] / "golden"
PAIRS = (GOLDEN / "end" / "pairs", "--data", GOLDEN / "data" / "pairs")
TEXT = (GOLDEN / "end" / "text", "--data", GOLDEN / "data" / "text")


def tune(*arguments: object) -> int:
    return cli.main(["tune", *map(str, arguments)])


def test_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    more = ("--alphas", "0,1", "--grid", "beam=1, 4")
    for name, arguments in (("pairs", (*PAIRS, *more)), ("text", TEXT)):
        assert tune(*arguments, "--dry-run") == 0
        expected = Path(__file__).with_name("tables") / f"tune-{name}.txt"
        assert capsys.readouterr().out == expected.read_text()


def test_the_choice_is_written_into_the_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = shutil.copytree(PAIRS[0] / "model", tmp_path / "model")
    files = {path.name for path in model.iterdir()}
    before = (model / "config.json").read_bytes()
    common = (model, *PAIRS[1:], "--alphas", "0.2,0.9", "--grid", "beam=2,4")
    assert tune(*common, "--limit", "5", "--dry-run") == 0
    assert len(capsys.readouterr().out.splitlines()) == 5
    assert (model / "config.json").read_bytes() == before
    assert tune(*common) == 0
    out, err = capsys.readouterr()
    (best,) = (line.split() for line in out.splitlines() if "*" in line)
    assert err.count("note: decoding in ") == 1
    tables = ModelFolder(model).tables
    chosen = {"alpha": float(best[2]), "beam": int(best[3])}
    assert tables["decode"] == json.loads(before)["decode"] | chosen
    tuned = tables["tuned"]
    assert (tuned["metric"], tuned["split"], tuned["lines"]) == ("sacrebleu", "valid", 24)
    assert tuned["averaged"] == [] and len(tuned["data"]) == 64
    assert tuned["value"] == pytest.approx(float(best[4]), abs=0.01)
    assert lightconv.load(model).translate(["the cat"], **chosen) == (
        lightconv.load(model).translate(["the cat"])
    )
    assert {path.name for path in model.iterdir()} == files


def test_a_run_chooses_its_checkpoints(tmp_path: Path) -> None:
    run = shutil.copytree(PAIRS[0], tmp_path / "run")
    assert tune(run, *PAIRS[1:], "--alphas", "1", "--counts", "9,2,2", "--limit", "9") == 0
    folder = ModelFolder(run)
    steps = Run.open(run).regular_steps()[-2:]
    assert folder.tables["tuned"]["averaged"] == steps and folder.tables["tuned"]["lines"] == 9
    wanted = dict(Run.open(run).average(steps).named_parameters())
    found = dict(folder.load().named_parameters())
    assert found.keys() == wanted.keys()
    assert all((wanted[name] == tensor).all() for name, tensor in found.items())
    assert folder.tables["decode"]["alpha"] == 1.0 and folder.tables["task"]["corpus"] == "own"


def test_a_run_of_texts_is_tuned_by_perplexity(tmp_path: Path) -> None:
    run = shutil.copytree(TEXT[0], tmp_path / "run")
    assert tune(run, *TEXT[1:]) == 0
    tuned = ModelFolder(run).tables["tuned"]
    assert tuned["metric"] == "perplexity"
    assert tuned["value"] == pytest.approx(4.33, abs=0.01)


MODEL = (PAIRS[0] / "model", *PAIRS[1:])
BAD: dict[str, tuple[tuple[object, ...], str]] = {
    "no data": (PAIRS[:1], "--data"),
    "counts of a model": ((*MODEL, "--counts", "2"), "model is not a run"),
    "too few": ((*PAIRS, "--counts", "9"), "2 regular checkpoints, expected at least 9"),
    **{
        f"{option} {text}": ((*MODEL, option, text), f"argument {option}: '{text}', ")
        for option, texts in (
            ("--alphas", ("x", "-1", "nan", "")),
            ("--counts", ("0", "1.5", "x")),
            ("--grid", ("beam", "beam=", "alpha=1")),
        )
        for text in texts
    },
    "limit": ((*MODEL, "--limit", "0"), "--limit 0, expected at least 1"),
    "metric": ((*MODEL, "--metric", "chrf"), "chrf is not a sum over lines"),
    "split": ((*MODEL, "--split", "dev"), "no 'dev'"),
    "language model": ((TEXT[0] / "model", *TEXT[1:]), "expected a run"),
    "other data": ((*MODEL[:1], *TEXT[1:]), "holds texts"),
    "other data of a run": ((*PAIRS[:1], *TEXT[1:]), "holds texts"),
    "field": ((*MODEL, "--grid", "bem=1"), "bem"),
    "no folder": (("nothing", *PAIRS[1:]), "nothing does not exist"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input(case: str, capsys: pytest.CaptureFixture[str]) -> None:
    arguments, message = BAD[case]
    assert tune(*arguments) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("error: ") and err.count("\n") == 1
    assert message in err
