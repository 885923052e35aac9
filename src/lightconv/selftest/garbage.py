"""R11: what the readers of files make of garbage: a result or a ValueError, nothing else."""

import json
import random
import warnings
from collections.abc import Callable
from pathlib import Path

from lightconv.config import read, to_json, to_toml
from lightconv.data import Store, Vocabulary
from lightconv.data.text import read_lines
from lightconv.recipe import Recipe
from lightconv.selftest.damage import tensors
from lightconv.selftest.examples import prepare, recipe
from lightconv.selftest.promise import BrokenError, Figures
from lightconv.train.checkpoint import read_checkpoint
from lightconv.train.checkpoints import Checkpoints

Reader = Callable[[Path], object]
PIECES = [
    *(b"{", b"}", b"[", b"]", b'"', b",", b":", b"=", b"\n", b"\r\n", b"\0", b"-", b" ", b"\\"),
    *(b"null", b"NaN", b"1e999", b"9" * 40, b"\xff", b"\xed\xa0\x80", b"\xef\xbb\xbf", b"[" * 300),
    *(b'{"a":' * 300, b"\xf0\x9f\x98\x80", b"\xe2\x80\xa8", b"\x80\x04N.", b"PK\x03\x04"),
]


def damage(data: bytes, chance: random.Random) -> bytes:
    """Some places replaced, removed, doubled; sometimes the end is gone."""
    for _ in range(chance.randint(1, 4)):
        start = chance.randrange(len(data) + 1)
        end = min(len(data), start + chance.choice([0, 0, 1, 1, 3, 20, 300]))
        piece = chance.choice([*PIECES, b"", data[start:end] * 2, chance.randbytes(4)])
        data = data[:start] + piece + data[end:]
    return data[: chance.randrange(len(data) + 1)] if chance.random() < 0.1 else data


def check_garbage(folder: Path, full: bool) -> Figures:
    """R11."""
    times = 10_000 if full else 300
    figures: Figures = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a byte order mark is one of the things that are tried
        for name, (path, read) in _readers(folder).items():
            read(path)
            refused = _refused(name, path, read, times)
            figures[name] = {"inputs": times, "refused": refused}
    return figures


def _refused(name: str, path: Path, read: Reader, times: int) -> int:
    """How many of so many damaged forms of a file are refused; all others must be read."""
    good, chance, refused = path.read_bytes(), random.Random(name), 0
    for _ in range(times):
        path.write_bytes(damage(good, chance))
        try:
            read(path)
        except ValueError:
            refused += 1
        except Exception as error:
            raise BrokenError(f"{name}: {type(error).__name__}: {error}") from error
    path.write_bytes(good)
    return refused


def _readers(folder: Path) -> dict[str, tuple[Path, Reader]]:
    """A good file of each kind and what reads it."""
    folder.mkdir(parents=True, exist_ok=True)
    data = prepare(folder / "data")
    with Checkpoints(folder / "checkpoints") as checkpoints:
        checkpoint = checkpoints.save(1, tensors(1), {"epoch": 1})
    small = recipe()
    texts = {"config.json": to_json(small), "config.toml": to_toml(small)}
    for name, text in texts.items():
        (folder / name).write_text(text)
    lines = folder / "text"
    lines.write_bytes(json.dumps(small.about).encode() * 20 + "\nä\n".encode() * 20)
    (index,) = data.glob("train*source*.idx")
    return {
        "json": (folder / "config.json", lambda path: read(path, Recipe)),
        "toml": (folder / "config.toml", lambda path: read(path, Recipe)),
        "vocabulary": (data / "vocab.txt", Vocabulary.load),
        "data": (index, lambda path: Store(data, "train").verify()),
        "lines": (lines, lambda path: list(read_lines(path))),
        "manifest": (checkpoint / "manifest.json", lambda path: read_checkpoint(checkpoint)),
        "state": (checkpoint / "state.json", lambda path: read_checkpoint(checkpoint)),
        "tensors": (checkpoint / "model.safetensors", lambda path: read_checkpoint(checkpoint)),
    }
