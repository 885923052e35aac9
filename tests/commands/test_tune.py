"""`lightconv tune` on folders of tests/golden."""

import json
import shutil
from pathlib import Path

import pytest

import lightconv
from lightconv import train
from lightconv.models.folder import ModelFolder
from tests.commands.conftest import Run

GOLDEN = Path(__file__).parents[1] / "golden"
PAIRS = ("end/pairs", "--data", "data/pairs")
TEXT = ("end/text", "--data", "data/text")
MODEL = ("end/pairs/model", *PAIRS[1:])


@pytest.fixture(autouse=True)
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The golden runs, which may be changed, and their data in the working directory."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(GOLDEN / "end", "end")
    Path("data").symlink_to(GOLDEN / "data")


def test_the_table(run: Run) -> None:
    more = ("--alphas", "0,1", "--grid", "beam=1, 4")
    for name, arguments in (("pairs", (*PAIRS, *more)), ("text", TEXT)):
        expected = Path(__file__).with_name("tables") / f"tune-{name}.txt"
        assert run("tune", *arguments, "--dry-run").out == expected.read_text()


def test_the_choice_is_written_into_the_model(run: Run) -> None:
    model = Path(MODEL[0])
    files = {path.name for path in model.iterdir()}
    before = (model / "config.json").read_bytes()
    common = ("tune", *MODEL, "--alphas", "0.2,0.9", "--grid", "beam=2,4")
    assert len(run(*common, "--limit", "5", "--dry-run").out.splitlines()) == 5
    assert (model / "config.json").read_bytes() == before
    done = run(*common)
    assert done.code == 0
    (best,) = (line.split() for line in done.out.splitlines() if "*" in line)
    assert done.err.count("note: decoding in ") == 1
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


def test_a_run_chooses_its_checkpoints(run: Run) -> None:
    trained = train.Run.open(PAIRS[0])
    for counts, number in (("9,2,2", 2), ("1", 1)):
        options = ("--alphas", "1", "--counts", counts, "--limit", "9")
        assert run("tune", *PAIRS, *options).code == 0
        folder = ModelFolder(PAIRS[0])
        steps = trained.regular_steps()[-number:]
        assert folder.tables["tuned"]["averaged"] == steps
        assert folder.tables["tuned"]["lines"] == 9
        wanted = dict(trained.average(steps).named_parameters())
        found = dict(folder.load().named_parameters())
        assert found.keys() == wanted.keys()
        assert all((wanted[name] == tensor).all() for name, tensor in found.items())
        assert folder.tables["decode"]["alpha"] == 1.0
        assert folder.tables["task"]["corpus"] == "own"


def test_a_run_of_texts_is_tuned_by_perplexity(run: Run) -> None:
    assert run("tune", *TEXT).code == 0
    tuned = ModelFolder(TEXT[0]).tables["tuned"]
    assert tuned["metric"] == "perplexity"
    assert tuned["value"] == pytest.approx(4.33, abs=0.01)


BAD: dict[str, tuple[tuple[str, ...], str]] = {
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
    "limit": ((*MODEL, "--limit", "0"), "argument --limit: '0'"),
    "metric": ((*MODEL, "--metric", "chrf"), "chrf is not a sum over lines"),
    "split": ((*MODEL, "--split", "dev"), "no 'dev'"),
    "language model": (("end/text/model", *TEXT[1:]), "expected a run"),
    "other data": ((*MODEL[:1], *TEXT[1:]), "holds texts"),
    "other data of a run": ((*PAIRS[:1], *TEXT[1:]), "holds texts"),
    "field": ((*MODEL, "--grid", "bem=1"), "bem"),
    "no folder": (("nothing", *PAIRS[1:]), "nothing does not exist"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input(case: str, run: Run) -> None:
    arguments, message = BAD[case]
    assert run("tune", *arguments).refused(message)
