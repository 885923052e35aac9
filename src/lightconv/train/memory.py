"""Memory of a run: an estimate from shapes, and freed memory that is kept for the next update.

glibc returns large freed blocks to the system, which zeroes the pages that it hands out next: a
fifth of a training step on a processor. If told to keep them, it keeps the most a process ever
used; so training asks it to return free memory whenever the process has grown past a bound. Other
C libraries are left as they are.
"""

import ctypes
import os
import platform
from collections.abc import Iterator
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from statistics import median, quantiles
from time import perf_counter
from typing import TYPE_CHECKING, NamedTuple, Self

from lightconv.device import machine_bytes, read_megabytes
from lightconv.models.config import ModelConfig
from lightconv.train.config import NesterovConfig, TrainConfig

if TYPE_CHECKING:
    import torch

    from lightconv.train.data import TrainingData

# Positions in a sentence of the batch that is estimated.
LENGTH = 32
FLOAT = 4
# Updates that are measured at least.
UPDATES = 3


class MemoryEstimate(NamedTuple):
    """Bytes of a training process.

    optimizer    state of the optimiser and moving average
    activations  tensors kept for the backward pass
    workspace    temporary tensors: a third of the activations, as measured with three models
    """

    parameters: int
    gradients: int
    optimizer: int
    activations: int
    workspace: int

    @property
    def total(self) -> int:
        return sum(self)


def estimate(model: ModelConfig, train: TrainConfig) -> MemoryEstimate:
    """The memory of one process with batches of `train.max_tokens` positions."""
    import torch

    from lightconv.models.folder import build_empty
    from lightconv.ops.vocabulary import chunk_of

    built = build_empty(model).train()
    weights = sum(p.numel() for p in built.parameters()) * FLOAT
    copies = 1 if isinstance(train.optimizer, NesterovConfig) else 2
    copies += train.ema > 0.0
    rows = max(1, train.max_tokens // LENGTH)
    tokens = torch.empty(rows, min(LENGTH, train.max_tokens), dtype=torch.int64, device="meta")
    known = {p.untyped_storage()._cdata for p in built.parameters()}
    saved: dict[int, torch.UntypedStorage] = {}  # alive, or an address would be used again

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in known:
            saved.setdefault(storage._cdata, storage)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        built.features(*[tokens] * len(model.stacks))
    vocab = model.vocab_sizes[-1] if model.adaptive is None else model.adaptive.cutoffs[0]
    halved = 2 if train.precision in ("bf16", "fp16") else 1
    activations = sum(each.nbytes() for each in saved.values()) // halved
    # The loss: one chunk of logits and their gradient, and the gradients of what it reads.
    chunk = min(chunk_of(vocab), tokens.numel())
    activations += (2 * chunk * vocab + vocab * model.dim + tokens.numel() * model.dim) * FLOAT
    return MemoryEstimate(weights, weights, copies * weights, activations, activations // 3)


def measure_pace(
    model: ModelConfig,
    train: TrainConfig,
    device: "torch.device",
    data: "TrainingData | None" = None,
    *,
    least: float = 1.0,
) -> tuple[float, float]:
    """Seconds of an update and its target tokens, on a model thrown away.

    Tokens are a median, the speed is a fast quartile: other work on the machine only slows it.

    data   batches to use; without, an update is that many batches of invented tokens
    least  seconds to measure, in three updates or more
    """
    import torch

    from lightconv.data import Batch, Position
    from lightconv.models.folder import build
    from lightconv.train.distributed import Group
    from lightconv.train.trainer import Trainer

    def invented() -> list[Batch]:
        tokens = torch.randint(
            4, min(model.vocab_sizes), (max(1, train.max_tokens // LENGTH), LENGTH)
        )
        inputs = (tokens,) * len(model.stacks)
        batches = train.batches_per_update or -(-train.tokens_per_update // tokens.numel())
        return [Batch(inputs, tokens)] * batches

    with torch.random.fork_rng(), Allocator(most_kept(device.type)), ExitStack() as stack:
        trainer = Trainer(build(model).to(device), train)
        found: list[tuple[float, float]] = []
        each: Iterator[list[Batch]] = iter(invented, None)
        if data is not None:
            each = stack.enter_context(data.updates(Position(train.seed), train, Group()))
        began = perf_counter()
        for batches in each:
            start = perf_counter()
            record = trainer.update(batches)
            found.append((perf_counter() - start, record.tokens))
            if len(found) > UPDATES and perf_counter() - began > least:
                break
    # The first update includes all of a start.
    tokens = median(count for _, count in found[1:])
    rate = quantiles((count / spent for spent, count in found[1:]), n=4)[-1]
    return tokens / rate, tokens


SETTING = "LIGHTCONV_TRAIN_KEEP_MB"
_TRIM, _MMAP, _MMAP_MAX = -1, -3, -4  # mallopt: thresholds of trimming and of maps, number of maps
# Values that glibc reaches by itself once large blocks have been freed, and its number of maps.
_USUAL = {_TRIM: 64 << 20, _MMAP: 32 << 20, _MMAP_MAX: 65536}
_STATUS = Path("/proc/self/statm")


class Allocator:
    """Keeps freed memory while it is open, until the process is larger than `most` bytes.

    kept  False with a bound of 0, and with other C libraries
    """

    def __init__(self, most: int | None = None) -> None:
        self.most = most_kept() if most is None else most
        self.kept = False

    def __enter__(self) -> Self:
        if self.most > 0 and (libc := _glibc()):
            self.kept = bool(libc.mallopt(_MMAP_MAX, 0) and libc.mallopt(_TRIM, 2**31 - 1))
        return self

    def release(self) -> bool:
        """Returns free memory to the system if the process has outgrown its bound."""
        grown = self.kept and resident_bytes() > self.most
        if grown and (libc := _glibc()):
            libc.malloc_trim(0)
        return grown

    def __exit__(self, *_: object) -> None:
        if self.kept and (libc := _glibc()):
            for item in _USUAL.items():
                libc.mallopt(*item)
            libc.malloc_trim(0)
        self.kept = False


def most_kept(device: str = "cpu", processes: int = 1) -> int:
    """Bytes up to which each process keeps freed memory while it trains.

    The setting, else half of the machine's memory; 0 on a GPU and without glibc.
    """
    whole = read_megabytes(SETTING, machine_bytes() // 2)
    return 0 if device != "cpu" or _glibc() is None else whole // processes


def resident_bytes() -> int:
    """Resident memory of this process; 0 if the system does not tell."""
    try:
        return int(_STATUS.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


@cache
def _glibc() -> ctypes.CDLL | None:
    return ctypes.CDLL(None) if platform.libc_ver()[0] == "glibc" else None
