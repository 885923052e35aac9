"""`lightconv average`: the plain mean of checkpoints, as a model folder."""

import json
import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import lightconv
from lightconv.commands.average import choose
from lightconv.config import to_dict
from lightconv.data import Vocabulary, load_vocabularies
from lightconv.models import DynamicConvConfig, LanguageModelConfig, LightConvConfig
from lightconv.models.folder import ModelFolder, build
from lightconv.models.tensors import parameters
from lightconv.train.checkpoint import DamagedError
from lightconv.train.checkpoints import Checkpoints, average, main
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


def write(folder: Path, *models: dict[str, Tensor]) -> list[Path]:
    """Checkpoints of these tensors, in the order of their steps."""
    with Checkpoints(folder, keep_last=100) as checkpoints:
        return [checkpoints.save(i, {"model": model}, {}) for i, model in enumerate(models)]


@pytest.mark.parametrize(
    "dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16], ids=str
)
@pytest.mark.parametrize("count", [1, 2, 3, 10])
def test_the_plain_mean(dtype: torch.dtype, count: int, tmp_path: Path) -> None:
    torch.manual_seed(count)
    models = [
        {"wide": torch.randn(5, 7).to(dtype), "thin": torch.randn(()).to(dtype) * 1e-3}
        for _ in range(count)
    ]
    found = average(write(tmp_path, *models))
    assert list(found) == ["thin", "wide"]
    for name, tensor in found.items():
        # The exact sum of exact numbers, rounded twice: to float64, and to the type.
        rows = [model[name].double().flatten().tolist() for model in models]
        exact = [math.fsum(column) / count for column in zip(*rows, strict=True)]
        expected = torch.tensor(exact, dtype=torch.float64).reshape(tensor.shape).to(dtype)
        assert tensor.dtype == dtype
        if dtype == torch.float64:
            torch.testing.assert_close(tensor, expected, rtol=1e-15, atol=1e-16)
        else:
            assert torch.equal(tensor, expected)


def test_equal_checkpoints_have_themselves_as_mean(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = {"a": torch.randn(1000)}
    copies = write(tmp_path, *({"a": model["a"].clone()} for _ in range(10)))
    assert torch.equal(average(copies)["a"], model["a"])
    # Which sums in float32 do not give.
    sums = sum((model["a"] for _ in range(10)), torch.zeros(1000))
    assert not torch.equal(sums / 10, model["a"])


def test_the_files_are_as_before(tmp_path: Path) -> None:
    paths = write(tmp_path, {"a": torch.ones(3).double()}, {"a": torch.zeros(3).double()})
    before = [(path / "model.safetensors").read_bytes() for path in paths]
    assert average(paths)["a"].tolist() == [0.5] * 3
    assert [(path / "model.safetensors").read_bytes() for path in paths] == before


def test_whole_numbers_must_agree(tmp_path: Path) -> None:
    kept = {"count": torch.tensor([3, 4]), "on": torch.tensor(True)}
    paths = write(tmp_path / "a", kept | {"w": torch.ones(1)}, kept | {"w": torch.zeros(1)})
    found = average(paths)
    assert torch.equal(found["count"], kept["count"])
    assert torch.equal(found["on"], kept["on"])
    assert found["w"].item() == 0.5
    for name, other in (("count", torch.tensor([3, 5])), ("on", torch.tensor(False))):
        paths = write(tmp_path / name, kept, kept | {name: other})
        with pytest.raises(ValueError, match=rf"00000001: {name} \(torch\..*\) differs from that"):
            average(paths)


def test_checkpoints_of_different_models(tmp_path: Path) -> None:
    first = {"a": torch.ones(3), "b": torch.ones(2)}
    for number, (other, message) in enumerate(
        (
            ({"a": torch.ones(3)}, "00000001 lacks b, expected by .*00000000"),
            (first | {"c": torch.ones(1)}, "00000001 has c, unknown to .*00000000"),
            (first | {"b": torch.ones(1, 2)}, r"b has shape \[1, 2\], expected \[2\]"),
            (first | {"b": torch.ones(2).half()}, "b is torch.float16, but torch.float32 in"),
        )
    ):
        with pytest.raises(ValueError, match=message):
            average(write(tmp_path / str(number), first, other))
    with pytest.raises(ValueError, match="needs at least one checkpoint"):
        average([])


def test_a_damaged_one_is_not_averaged(tmp_path: Path) -> None:
    paths = write(tmp_path, {"a": torch.ones(3)}, {"a": torch.ones(3)})
    (paths[1] / "model.safetensors").write_bytes(b"x")
    with pytest.raises(DamagedError, match=r"step-00000001/model\.safetensors: 1 bytes"):
        average(paths)


def test_moving_averages(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    for step in (1, 2):
        model = {"a": torch.full((2,), float(step)), "count": torch.tensor(7)}
        checkpoints.save(step, {"model": model, "ema": {"a": torch.full((2,), 10.0 * step)}}, {})
    paths = [checkpoints.path(1), checkpoints.path(2)]
    assert average(paths)["a"].tolist() == [1.5, 1.5]
    found = average(paths, ema=True)
    assert found["a"].tolist() == [15.0, 15.0]
    assert found["count"].item() == 7


def test_which_ones(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    # 15 and 35 are of stops, 44 is the end.
    scores = {10: 0.3, 15: 0.95, 20: 0.9, 30: None, 35: None, 40: 0.5, 44: 0.1}
    for step, score in scores.items():
        checkpoints.save(step, {"model": {"a": torch.ones(1)}}, {}, score=score)
    config = replace(TRAIN, max_steps=44)
    assert choose(checkpoints, config, last=2) == [40, 44]
    assert choose(checkpoints, config, last=5) == [10, 20, 30, 40, 44]
    assert choose(checkpoints, config, best=1) == [15]
    assert choose(checkpoints, config, best=3) == [15, 20, 40]
    assert choose(checkpoints, config, steps=[35, 10]) == [10, 35]
    for options, message in (
        ({}, "has 5 regular checkpoints, expected 10. Say --last 5"),
        ({"last": 6}, "has 5 regular checkpoints, expected 6. Say --last 5"),
        ({"best": 6}, "has 5 checkpoints with a score, expected 6. Say --best 5"),
        ({"steps": [10, 7]}, "has no checkpoint of step 7; there are: 10, 15, 20, 30, 35, 40, 44"),
    ):
        with pytest.raises(ValueError, match=message):
            choose(checkpoints, config, **options)
    with pytest.raises(ValueError, match=r"has 0 regular checkpoints, expected 10$"):
        choose(Checkpoints(tmp_path / "none"), config)


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
    files = "README.md, codes.txt, config.json, model.safetensors, vocab.txt"
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
        (["--last", "5"], r"has 4 regular checkpoints, expected 5\. Say --last 4"),
        ([], r"has 4 regular checkpoints, expected 10\. Say --last 4"),
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


def change(run: Path, **changes: Any) -> None:
    data = json.loads((run / "config.json").read_text())
    (run / "config.json").write_text(json.dumps(data | changes))


def test_bad_runs(run: Path) -> None:
    out = run.parent / "model"
    command = [str(run), "--last", "2", "--out", str(out)]
    with pytest.raises(ValueError, match=r"there is no folder .*nothing, expected one that"):
        main([str(run.parent / "nothing"), *command[1:]])
    change(run, model=to_dict(replace(CONFIG, vocab=10)))
    with pytest.raises(ValueError, match=r"shape \[9, 8\], expected \[10, 8\] by .*config\.json"):
        main(command)
    change(run, model={"kind": "language_model", "dims": 8})
    with pytest.raises(ValueError, match=r"config\.json: .*dims"):
        main(command)
    change(run, model=to_dict(CONFIG), train={"max_steps": 0})
    with pytest.raises(ValueError, match=r"config\.json: .*train"):
        main(command)
    (run / "config.json").write_text("[]")
    with pytest.raises(ValueError, match=r"config\.json: expected a table"):
        main(command)
    (run / "config.json").unlink()
    with pytest.raises(ValueError, match=r"config\.json: no such file"):
        main(command)
    assert not out.exists()


def test_mistakes_need_no_torch() -> None:
    code = (
        "import sys\n"
        "from lightconv.train.average import main\n"
        "try:\n    main(['nowhere', '--out', 'x'])\n"
        "except ValueError as error:\n    print(error)\n"
        "assert 'torch' not in sys.modules\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    assert ended.stdout.startswith(b"there is no folder nowhere")
