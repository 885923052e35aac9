"""The synthetic tasks: what a batch holds, and that it depends on its seed and number only."""

import dataclasses
from itertools import islice

import pytest
import torch
from torch import Tensor

from lightconv.data import BOS, EOS, PAD, SPECIALS, TASKS, UNK, Synthetic
from lightconv.models import Seq2SeqConfig


def sentences(batch: Tensor) -> list[list[int]]:
    return [[token for token in row if token != PAD] for row in batch.tolist()]


def test_the_special_ids_are_those_of_the_original() -> None:
    assert (BOS, PAD, EOS, UNK) == (0, 1, 2, 3)
    fields = {field.name: field.default for field in dataclasses.fields(Seq2SeqConfig)}
    assert fields["pad"] == PAD


@pytest.mark.parametrize("task", TASKS)
def test_a_batch_is_the_task(task: str) -> None:
    data = Synthetic(task=task, symbols=5, min_len=1, max_len=6, sentences=50)
    batch = data.batch(3)
    triples = zip(*map(sentences, (*batch.inputs, batch.target)), strict=True)
    lengths = set()
    for source, target_in, target in triples:
        *symbols, end = source
        assert end == EOS
        assert all(SPECIALS <= symbol < data.vocab for symbol in symbols)
        assert target == [*TASKS[task](symbols), EOS]
        assert target_in == [EOS, *target[:-1]]
        lengths.add(len(symbols))
    assert lengths == set(range(1, 7))
    assert batch.target.dtype == torch.int64
    assert batch.rows is None


def test_reverse_reverses_and_copy_copies() -> None:
    assert TASKS["reverse"]([4, 5, 6]) == [6, 5, 4]
    assert TASKS["copy"]([4, 5, 6]) == [4, 5, 6]


def test_batches_depend_on_seed_and_number_only() -> None:
    data = Synthetic(task="copy", seed=7)
    for index, batch in enumerate(islice(data, 3)):
        again = data.batch(index)
        assert torch.equal(batch.target, again.target)
        assert all(map(torch.equal, batch.inputs, again.inputs))
    first = sentences(data.batch(0).target)
    assert first != sentences(data.batch(1).target)
    assert first != sentences(Synthetic(task="copy", seed=8).batch(0).target)


@pytest.mark.parametrize(
    "changes", [{"task": "sort"}, {"min_len": 0}, {"min_len": 9, "max_len": 8}, {"sentences": 0}]
)
def test_nonsense_is_refused(changes: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="must"):
        Synthetic(**{"task": "copy", **changes})
