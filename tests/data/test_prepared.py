"""A prepared folder that was damaged, or made by a stranger: which file, and what to run."""

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lightconv.corpora.synthetic import Settings, make
from lightconv.data.prepare import prepare
from lightconv.data.prepared import Prepared
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
    data.verify()
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
    with pytest.raises(ValueError, match=r"vocab\.txt\): changed since .*Run `lightconv prepare`"):
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
