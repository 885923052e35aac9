"""A manifest finds every change of its files, and garbage in its place is an error."""

import hashlib
import json
import random
from pathlib import Path
from typing import Any

import pytest

from lightconv.files import read_manifest, verify_manifest, write_manifest

FILES = {"a.bin": b"abc", "vocab.txt": "ä\n".encode(), "empty": b""}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, data in FILES.items():
        (tmp_path / name).write_bytes(data)
    (tmp_path / ".hidden").write_bytes(b"x")
    (tmp_path / "sub").mkdir()
    write_manifest(tmp_path)
    return tmp_path


def test_it_lists_sizes_and_digests(folder: Path) -> None:
    assert json.loads((folder / "manifest.json").read_text()) == {
        "format": "lightconv manifest",
        "version": 1,
        "files": {
            name: {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
            for name, data in sorted(FILES.items())
        },
    }
    verify_manifest(folder)
    before = (folder / "manifest.json").read_bytes()
    write_manifest(folder)
    assert (folder / "manifest.json").read_bytes() == before
    assert not (folder / ".manifest.json.new").exists()


def test_every_change_is_found(folder: Path) -> None:
    for place in range(24):
        data = bytearray(FILES["a.bin"])
        data[place // 8] ^= 1 << place % 8
        (folder / "a.bin").write_bytes(data)
        with pytest.raises(ValueError, match=r"a\.bin: SHA-256 .*, expected ba7816bf8f01\.\.\."):
            verify_manifest(folder)
        verify_manifest(folder, quick=True)
    for wrong in (b"ab", b"abcd"):
        (folder / "a.bin").write_bytes(wrong)
        with pytest.raises(ValueError, match=rf"a\.bin: {len(wrong)} bytes, expected 3"):
            verify_manifest(folder, quick=True)
    (folder / "a.bin").unlink()
    with pytest.raises(ValueError, match=r"has no file a\.bin"):
        verify_manifest(folder)


def test_what_is_not_listed_does_not_matter(folder: Path) -> None:
    (folder / "notes").write_text("mine")
    verify_manifest(folder)


def entry(**changes: Any) -> dict[str, Any]:
    return {"bytes": 0, "sha256": "", **changes}


@pytest.mark.parametrize(
    "files",
    [
        [],
        None,
        {"../other/a.bin": entry()},
        {"/etc/passwd": entry()},
        {"..": entry()},
        {"": entry()},
        {"a\0b": entry()},
        {"a.bin": []},
        {"a.bin": entry(bytes="3")},
        {"a.bin": entry(bytes=True)},
        {"a.bin": entry(sha256=None)},
        {"a.bin": {}},
        {"x" * 300: entry()},
        {"\ud800": entry()},
    ],
)
def test_hostile_lists_are_refused(folder: Path, files: Any) -> None:
    data = {"format": "lightconv manifest", "version": 1, "files": files}
    (folder / "manifest.json").write_text(json.dumps(data))
    with pytest.raises(ValueError, match=r"manifest|cannot be read|regular file|surrogates"):
        verify_manifest(folder)


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("", "is not a manifest"),
        ("[]", 'expected "format"'),
        ('{"format": "lightconv manifest", "version": 2, "files": {}}', "version 2, expected 1"),
        ('{"format": "lightconv manifest", "version": true, "files": {}}', "version True"),
        (" " * 300_000, "longer than"),
    ],
)
def test_other_files_are_refused(folder: Path, text: str, match: str) -> None:
    (folder / "manifest.json").write_text(text)
    with pytest.raises(ValueError, match=match):
        read_manifest(folder)


def test_no_garbage_is_worse_than_an_error(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    intact = (folder / "manifest.json").read_bytes()
    data = bytearray()
    monkeypatch.setattr(Path, "read_bytes", lambda _: bytes(data))  # writing takes milliseconds
    rng = random.Random(0)
    pieces = [b'"', b"{", b"}", b"[", b":", b",", b"\\", b"\0", b"\xff", b"9" * 30, b"null", b"../"]
    usable = 0
    for _ in range(10_000):
        data[:] = intact
        for _ in range(rng.randint(1, 4)):
            place = rng.randrange(len(data) + 1)
            data[place : place + rng.randrange(3)] = rng.choice(pieces)
        try:
            read_manifest(folder)
            usable += 1
            verify_manifest(folder)
        except ValueError as error:
            assert str(error) and "\n" not in str(error)
    assert 0 < usable < 5000
