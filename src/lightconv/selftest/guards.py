"""R8 and R9: gradients that are not finite, and memory that does not suffice."""

import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from lightconv.models import DynamicConvConfig, Seq2Seq
from lightconv.selftest.examples import DATA, model_config, prepare, train_config, write_recipe
from lightconv.selftest.forks import shared
from lightconv.selftest.promise import Figures, expect
from lightconv.train.checkpoints import Checkpoints
from lightconv.train.config import CosineConfig
from lightconv.train.guard import positions
from lightconv.train.trainer import Trainer

MIXER = (DynamicConvConfig(kernel=3, heads=2),)
# Nothing random, so that a batch in parts is the batch.
STILL: dict[str, Any] = {
    "dropout": 0.0,
    "attention_dropout": 0.0,
    "activation_dropout": 0.0,
    "encoder": MIXER,
    "decoder": MIXER,
}


class SmallDevice:
    """A model's features on a device with room for so many positions; notes what it was asked."""

    def __init__(self, trainer: Trainer, room: int) -> None:
        self.real = trainer.model.features
        self.room = room
        self.asked: list[int] = []
        trainer.features = self

    def __call__(self, *inputs: Tensor) -> Tensor:
        size = max(part.numel() for part in inputs)
        self.asked.append(size)
        if size > self.room:
            raise RuntimeError("[enforce fail at alloc_cpu.cpp:124] DefaultCPUAllocator: can't ...")
        return self.real(*inputs)


def spoil(model: nn.Module, name: str, value: float) -> Any:
    """From now on what a module returns has one such number in it; a handle that ends it."""

    def hook(module: nn.Module, inputs: Any, output: Tensor) -> Tensor:
        wrong = torch.zeros_like(output)
        wrong[0, 0, 0] = value
        return output + wrong

    return model.get_submodule(name).register_forward_hook(hook)


def check_divergence(folder: Path, full: bool) -> Figures:
    """R8: each module in turn, then a whole run that diverges."""
    torch.manual_seed(0)
    trainer = Trainer(Seq2Seq(model_config()), train_config())
    names = [f"{side}.{i}.ffn" for side in ("encoder", "decoder") for i in (0, 1)]
    for place, name in enumerate(names):
        for value in (math.nan, math.inf, -math.inf):
            before = [p.clone() for p in trainer.model.parameters()]
            handle = spoil(trainer.model, name, value)
            record = trainer.update([DATA.batch(place)])
            handle.remove()
            same = all(map(torch.equal, before, trainer.model.parameters()))
            expect(record.skipped and same, f"{value} of {name} changed the parameters")
            expect(not trainer.update([DATA.batch(place)]).skipped, "an update was left out")
    layers = (DynamicConvConfig(kernel=3, heads=2, normalize="none"),) * 2
    recipe = write_recipe(
        folder / "recipe.json",
        model_config(encoder=layers, decoder=layers, pre_norm=True, final_norm=False),
        schedule=CosineConfig(peak=1e12, warmup=4, period=30),
    )
    data, run = prepare(folder / "data"), folder / "run"
    answer = shared().run("train", recipe, "--data", data, "--out", run)
    line = answer["err"].splitlines()[-1]
    expect(answer["code"] == 3, f"exit {answer['code']} after divergence: {line}")
    for words in ("diverged at step ", " from ", "batch ", "The last checkpoint is "):
        expect(words in line, f"the error lacks {words!r}: {line}")
    last = Checkpoints(run / "checkpoints").latest()
    finite = last is None or all(bool(t.isfinite().all()) for t in last.tensors["model"].values())
    expect(finite, "a checkpoint holds numbers that are not finite")
    return {"injected": 3 * len(names), "reached_parameters": 0, "exit": answer["code"]}


def check_memory(folder: Path, full: bool) -> Figures:
    """R9."""
    batches = [DATA.batch(0), DATA.batch(1)]
    worst = 0.0
    for share in (2, 3, 5, 9):
        whole, cut = _still(), _still()
        small = SmallDevice(cut, room=positions(batches[0]) // share)
        for _ in range(5 if full else 2):
            expect(whole.update(batches).tokens == cut.update(batches).tokens, "tokens are lost")
        pairs = zip(whole.model.parameters(), cut.model.parameters(), strict=True)
        worst = max(worst, *((a - b).abs().max().item() for a, b in pairs))
        refused = [size for size in small.asked if size > small.room]
        expect(refused, "nothing was refused")
        expect(len(refused) == len(set(refused)), "what does not fit was tried twice")
    expect(worst < 1e-9, f"an update in parts differs by {worst}")
    return {"difference": worst}


def _still() -> Trainer:
    torch.manual_seed(0)
    return Trainer(Seq2Seq(model_config(**STILL)).double(), train_config())
