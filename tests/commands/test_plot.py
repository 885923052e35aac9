"""Pictures of runs: what is drawn, and what cannot be."""

import json
import sys
from pathlib import Path

import matplotlib.figure
import pytest

from lightconv import cli

PNG = b"\x89PNG\r\n\x1a\n"


def write(folder: Path, *, metric: bool = True) -> Path:
    folder.mkdir()
    lines = []
    for step in range(10, 60, 10):
        lines.append({"kind": "train", "step": step, "loss": 30 / step, "lr": step * 1e-4})
        valid = {"kind": "valid", "step": step, "loss": None if step == 30 else 40 / step}
        lines.append(valid | ({"metric": {"BLEU": step / 2}} if metric else {}))
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (folder / "log.jsonl").write_text(text + '{"kind": "train", "st')
    return folder


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> list[matplotlib.figure.Figure]:
    """Those that are saved."""
    found: list[matplotlib.figure.Figure] = []
    real = matplotlib.figure.Figure.savefig

    def save(self: matplotlib.figure.Figure, *args: object, **options: object) -> None:
        found.append(self)
        real(self, *args, **options)

    monkeypatch.setattr(matplotlib.figure.Figure, "savefig", save)
    return found


def test_one_picture_of_two_runs(
    tmp_path: Path, figures: list[matplotlib.figure.Figure], capsys: pytest.CaptureFixture[str]
) -> None:
    runs = [write(tmp_path / "light"), write(tmp_path / "dynamic", metric=False)]
    out = tmp_path / "deep" / "both.png"
    assert cli.main(["plot", *map(str, runs), "--out", str(out)]) == 0
    assert capsys.readouterr().out == f"{out}\n"
    assert out.read_bytes().startswith(PNG)
    loss, metric, rate = figures[0].axes
    assert [axis.get_title() for axis in (loss, metric, rate)] == [
        "loss per token",
        "BLEU (validation)",
        "learning rate",
    ]
    curves = {line.get_label(): line.get_xydata().tolist() for line in loss.get_lines()}
    assert list(curves) == [
        "light, training",
        "light, validation",
        "dynamic, training",
        "dynamic, validation",
    ]
    assert curves["light, training"] == [[s, 30 / s] for s in (10, 20, 30, 40, 50)]
    assert curves["light, validation"] == [[s, 40 / s] for s in (10, 20, 40, 50)]
    assert [line.get_xydata().tolist() for line in metric.get_lines()] == [
        [[s, s / 2] for s in (10, 20, 30, 40, 50)]
    ]
    assert len(rate.get_lines()) == 2
    assert len({line.get_color() for line in rate.get_lines()}) == 2


def test_by_default_it_lies_in_the_run(
    tmp_path: Path, figures: list[matplotlib.figure.Figure]
) -> None:
    run = write(tmp_path / "run", metric=False)
    assert cli.main(["plot", str(run)]) == 0
    assert (run / "plot.png").read_bytes().startswith(PNG)
    assert len(figures[0].axes) == 2


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["{0}/nowhere"], "is not a run folder: it has no log.jsonl"),
        (["{0}/empty"], "has no entries yet"),
        (["{0}/run", "--out", "x.gif"], "ends in .png, .svg, .pdf"),
        (["{0}/run", "{0}/run"], "is given twice"),
        ([], "the following arguments are required: RUN"),
    ],
)
def test_what_cannot_be_drawn(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path / "run")
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "log.jsonl").touch()
    assert cli.main(["plot", *(argument.format(tmp_path) for argument in arguments)]) == 2
    err = capsys.readouterr().err
    assert err.startswith("error: ") and message in err and err.count("\n") == 1


def test_runs_of_one_name_have_their_paths(
    tmp_path: Path, figures: list[matplotlib.figure.Figure]
) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    runs = [str(write(tmp_path / name / "run")) for name in ("a", "b")]
    assert cli.main(["plot", *runs]) == 0
    labels = [line.get_label() for line in figures[0].axes[0].get_lines()]
    assert labels[0] == f"{runs[0]}, training"


def test_without_matplotlib_it_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert cli.main(["plot", str(write(tmp_path / "run"))]) == 2
    assert "pip install 'lightconv[plot]'" in capsys.readouterr().err
