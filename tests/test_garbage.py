"""R11: a reader of a damaged file returns a result or raises ValueError, nothing else."""

import json
import random
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from lightconv.config import read, to_json, to_toml
from lightconv.corpora.synthetic import Settings, make
from lightconv.data import Pipeline, Prepared, Store, Vocabulary
from lightconv.data.prepare import prepare as prepare_corpus
from lightconv.data.text import read_lines
from lightconv.files import write_manifest
from lightconv.recipe import Recipe
from lightconv.train.checkpoints import Checkpoints, read_checkpoint
from tests.harness.examples import prepare, recipe

Reader = Callable[[Path], object]
PIECES = [
    *(b"{", b"}", b"[", b"]", b'"', b",", b":", b"=", b"\n", b"\r\n", b"\0", b"-", b" ", b"\\"),
    *(b"null", b"NaN", b"1e999", b"9" * 40, b"\xff", b"\xed\xa0\x80", b"\xef\xbb\xbf", b"[" * 300),
    *(b'{"a":' * 300, b"\xf0\x9f\x98\x80", b"\xe2\x80\xa8", b"\x80\x04N.", b"PK\x03\x04"),
]


def damage(data: bytes, chance: random.Random) -> bytes:
    """Some places replaced, removed or doubled; sometimes the end is missing."""
    for _ in range(chance.randint(1, 4)):
        start = chance.randrange(len(data) + 1)
        end = min(len(data), start + chance.choice([0, 0, 1, 1, 3, 20, 300]))
        piece = chance.choice([*PIECES, b"", data[start:end] * 2, chance.randbytes(4)])
        data = data[:start] + piece + data[end:]
    return data[: chance.randrange(len(data) + 1)] if chance.random() < 0.1 else data


NAMES = [*("json", "toml", "vocabulary", "fairseq", "pipeline", "codes", "prepared", "data", "ids")]
NAMES += ["lines", "manifest", "state", "tensors"]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Reader]]:
    return readers(tmp_path_factory.mktemp("files"))


@pytest.mark.filterwarnings("ignore")  # a byte order mark is one of the inputs
@pytest.mark.parametrize("times", [300, pytest.param(10_000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", NAMES)
def test_damage_is_read_or_refused(
    name: str, times: int, files: dict[str, tuple[Path, Reader]]
) -> None:
    path, read = files[name]
    read(path)
    good, chance, refused = path.read_bytes(), random.Random(name), 0
    for _ in range(times):
        path.write_bytes(damage(good, chance))
        try:
            read(path)
        except ValueError as error:
            assert "\n" not in str(error)
            refused += 1
    path.write_bytes(good)
    assert refused > 0


def test_damage_varies() -> None:
    chance = random.Random(0)
    found = {damage(b"some text", chance) for _ in range(200)}
    assert len(found) > 150 and any(len(data) > 300 for data in found)


def readers(folder: Path) -> dict[str, tuple[Path, Reader]]:
    """A good file of each kind and its reader."""
    data = prepare(folder / "data")
    corpus = make("synthetic-translation", Settings(train=50, valid=5, test=5))
    made = prepare_corpus(corpus, folder / "made").folder
    (folder / "dict.txt").write_text("".join(f"w{n} {n}\n" for n in range(20)))

    def encode(_: Path) -> None:
        pipeline = Pipeline.load(made)
        pipeline.decode(0, pipeline.encode(0, ["some words"])[0])

    def open_prepared(_: Path) -> None:
        write_manifest(made)  # so that it agrees
        found = Prepared.open(made)
        assert found.task and found.vocab_sizes and found.references("valid")

    with Checkpoints(folder / "checkpoints") as checkpoints:
        checkpoint = checkpoints.save(
            1,
            {"model": {"weight": torch.ones(1024)}, "optimizer": {"step": torch.ones(3)}},
            {"epoch": 1},
        )
    small = recipe()
    texts = {"config.json": to_json(small), "config.toml": to_toml(small)}
    for name, text in texts.items():
        (folder / name).write_text(text)
    lines = folder / "text"
    lines.write_bytes(json.dumps(small.about).encode() * 20 + "\nä\n".encode() * 20)
    return {
        "json": (folder / "config.json", lambda path: read(path, Recipe)),
        "toml": (folder / "config.toml", lambda path: read(path, Recipe)),
        "vocabulary": (data / "vocab.txt", Vocabulary.load),
        "fairseq": (folder / "dict.txt", Vocabulary.from_fairseq),
        "pipeline": (made / "pipeline.json", encode),
        "codes": (made / "codes.txt", encode),
        "prepared": (made / "prepared.json", open_prepared),
        "data": (data / "train.source.idx", lambda path: Store(data, "train").verify()),
        "ids": (data / "train.source.bin", lambda path: Store(data, "train").verify()),
        "lines": (lines, lambda path: list(read_lines(path))),
        "manifest": (checkpoint / "manifest.json", lambda path: read_checkpoint(checkpoint)),
        "state": (checkpoint / "state.json", lambda path: read_checkpoint(checkpoint)),
        "tensors": (checkpoint / "model.safetensors", lambda path: read_checkpoint(checkpoint)),
    }
