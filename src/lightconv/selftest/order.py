"""R3: the global order of batches, whatever the number of ranks."""

from collections.abc import Iterator
from itertools import chain, islice, zip_longest
from pathlib import Path

from lightconv.data import Batches, Loader, Pairs, Position, Store
from lightconv.selftest.examples import prepare
from lightconv.selftest.promise import Figures, expect

SEED, TOKENS = 3, 120
Order = list[list[int]]


def check_order(folder: Path, full: bool) -> Figures:
    """R3."""
    batches = Batches(
        Pairs(Store(prepare(folder, batches=20 if full else 8), "train")), max_tokens=60
    )
    epochs = 3
    updates = [
        len(batches.plan.epoch(SEED, epoch).updates(tokens=TOKENS)) - 1 for epoch in range(epochs)
    ]
    whole = _read(batches, Position(SEED), sum(updates))
    for epoch in range(epochs):
        begin = sum(updates[:epoch])
        batch_rows = chain.from_iterable(whole[begin : begin + updates[epoch]])
        rows = list(chain.from_iterable(batch_rows))
        every = sorted(rows) == list(range(len(rows)))
        expect(every, f"epoch {epoch} has not every example exactly once")
    for ranks in (1, 2, 3, 4):
        found = _read(batches, Position(SEED), len(whole), ranks)
        expect(found == whole, f"another order with {ranks} ranks")
    for done, position in enumerate(_positions(batches, len(whole))):
        found = _read(batches, position, min(3, len(whole) - done))
        expect(found == whole[done : done + 3], f"another order after a resume at {position}")
    return {"ranks": [1, 2, 3, 4], "updates": len(whole), "epochs": epochs, "resumes": len(whole)}


def _read(batches: Batches, position: Position, updates: int, ranks: int = 1) -> list[Order]:
    """The rows of the batches of each update, those of all ranks in their global order."""
    per_rank = [list(_updates(batches, position, updates, rank, ranks)) for rank in range(ranks)]
    return [
        [batch for row in zip_longest(*parts) for batch in row if batch is not None]
        for parts in zip(*per_rank, strict=True)
    ]


def _updates(
    batches: Batches, position: Position, updates: int, rank: int, ranks: int
) -> Iterator[Order]:
    with Loader(batches, position, tokens_per_update=TOKENS, rank=rank, ranks=ranks) as loader:
        for found in islice(loader, updates):
            yield [batch.rows.tolist() for batch in found if batch.rows is not None]


def _positions(batches: Batches, updates: int) -> Iterator[Position]:
    """Where a run would go on after 0, 1, 2, ... updates."""
    with Loader(batches, Position(SEED), tokens_per_update=TOKENS) as loader:
        for _ in range(updates):
            yield loader.position
            next(loader)
