"""`lightconv average` and `lightconv plot`: the mean of checkpoints, and pictures of runs."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import matplotlib.figure
import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from torch import Tensor

import lightconv
from lightconv.commands import models as command
from lightconv.config import to_dict
from lightconv.data import Vocabulary, load_vocabularies
from lightconv.models import DynamicConvConfig, LanguageModelConfig, LightConvConfig
from lightconv.models.folder import ModelFolder, build
from lightconv.models.tensors import parameters
from lightconv.train.checkpoints import Checkpoints
from lightconv.train.config import InverseSqrtConfig, TrainConfig
from tests.commands.conftest import Run

# --- average

LAYERS = (LightConvConfig(kernel=3, heads=2), DynamicConvConfig(kernel=5, heads=2))
CONFIG = LanguageModelConfig(dim=8, ffn_dim=12, layers=LAYERS, vocab=9)
RATE = InverseSqrtConfig(peak=1e-3, warmup=10)
TRAIN = TrainConfig(max_steps=40, save_every=10, tokens_per_update=100, schedule=RATE)
OUT = Path("model")
TO_OUT = ("--out", OUT)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run folder: four checkpoints of a language model, of which step 20 is the best."""
    monkeypatch.chdir(tmp_path)
    folder = Path("run")
    with Checkpoints(folder / "checkpoints") as checkpoints:
        for step in (10, 20, 30, 40):
            tensors = {"model": make(step), "optimizer": {"x": torch.ones(5)}}
            checkpoints.save(step, tensors, {}, score=-abs(step - 20.0))
    config = {"about": "a test", "task": {"kind": "lm"}}
    config |= {"model": to_dict(CONFIG), "train": to_dict(TRAIN)}
    (folder / "config.json").write_text(json.dumps(config))
    Vocabulary.of("abcde").save(folder / "vocab.txt")
    (folder / "codes.txt").write_text("#version: 0.2\na b\n")
    (folder / "log.jsonl").write_text("{}\n")
    return folder


def make(step: int) -> dict[str, Tensor]:
    torch.manual_seed(step)
    return parameters(build(CONFIG))


def is_step(step: int) -> bool:
    """The model is that of this checkpoint."""
    found = parameters(lightconv.load(OUT))
    return all(torch.equal(found[name], tensor) for name, tensor in make(step).items())


def test_a_model_folder(run: Run, folder: Path) -> None:
    done = run("average", folder, "--last", "3", *TO_OUT)
    files = "README.md, codes.txt, config.json, manifest.json, model.safetensors, vocab.txt"
    assert [line.split(maxsplit=1) for line in done.out.splitlines()] == [
        ["steps", "20, 30, 40"],
        ["parameters", f"{sum(tensor.numel() for tensor in make(1).values()):,}"],
        ["folder", "model"],
        ["files", files],
    ]
    assert done.code == 0 and done.err == "averaging 3 checkpoints of run\n"
    model = lightconv.load(OUT)
    assert model.config == CONFIG
    for name, tensor in parameters(model).items():
        stacked = np.stack([make(step)[name].numpy() for step in (20, 30, 40)])
        assert np.array_equal(tensor.numpy(), stacked.mean(0, dtype=np.float64).astype(np.float32))
    assert ModelFolder(OUT).tables == {"task": {"kind": "lm"}}
    assert load_vocabularies(OUT).target.tokens[4:] == tuple("abcde")
    assert model(torch.tensor([[2, 4, 5]])).shape == (1, 3, 9)


def test_one_checkpoint_is_exported_as_it_is(run: Run, folder: Path) -> None:
    assert run("average", folder, "--last", "1", *TO_OUT).code == 0 and is_step(40)
    again = run("average", folder, "--best", *TO_OUT)
    assert again.refused("model exists. Choose another name") and is_step(40)
    for options, step in (("--best", 20), ("--steps=30", 30)):
        assert run("average", folder, options, *TO_OUT, "--overwrite").code == 0 and is_step(step)


@pytest.mark.parametrize(
    "options, message",
    [
        ("--last 0", "argument --last: '0', expected a whole number, at least 1"),
        ("--best -1", "argument --best: '-1', expected"),
        ("--last 5", "has 4 checkpoints at regular steps, expected 5. Use --last 4"),
        ("", "has 4 checkpoints at regular steps, expected 10. Use --last 4"),
        ("--steps 10,50", "no checkpoint of step 50; there are: 10, 20, 30, 40"),
        ("--steps 10,x", "argument --steps: 'x', expected a whole number"),
        ("--steps=", "argument --steps: '', expected"),
        ("--last 2 --best", "not allowed with argument"),
        ("--last 2 --ema", "has no ema.safetensors"),
        ("--lst 2", "unknown option '--lst'; did you mean '--last'"),
    ],
)
def test_bad_options(run: Run, folder: Path, options: str, message: str) -> None:
    done = run("average", folder, *options.split(), *TO_OUT)
    assert done.refused(message, after="averaging ") and not OUT.exists()


def test_bad_runs(run: Run, folder: Path) -> None:
    path = folder / "config.json"
    whole = json.loads(path.read_text())
    larger = to_dict(replace(CONFIG, vocab=10))
    for data, *words in (
        (whole | {"model": larger}, "shape [9, 8], expected [10, 8] by ", "config.json"),
        (whole | {"model": {"kind": "language_model", "dims": 8}}, "config.json: ", "dims"),
        (whole | {"train": {"max_steps": 0}}, "config.json: ", "train"),
        ([], "run is not a run folder"),
        (None, "config.json: no such file"),
    ):
        path.write_text(json.dumps(data))
        if data is None:
            path.unlink()
        done = run("average", folder, "--last", "2", *TO_OUT)
        assert done.refused(*words, after="averaging ") and not OUT.exists()


# --- plot

PNG = b"\x89PNG\r\n\x1a\n"
STEPS = (10, 20, 30, 40, 50)


def write(folder: Path, *, metric: bool = True) -> Path:
    folder.mkdir(parents=True)
    lines = []
    for step in STEPS:
        lines.append({"kind": "train", "step": step, "loss": 30 / step, "lr": step * 1e-4})
        valid = {"kind": "valid", "step": step, "loss": None if step == 30 else 40 / step}
        lines.append(valid | ({"metric": {"BLEU": step / 2}} if metric else {}))
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (folder / "log.jsonl").write_text(text + '{"kind": "train", "st')
    return folder


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """Those that are saved."""
    found: list[Figure] = []
    real = Figure.savefig

    def save(self: Figure, *args: object, **options: object) -> None:
        found.append(self)
        real(self, *args, **options)

    monkeypatch.setattr(matplotlib.figure.Figure, "savefig", save)
    return found


def test_one_picture_of_two_runs(run: Run, tmp_path: Path, figures: list[Figure]) -> None:
    runs = [write(tmp_path / "light"), write(tmp_path / "dynamic", metric=False)]
    out = tmp_path / "deep" / "both.png"
    done = run("plot", *runs, "--out", out)
    assert done.code == 0 and done.out.endswith(f"\n{out}\n")
    assert out.read_bytes().startswith(PNG)
    loss, metric, rate = figures[0].axes
    titles = [axis.get_title() for axis in (loss, metric, rate)]
    assert titles == ["loss per token", "BLEU (validation)", "learning rate"]
    curves = {line.get_label(): line.get_xydata().tolist() for line in loss.get_lines()}
    parts = ("training", "validation")
    assert list(curves) == [f"{name}, {part}" for name in ("light", "dynamic") for part in parts]
    assert curves["light, training"] == [[s, 30 / s] for s in STEPS]
    assert curves["light, validation"] == [[s, 40 / s] for s in STEPS if s != 30]
    (bleu,) = (line.get_xydata().tolist() for line in metric.get_lines())
    assert bleu == [[s, s / 2] for s in STEPS]
    assert len({line.get_color() for line in rate.get_lines()}) == len(rate.get_lines()) == 2


def test_curves_are_text_without_matplotlib(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "find_spec", lambda name: None)
    folder = write(tmp_path / "light")
    done = run("plot", folder)
    assert done.code == 0 and not (folder / "plot.png").exists()
    lines = done.out.splitlines()
    assert max(map(len, lines)) <= 80
    loss, bleu = done.out.split("\n\n")
    assert loss.startswith("loss\n") and bleu.startswith("BLEU\n")
    # The frame has the bounds of all points, and a mark for each of them.
    assert lines[1].startswith(f"{max(40 / STEPS[0], 30 / STEPS[0]):>9.4g} |")
    assert sum(line.count("o") for line in bleu.splitlines()[1:15]) == len(STEPS)
    assert "o light, validation" in loss and ". light, training" in loss


def test_the_usual_place_and_runs_of_one_name(
    run: Run, tmp_path: Path, figures: list[Figure]
) -> None:
    runs = [write(tmp_path / name / "run", metric=False) for name in "ab"]
    assert run("plot", *runs).code == 0
    assert (runs[0] / "plot.png").read_bytes().startswith(PNG)
    loss, _ = figures[0].axes
    assert loss.get_lines()[0].get_label() == f"{runs[0]}, training"


@pytest.mark.parametrize(
    "arguments, message",
    [
        ("{0}/nowhere", "is not a run folder: it has no log.jsonl"),
        ("{0}/empty", "has no entries yet"),
        ("{0}/run --out x.gif", "ends in .png, .svg, .pdf"),
        ("{0}/run {0}/run", "is given twice"),
        ("", "the following arguments are required: RUN"),
        ("{0}/run --out x.png", "pip install 'lightconv[plot]'"),
    ],
)
def test_what_cannot_be_drawn(
    run: Run, arguments: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "pip" in message:
        monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    write(tmp_path / "run")
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "log.jsonl").touch()
    assert run("plot", *arguments.format(tmp_path).split()).refused(message, after="warning")
