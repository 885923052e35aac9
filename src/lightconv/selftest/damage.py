"""R5: checkpoints whose bytes have changed, and what is made of them."""

import math
import random
from collections.abc import Callable
from pathlib import Path

import torch

from lightconv.selftest.promise import Figures, expect
from lightconv.train.checkpoints import Checkpoints

FILES = ("manifest.json", "model.safetensors", "optimizer.safetensors", "state.json")
PAGE = 512
GOOD, DAMAGED = 100, 200
Damage = Callable[[bytes, random.Random], bytes]


def flip(data: bytes, chance: random.Random) -> bytes:
    """One bit is another."""
    place = chance.randrange(len(data) * 8)
    changed = bytearray(data)
    changed[place // 8] ^= 1 << place % 8
    return bytes(changed)


def truncate(data: bytes, chance: random.Random) -> bytes:
    """The end is missing."""
    return data[: chance.randrange(len(data))]


def zero_page(data: bytes, chance: random.Random) -> bytes:
    """One page of zeros, as a disk that lost a write leaves it."""
    start = PAGE * chance.randrange(math.ceil(len(data) / PAGE))
    stop = min(start + PAGE, len(data))
    return data[:start] + bytes(stop - start) + data[stop:]


# How often a full check does each.
DAMAGES: dict[str, tuple[Damage, int]] = {
    "bits flipped": (flip, 1000),
    "files truncated": (truncate, 500),
    "pages zeroed": (zero_page, 500),
}


def tensors(step: int, size: int = 1024) -> dict[str, dict[str, torch.Tensor]]:
    """What the checkpoint of a step holds."""
    weight, bias, average = torch.randn(
        3, size, generator=torch.Generator().manual_seed(step)
    ).unbind()
    return {
        "model": {"weight": weight, "bias": bias[:3]},
        "optimizer": {"state/weight/exp_avg": average, "state/weight/step": torch.tensor(1.0)},
    }


def undetected(folder: Path, damage: Damage, times: int, seed: int = 5) -> int:
    """Damages the newest of two checkpoints so often; how often the other was not taken instead."""
    with Checkpoints(folder) as checkpoints:
        for step in (GOOD, DAMAGED):
            checkpoints.save(step, tensors(step), {"epoch": 3})
    chance, missed = random.Random(seed), 0
    newest, expected = folder / f"step-{DAMAGED:08d}", tensors(GOOD)["model"]["weight"]
    whole = {name: (newest / name).read_bytes() for name in FILES}
    for _ in range(times):
        # By turns large and small files.
        name = chance.choice(FILES)
        (newest / name).write_bytes(damage(whole[name], chance))
        found = Checkpoints(folder).latest()
        detected = (
            found is not None
            and found.step == GOOD
            and list(found.skipped) == [DAMAGED]
            and torch.equal(found.tensors["model"]["weight"], expected)
        )
        missed += not detected
        (newest / name).write_bytes(whole[name])
    found = Checkpoints(folder).latest()
    expect(found is not None and found.step == DAMAGED, "a whole checkpoint is not used")
    return missed


def check_damage(folder: Path, full: bool) -> Figures:
    """R5."""
    figures: Figures = {}
    for place, (name, (damage, times)) in enumerate(DAMAGES.items()):
        count = times if full else times // 10
        missed = undetected(folder / str(place), damage, count)
        expect(missed == 0, f"{missed} of {count} {name} went unnoticed")
        figures[name] = count
    return figures | {"undetected": 0}
