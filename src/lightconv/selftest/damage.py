"""R5: checkpoints with damaged bytes."""

import random
from collections.abc import Callable
from pathlib import Path

import torch

from lightconv.selftest.promise import Figures, expect
from lightconv.train.checkpoints import Checkpoints

FILES = ("manifest.json", "model.safetensors", "optimizer.safetensors", "state.json")
PAGE = 512
GOOD, DAMAGED = 100, 200


def flip(data: bytes, chance: random.Random) -> bytes:
    """One bit inverted."""
    place = chance.randrange(len(data) * 8)
    return data[: place // 8] + bytes([data[place // 8] ^ 1 << place % 8]) + data[place // 8 + 1 :]


def truncate(data: bytes, chance: random.Random) -> bytes:
    """The end missing."""
    return data[: chance.randrange(len(data))]


def zero_page(data: bytes, chance: random.Random) -> bytes:
    """One page of zeros, as a disk leaves it that lost a write."""
    start = chance.randrange(0, len(data), PAGE)
    return data[:start] + bytes(len(data[start : start + PAGE])) + data[start + PAGE :]


# name -> (function, number of times in a full check)
DAMAGES: dict[str, tuple[Callable[[bytes, random.Random], bytes], int]] = {
    "bits flipped": (flip, 1000),
    "files truncated": (truncate, 500),
    "pages zeroed": (zero_page, 500),
}


def check_damage(folder: Path, full: bool) -> Figures:
    """R5: the newest of two checkpoints is damaged, and the other must be used."""
    good = torch.randn(1024, generator=torch.Generator().manual_seed(5))
    with Checkpoints(folder) as checkpoints:
        for step in (GOOD, DAMAGED):
            tensors = {"model": {"w": good + step}, "optimizer": {"state/w/step": good - step}}
            checkpoints.save(step, tensors, {"epoch": 3})
    newest, chance, counts = folder / f"step-{DAMAGED:08d}", random.Random(5), {}
    for kind, (damage, times) in DAMAGES.items():
        counts[kind] = times if full else times // 10
        for _ in range(counts[kind]):
            name = chance.choice(FILES)
            whole = (newest / name).read_bytes()
            (newest / name).write_bytes(damage(whole, chance))
            found = Checkpoints(folder).latest()
            (newest / name).write_bytes(whole)
            detected = (
                found is not None
                and list(found.skipped) == [DAMAGED]
                and torch.equal(found.tensors["model"]["w"], good + GOOD)
            )
            expect(detected, f"{kind} in {name}: not detected")
    found = Checkpoints(folder).latest()
    expect(found is not None and found.step == DAMAGED, "an intact checkpoint is not used")
    return {**counts, "undetected": 0}
