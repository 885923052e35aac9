"""A prepared folder, also damaged or made by a stranger; its filters and statistics."""

import json
import math
import random
import shutil
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from lightconv.config import ConfigError, from_dict
from lightconv.corpora.synthetic import Settings, make
from lightconv.data.config import FilterConfig
from lightconv.data.prepare import prepare
from lightconv.data.prepared import (
    BARS,
    Prepared,
    apply_filters,
    count_lengths,
    describe_side,
    find_edges,
    find_percentile,
)
from lightconv.data.vocabulary import Vocabulary
from lightconv.files import write_manifest

SETTINGS = Settings(train=50, valid=10, test=10)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return prepare(
        make("synthetic-translation", SETTINGS), tmp_path_factory.mktemp("made") / "bytes"
    ).folder


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "data"))


def test_what_it_holds(folder: Path) -> None:
    data = Prepared.open(folder)
    splits = make("synthetic-translation", SETTINGS).splits
    expected = {split: list(read()) for split, read in splits.items()}
    assert data.splits == ("train", "valid", "test")
    for split, examples in expected.items():
        store = data.store(split)
        assert [
            tuple(data.pipeline.decode(side, store[i][side]) for side in (0, 1))
            for i in range(len(store))
        ] == examples
    assert data.references("test") == [target for _, target in expected["test"]]
    assert list(data.texts("valid", "source")) == [source for source, _ in expected["valid"]]
    assert data.vocab_sizes == data.pipeline.vocabularies().sizes() == data.store("train").vocab
    assert set(data.files()) == {"pipeline.json", "codes.txt", "vocab.txt"}
    with pytest.raises(ValueError, match="has the splits train, valid, test, no 'dev'"):
        data.store("dev")
    with pytest.raises(ValueError, match="no plain text of train, only its ids"):
        data.references("train")


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("nothing", r"nothing does not exist, .* Run `lightconv prepare"),
        ("vocab.txt", r"vocab\.txt has no prepared\.json, expected a prepared folder"),
        ("empty", r"empty has no prepared\.json"),
    ],
)
def test_no_prepared_folder(folder: Path, path: str, message: str) -> None:
    (folder / "empty").mkdir()
    with pytest.raises(ValueError, match=message):
        Prepared.open(folder / path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.update(version=2), r"version 2 of the format, expected 1"),
        (lambda t: t.update(version=True), r"version True of the format, expected 1"),
        (lambda t: t.pop("format"), r'expected "format": "lightconv-prepared"'),
        (lambda t: t.update(splits={}), r"sides or splits are missing"),
        (lambda t: t["splits"].pop("valid"), None),
        (lambda t: t["splits"]["valid"].update(examples=3), r"10 examples .*expected 3"),
        (lambda t: t["splits"]["valid"].update(digest="0"), r"10 examples of another preparation"),
        (lambda t: t["splits"].update({"../x": t["splits"]["valid"]}), r"no split '\.\./x'"),
        (lambda t: t["vocabulary"].update(target=9), r"ids of another vocabulary \(\d+, \d+\)"),
        (lambda t: t["vocabulary"].update(more=9), r"sides or splits are missing"),
        (lambda t: t["origin"]["task"].update(kind="art"), r"origin\.task\.kind='art' must be one"),
        (lambda t: t.update(extra=1), r"unknown field extra=1"),
    ],
)
def test_other_contents(
    folder: Path, change: Callable[[dict[str, Any]], object], message: str | None
) -> None:
    path = folder / "prepared.json"
    table = json.loads(path.read_text())
    change(table)
    path.write_text(json.dumps(table))
    write_manifest(folder)  # so that it agrees
    if message is None:
        assert Prepared.open(folder).splits == ("train", "test")
        return
    with pytest.raises(ValueError, match=rf"{message}.*Run `lightconv prepare`"):
        Prepared.open(folder)


def test_another_vocabulary_or_pipeline(folder: Path) -> None:
    tokens = Vocabulary.load(folder / "vocab.txt").tokens
    Vocabulary((*tokens[:-2], *tokens[:-3:-1])).save(folder / "vocab.txt")
    with pytest.raises(ValueError, match=r"vocab\.txt: SHA-256 .*Run `lightconv prepare`"):
        Prepared.open(folder)
    # Even with checksums that agree it must have as many tokens as there are ids.
    Vocabulary((*tokens, "x")).save(folder / "vocab.txt")
    write_manifest(folder)
    with pytest.raises(ValueError, match=rf"{len(tokens) + 1}.* tokens, expected .{len(tokens)}"):
        _ = Prepared.open(folder).pipeline
    path = folder / "pipeline.json"
    path.write_text(path.read_text().replace('"lowercase": false', '"lowercase": true'))
    write_manifest(folder)
    with pytest.raises(ValueError, match=r"pipeline\.json\): not the one of prepared\.json"):
        _ = Prepared.open(folder).pipeline


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_files_that_are_cut_or_missing_are_found_when_opened(folder: Path) -> None:
    for name in names(folder):
        path = folder / name
        data = path.read_bytes()
        for size in (0, len(data) // 2, len(data) - 2):
            path.write_bytes(data[:size])
            with pytest.raises(ValueError, match=r"Run `lightconv prepare`"):
                Prepared.open(folder)
        path.unlink()
        with pytest.raises(ValueError, match=rf"{name}.*Run `lightconv prepare`"):
            Prepared.open(folder)
        path.write_bytes(data)
    Prepared.open(folder)


def test_flipped_bits_are_found(folder: Path) -> None:
    """Those of models' files when the folder is opened, all of them by `verify`."""
    draw = random.Random(0)
    cheap = {"prepared.json", "pipeline.json", "codes.txt", "vocab.txt"}
    for name in names(folder):
        data = bytearray((folder / name).read_bytes())
        for _ in range(3):
            place, bit = draw.randrange(len(data)), 1 << draw.randrange(8)
            data[place] ^= bit
            (folder / name).write_bytes(data)
            with pytest.raises(ValueError, match=rf"{name}|manifest"):
                found = Prepared.open(folder)
                assert name not in cheap
                found.verify()
            data[place] ^= bit
        (folder / name).write_bytes(data)
    Prepared.open(folder).verify()


def test_a_link_that_leaves_the_folder_is_refused(folder: Path) -> None:
    outside = folder.with_name("outside.txt")
    (folder / "valid.target.txt").rename(outside)
    (folder / "valid.target.txt").symlink_to(outside)
    with pytest.raises(ValueError, match="is a link that leaves its folder"):
        Prepared.open(folder)


def rule(config: FilterConfig, lengths: tuple[int, ...]) -> str | None:
    """The first thing that is wrong with an example."""
    shortest, longest = min(lengths), max(lengths)
    if shortest == 0 and (len(lengths) == 2 or config.min_len >= 1):
        return "empty"
    if shortest < config.min_len:
        return "short"
    if config.max_len is not None and longest > config.max_len:
        return "long"
    if config.max_ratio is not None and longest / shortest > config.max_ratio:
        return "ratio"
    return None


CONFIGS = st.builds(
    FilterConfig,
    min_len=st.integers(0, 3),
    max_len=st.none() | st.integers(3, 9),
    max_ratio=st.none() | st.sampled_from([1.0, 1.5, 2.0, 9.0]),
)


@given(
    config=CONFIGS,
    examples=st.integers(1, 2).flatmap(
        lambda sides: st.lists(st.tuples(*[st.integers(0, 12)] * sides), min_size=1, max_size=30)
    ),
)
def test_filters(config: FilterConfig, examples: list[tuple[int, ...]]) -> None:
    if len(examples[0]) == 1:
        config = FilterConfig(min_len=config.min_len, max_len=config.max_len)
    kept, dropped = apply_filters(config, [np.array(side) for side in zip(*examples, strict=True)])
    expected = [rule(config, example) for example in examples]
    assert kept.tolist() == [reason is None for reason in expected]
    assert dropped == Counter(reason for reason in expected if reason)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"min_len": -1}, "min_len=-1"),
        ({"max_len": 0}, "max_len=0"),
        ({"min_len": 9, "max_len": 8}, "min_len=9 .*filters.max_len=8"),
        ({"max_ratio": 0.5}, "max_ratio=0.5"),
        ({"unit": "letters"}, "unit='letters' must be one of tokens, words"),
    ],
)
def test_what_makes_no_filter(fields: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        from_dict(FilterConfig, fields, "filters")


LENGTHS = st.lists(st.integers(0, 3000), min_size=1, max_size=60)


def counted(*parts: Sequence[int]) -> NDArray[np.int64]:
    counts = np.zeros(0, dtype=np.int64)
    for part in parts:
        counts = count_lengths(counts, np.array(part, dtype=np.int64))
    return counts


@given(LENGTHS, LENGTHS)
def test_lengths(first: list[int], second: list[int]) -> None:
    counts, all_ = counted(first, second, []), sorted(first + second)
    found = describe_side(counts, 3, find_edges([counts]))
    assert found["tokens"] == sum(all_)
    assert found["unknown_rate"] == 3 / max(sum(all_), 1)
    assert found["mean"] == sum(all_) / len(all_)
    assert found["longest"] == all_[-1]
    for share in (1, 50, 90, 99, 100):
        assert find_percentile(counts, share) == all_[math.ceil(len(all_) * share / 100) - 1]
    # Every sentence is in one bar; at most a hundredth of all is beyond the bars with an end.
    edges = find_edges([counted(first), counted(second)])
    assert edges[:2] == [0, 1] and len(edges) <= BARS + 1
    for lengths in (first, second):
        bars = describe_side(counted(lengths), 0, edges)["histogram"]
        for bar in bars:
            last = math.inf if bar["to"] is None else bar["to"]
            assert bar["count"] == sum(bar["from"] <= length <= last for length in lengths)
        assert sum(bar["count"] for bar in bars) == len(lengths)
        assert bars[-1]["count"] <= 0.01 * len(lengths)


def test_no_lengths_at_all() -> None:
    found = describe_side(counted(), 0, find_edges([counted()]))
    assert (found["tokens"], found["mean"], found["longest"], found["unknown_rate"]) == (0,) * 4
    assert set(found["percentiles"].values()) == {0}


@pytest.mark.parametrize(
    ("longest", "step", "last"), [(7, 1, 8), (100, 10, 101), (101, 10, 111), (111, 20, 121)]
)
def test_steps_are_round(longest: int, step: int, last: int) -> None:
    assert find_edges([counted([longest])]) == [0, *range(1, last + 1, step)]
