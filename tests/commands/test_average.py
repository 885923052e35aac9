"""`lightconv average`: the mean of checkpoints as a model folder."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

import lightconv
from lightconv.commands.average import main
from lightconv.config import to_dict
from lightconv.data import Vocabulary, load_vocabularies
from lightconv.models import DynamicConvConfig, LanguageModelConfig, LightConvConfig
from lightconv.models.folder import ModelFolder, build
from lightconv.models.tensors import parameters
from lightconv.train.checkpoints import Checkpoints
from lightconv.train.config import InverseSqrtConfig, TrainConfig

LAYERS = (LightConvConfig(kernel=3, heads=2), DynamicConvConfig(kernel=5, heads=2))
CONFIG = LanguageModelConfig(dim=8, ffn_dim=12, layers=LAYERS, vocab=9)
STEPS = (10, 20, 30, 40)
TRAIN = TrainConfig(
    max_steps=40,
    save_every=10,
    tokens_per_update=100,
    schedule=InverseSqrtConfig(peak=1e-3, warmup=10),
)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run folder: four checkpoints of a language model, of which step 20 is the best."""
    folder = tmp_path / "run"
    with Checkpoints(folder / "checkpoints") as checkpoints:
        for step in STEPS:
            tensors = {"model": make(step), "optimizer": {"x": torch.ones(5)}}
            checkpoints.save(step, tensors, {}, score=-abs(step - 20.0))
    config = {
        "about": "a test",
        "task": {"kind": "lm"},
        "model": to_dict(CONFIG),
        "train": to_dict(TRAIN),
    }
    (folder / "config.json").write_text(json.dumps(config))
    words = Vocabulary.of(["a", "b", "c", "d", "e"])
    words.save(folder / "vocab.txt")
    (folder / "codes.txt").write_text("#version: 0.2\na b\n")
    (folder / "log.jsonl").write_text("{}\n")
    return folder


def make(step: int) -> dict[str, Tensor]:
    torch.manual_seed(step)
    return parameters(build(CONFIG))


def test_a_model_folder(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = run.parent / "model"
    assert main([str(run), "--last", "3", "--out", str(out)]) == 0
    printed = capsys.readouterr()
    files = "README.md, codes.txt, config.json, manifest.json, model.safetensors, vocab.txt"
    assert [line.split(maxsplit=1) for line in printed.out.splitlines()] == [
        ["steps", "20, 30, 40"],
        ["parameters", f"{sum(tensor.numel() for tensor in make(1).values()):,}"],
        ["folder", str(out)],
        ["files", files],
    ]
    assert printed.err == f"averaging 3 checkpoints of {run}\n"
    model = lightconv.load(out)
    assert model.config == CONFIG
    for name, tensor in parameters(model).items():
        stacked = np.stack([make(step)[name].numpy() for step in (20, 30, 40)])
        assert np.array_equal(tensor.numpy(), stacked.mean(0, dtype=np.float64).astype(np.float32))
    assert ModelFolder(out).tables == {"task": {"kind": "lm"}}
    assert load_vocabularies(out).target.tokens[4:] == ("a", "b", "c", "d", "e")
    assert model(torch.tensor([[2, 4, 5]])).shape == (1, 3, 9)


@pytest.mark.parametrize(
    ("options", "step"), [(["--best"], 20), (["--last", "1"], 40), (["--steps", "30"], 30)]
)
def test_one_checkpoint_is_exported_as_it_is(options: list[str], step: int, run: Path) -> None:
    assert main([str(run), *options, "--out", str(run.parent / "model")]) == 0
    found = parameters(lightconv.load(run.parent / "model"))
    assert all(torch.equal(found[name], tensor) for name, tensor in make(step).items())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--last", "0"], "--last 0 must be at least 1"),
        (["--best", "-1"], "--best -1 must be at least 1"),
        (["--last", "5"], "has 4 checkpoints at regular steps, expected 5. Use --last 4"),
        ([], "has 4 checkpoints at regular steps, expected 10. Use --last 4"),
        (["--steps", "10,50"], "no checkpoint of step 50; there are: 10, 20, 30, 40"),
        (["--steps", "10,x"], "--steps: '10,x', expected numbers such as 100,200"),
        (["--steps", ""], "--steps: '', expected numbers"),
        (["--last", "2", "--best"], "not allowed with argument"),
        (["--last", "2", "--ema"], r"has no ema\.safetensors"),
        (["--lst", "2"], "unknown option '--lst'; did you mean '--last'"),
    ],
)
def test_bad_options(options: list[str], message: str, run: Path) -> None:
    with pytest.raises(ValueError, match=message):
        main([str(run), *options, "--out", str(run.parent / "model")])
    assert not (run.parent / "model").exists()


def test_what_stands_there_stays(run: Path) -> None:
    out = run.parent / "model"
    command = [str(run), "--last", "2", "--out", str(out)]
    assert main(command) == 0
    with pytest.raises(ValueError, match=r"model exists\. Choose another name"):
        main(command)
    assert main([*command[:1], "--best", *command[3:], "--overwrite"]) == 0
    found = parameters(lightconv.load(out))
    assert all(torch.equal(found[name], tensor) for name, tensor in make(20).items())


def test_bad_runs(run: Path) -> None:
    out, path = run.parent / "model", run / "config.json"
    whole = json.loads(path.read_text())
    larger = to_dict(replace(CONFIG, vocab=10))
    for data, message in (
        (whole | {"model": larger}, r"shape \[9, 8\], expected \[10, 8\] by .*config\.json"),
        (whole | {"model": {"kind": "language_model", "dims": 8}}, r"config\.json: .*dims"),
        (whole | {"train": {"max_steps": 0}}, r"config\.json: .*train"),
        ([], "run is not a run folder"),
        (None, r"config\.json: no such file"),
    ):
        path.write_text(json.dumps(data))
        if data is None:
            path.unlink()
        with pytest.raises(ValueError, match=message):
            main([str(run), "--last", "2", "--out", str(out)])
    with pytest.raises(ValueError, match=r"there is no folder .*nothing, expected a run folder"):
        main([str(run.parent / "nothing"), "--out", str(out)])
    assert not out.exists()


def test_mistakes_need_no_torch() -> None:
    code = (
        "import sys\n"
        "from lightconv.commands.average import main\n"
        "try:\n    main(['nowhere', '--out', 'x'])\n"
        "except ValueError as error:\n    print(error)\n"
        "assert 'torch' not in sys.modules\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, check=True, timeout=60
    )
    assert ended.stdout.startswith(b"there is no folder nowhere")
