"""A prepared folder as a run reads it."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest

from lightconv.data import EOS, PAD, Batch, Position, StoreWriter
from lightconv.paper.recipes import RECIPES
from lightconv.train import Group, PreparedData
from tests.harness.examples import DATA, prepare, train_config

CONFIG = train_config()


def rows(batches: Iterable[Batch]) -> list[tuple[tuple[int, ...], ...]]:
    """Examples without padding, in order."""
    return [
        tuple(tuple(part[part != PAD].tolist()) for part in parts)
        for batch in batches
        for parts in zip(*batch.inputs, batch.target, strict=True)
    ]


def test_an_epoch_has_every_example_once(tmp_path: Path) -> None:
    data = PreparedData(prepare(tmp_path))
    seen = []
    with data.updates(Position(3), CONFIG, Group()) as updates:
        while updates.position.epoch == 0:
            seen += rows(next(updates))
    wanted = rows(DATA.batch(i) for i in range(5))
    assert sorted(seen) == sorted(wanted)
    assert seen != wanted
    assert data.sizes == (DATA.vocab, DATA.vocab)
    assert data.pairs


def test_updates_go_on_from_any_position(tmp_path: Path) -> None:
    data = PreparedData(prepare(tmp_path))
    with data.updates(Position(1), CONFIG, Group()) as updates:
        whole = [(rows(next(updates)), updates.position) for _ in range(9)]
    for place in (0, 3, 7):
        with data.updates(whole[place][1], CONFIG, Group()) as updates:
            assert (rows(next(updates)), updates.position) == whole[place + 1]


def test_the_mean_update_is_what_the_updates_have(tmp_path: Path) -> None:
    data = PreparedData(prepare(tmp_path))
    tokens, batches = data.tokens_per_update(CONFIG)
    with data.updates(Position(CONFIG.seed), CONFIG, Group()) as updates:
        counts = []
        while updates.position.epoch == 0:
            found = next(updates)
            counts.append((sum(batch.tokens for batch in found), len(found)))
    assert tokens == pytest.approx(sum(t for t, _ in counts) / len(counts))
    assert batches == pytest.approx(sum(b for _, b in counts) / len(counts))


@pytest.mark.parametrize("batches", [1, 2, 3, 7])
def test_updates_have_as_many_batches_as_the_recipe_means(batches: int, tmp_path: Path) -> None:
    """A batch of at most 60 positions has about 51 tokens: 60 of them mean one batch, not two."""
    data = PreparedData(prepare(tmp_path, batches=20))
    config = train_config(max_tokens=60, tokens_per_update=60 * batches)
    tokens, mean = data.tokens_per_update(config)
    assert tokens == pytest.approx(60 * batches, rel=0.2)
    assert mean == pytest.approx(60 * batches / 51, rel=0.25)


@pytest.mark.parametrize(
    "name, ranks, rounds",
    [("iwslt-de-en", 1, 1), ("billion-word", 32, 1), ("wmt-en-de", 8, 16), ("wmt-en-de", 1, 128)],
)
def test_an_update_has_the_batches_of_the_paper(
    name: str, ranks: int, rounds: int, tmp_path: Path
) -> None:
    """On each device so many rounds, and together the same examples in the same order."""
    data = PreparedData(prepare(tmp_path, batches=200))  # 3,200 examples, two or three a batch
    train = RECIPES[f"{name}-dynamicconv"].train
    config = replace(train, max_tokens=14)
    one = replace(config, batches_per_update=1)
    with data.updates(Position(1), one, Group()) as updates:
        batches: list[list[int]] = []
        while updates.position.epoch == 0:
            (batch,) = next(updates)
            batches.append(batch.rows.tolist())
    size = ranks * rounds
    assert len(batches) > 2 * size
    assert data.tokens_per_update(config)[1] == pytest.approx(
        len(batches) / -(-len(batches) // size)
    )
    for rank in range(ranks):
        group = Group()
        group.rank, group.size = rank, ranks
        with data.updates(Position(1), config, group) as updates:
            for begin in range(0, len(batches), size):
                found = [batch.rows.tolist() for batch in next(updates)]
                wanted = batches[begin : begin + size][rank::ranks]
                assert found == wanted
                assert len(found) == rounds or begin + size > len(batches)
            assert updates.position == Position(1, 1)


def test_validation_has_everything_however_long(tmp_path: Path) -> None:
    data = PreparedData(prepare(tmp_path))
    wanted = rows([replace(DATA, seed=DATA.seed + 1).batch(0)])
    assert sorted(rows(data.validation(train_config(max_tokens=3), Group()))) == sorted(wanted)
    ranks = []
    for rank in range(2):
        group = Group()
        group.rank, group.size = rank, 2
        ranks += rows(data.validation(CONFIG, group))
    assert sorted(ranks) == sorted(wanted)


def test_a_text_is_read_as_a_language_model_does(tmp_path: Path) -> None:
    data = PreparedData(prepare(tmp_path, text=True))
    assert not data.pairs
    (batch, *_) = data.validation(CONFIG, Group())
    assert len(batch.inputs) == 1
    for read, said in rows([batch]):
        assert (read[0], said[-1]) == (EOS, EOS)
        assert read[1:] == said[:-1]


def test_the_digests_tell_of_every_change(tmp_path: Path) -> None:
    folder = prepare(tmp_path / "a")
    before = PreparedData(folder).digests
    assert set(before) == {"train", "valid", "vocab.txt"}
    assert PreparedData(prepare(tmp_path / "b")).digests == before
    (folder / "vocab.txt").write_text("other")
    changed = PreparedData(folder).digests
    assert [name for name in before if changed[name] != before[name]] == ["vocab.txt"]
    other = PreparedData(prepare(tmp_path / "c", batches=6)).digests
    assert [name for name in before if other[name] != before[name]] == ["train"]


def test_files_are_those_of_the_tokeniser(tmp_path: Path) -> None:
    folder = prepare(tmp_path)
    for name in ("codes.txt", "pipeline.json", "notes.txt"):
        (folder / name).write_text(name)
    assert set(PreparedData(folder).files()) == {"vocab.txt", "codes.txt", "pipeline.json"}


def test_damage_is_found_before_training(tmp_path: Path) -> None:
    folder = prepare(tmp_path)
    PreparedData(folder).verify()
    path = folder / "train.target.bin"
    data = bytearray(path.read_bytes())
    data[-2] ^= 1
    path.write_bytes(bytes(data))
    with pytest.raises(ValueError, match=r"train\.target\.bin.*SHA-256.*lightconv prepare"):
        PreparedData(folder).verify()


def test_what_cannot_be_used_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="there is no folder"):
        PreparedData(tmp_path / "nowhere")
    folder = prepare(tmp_path / "a")
    with pytest.raises(ValueError, match=r"split train: .* max_tokens=4"):
        PreparedData(folder).tokens_per_update(train_config(max_tokens=4))
    with StoreWriter(folder, "valid", {"source": 12, "target": 99}) as writer:
        writer.append([[5]], [[5]])
    with pytest.raises(ValueError, match="train and valid have other sides or vocabularies"):
        PreparedData(folder)
    with StoreWriter(folder, "valid", {"source": 12, "target": 12}) as writer:
        writer.append([], [])
    with pytest.raises(ValueError, match="no examples in the split 'valid'"):
        PreparedData(folder)
