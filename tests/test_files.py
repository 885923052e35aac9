"""Folders are written whole or not at all; links do not lead astray."""

import hashlib
import json
import os
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import pytest

from lightconv.files import (
    cache_folder,
    inside,
    lock,
    new_folder,
    verify_manifest,
    write_file,
    write_manifest,
)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_folder_appears_when_it_is_complete(tmp_path: Path) -> None:
    with new_folder(tmp_path / "deep" / "model") as fresh:
        assert fresh.parent == tmp_path / "deep"
        write_file(fresh / "a", b"1")
        assert not (tmp_path / "deep" / "model").exists()
    assert names(tmp_path / "deep") == ["model"]
    assert (tmp_path / "deep" / "model" / "a").read_bytes() == b"1"


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """A folder `model` that stands there already."""
    (tmp_path / "model").mkdir()
    write_file(tmp_path / "model" / "old", b"1")
    return tmp_path / "model"


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
@pytest.mark.parametrize("replace", [False, True])
def test_a_failure_leaves_nothing_new(old: Path, error: type[BaseException], replace: bool) -> None:
    with pytest.raises(error), new_folder(old, replace=replace) as fresh:
        write_file(fresh / "new", b"2")
        raise error
    assert names(old.parent) == ["model"]
    assert names(old) == ["old"]


def test_a_folder_is_replaced_only_if_asked(old: Path) -> None:
    for replace, left in ((False, "old"), (True, "new")):
        with (
            nullcontext() if replace else pytest.raises(OSError),
            new_folder(old, replace=replace) as fresh,
        ):
            write_file(fresh / "new", b"2")
        assert names(old) == [left]
    assert names(old.parent) == ["model"]


def test_the_old_folder_comes_back_if_the_new_one_cannot_take_its_place(
    old: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rename = Path.rename

    def fail_for_new(self: Path, target: Path) -> Path:
        if self.name.endswith(".new"):
            raise OSError(5, "Input/output error")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", fail_for_new)
    with pytest.raises(OSError, match="Input/output"), new_folder(old, replace=True) as fresh:
        write_file(fresh / "new", b"2")
    assert names(old.parent) == ["model"]
    assert names(old) == ["old"]


def test_short_writes_are_continued_and_no_file_written_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = os.write
    monkeypatch.setattr(os, "write", lambda file, data: write(file, data[:7]))
    write_file(tmp_path / "a", b"0123456789", memoryview(bytes(20)), b"")
    with pytest.raises(FileExistsError):
        write_file(tmp_path / "a", b"2")
    assert (tmp_path / "a").read_bytes() == b"0123456789" + bytes(20)


def test_links_may_stay_inside(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    (folder / "blobs").mkdir(parents=True)
    write_file(folder / "blobs" / "1", b"1")
    write_file(tmp_path / "outside", b"2")
    (folder / "good").symlink_to("blobs/1")
    (folder / "bad").symlink_to("../outside")
    (folder / "worse").symlink_to(tmp_path / "outside")
    (folder / "loop").symlink_to("loop")
    (folder / "dangling").symlink_to("nothing")
    os.mkfifo(folder / "pipe")
    assert inside(folder, "good").read_bytes() == b"1"
    for name, message in (
        ("bad", "bad is a link that leaves its folder"),
        ("worse", "worse is a link that leaves its folder"),
        ("loop", "cannot be read"),
        ("dangling", "has no file dangling"),
        ("none", "has no file none"),
        ("pipe", "is not a regular file"),
        ("blobs", "is not a regular file"),
    ):
        with pytest.raises(ValueError, match=message):
            inside(folder, name)


def test_a_lock_is_held_once_and_by_the_file_that_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "deep" / "lock"

    def is_busy() -> bool:
        with suppress(ValueError), lock(path, "busy", inherited=True):
            return False
        return True

    with lock(path, None, wait=pytest.fail, inherited=True):
        assert is_busy()
    assert not is_busy()
    opened = os.open

    def replace_at_once(*args: Any) -> int:
        handle = opened(*args)
        path.unlink()
        path.write_bytes(b"")
        return handle

    monkeypatch.setattr(os, "open", replace_at_once)
    assert is_busy()


def test_the_cache_is_where_the_environment_says(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value, expected in (
        ("HOME", "/home/x", "/home/x/.cache/lightconv"),
        ("XDG_CACHE_HOME", "/c", "/c/lightconv"),
        ("LIGHTCONV_CACHE", "/own", "/own"),
    ):
        for other in ("XDG_CACHE_HOME", "LIGHTCONV_CACHE"):
            monkeypatch.delenv(other, raising=False)
        monkeypatch.setenv(name, value)
        assert cache_folder() == Path(expected)
    monkeypatch.delenv("LIGHTCONV_CACHE")
    monkeypatch.setattr(Path, "home", Path("~nobody-of-this-name").expanduser)
    with pytest.raises(OSError, match="home directory"):  # an unknown user
        cache_folder()


# --- Manifests find every change of their files; garbage in their place is an error

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
    files = {
        name: {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        for name, data in sorted(FILES.items())
    }
    assert json.loads((folder / "manifest.json").read_text()) == OWN | {"files": files}
    verify_manifest(folder)
    before = names(folder)
    write_manifest(folder)
    assert names(folder) == before
    (folder / "notes").write_text("files that are not listed do not matter")
    verify_manifest(folder)


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


ENTRY = {"bytes": 0, "sha256": ""}
LISTS: list[Any] = [
    [],
    None,
    *({name: ENTRY} for name in ("../a.bin", "/etc/passwd", "..", "", "a\0b", "x" * 300, "\ud800")),
    *({"a.bin": entry} for entry in ([], {}, ENTRY | {"bytes": "3"}, ENTRY | {"bytes": True})),
    {"a.bin": ENTRY | {"sha256": None}},
]
OWN = {"format": "lightconv manifest", "version": 1, "files": {}}
HOSTILE = [
    ("", "is not a manifest"),
    ("[]", 'expected "format"'),
    (json.dumps(OWN | {"version": 2}), "version 2, expected 1"),
    (json.dumps(OWN | {"version": True}), "version True"),
    (" " * 300_000, "longer than"),
    *(
        (json.dumps(OWN | {"files": files}), "manifest|cannot be read|surrogates")
        for files in LISTS
    ),
]


@pytest.mark.parametrize(("text", "match"), HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_manifests_are_refused(folder: Path, text: str, match: str) -> None:
    (folder / "manifest.json").write_text(text)
    with pytest.raises(ValueError, match=match):
        verify_manifest(folder)
