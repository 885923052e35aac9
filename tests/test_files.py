"""Folders are written whole or not at all; links do not lead astray."""

import os
from pathlib import Path

import pytest

from lightconv.files import inside, new_folder, write_file


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_folder_appears_when_it_is_complete(tmp_path: Path) -> None:
    with new_folder(tmp_path / "deep" / "model") as fresh:
        assert fresh.parent == tmp_path / "deep"
        write_file(fresh / "a", b"1")
        assert not (tmp_path / "deep" / "model").exists()
    assert names(tmp_path / "deep") == ["model"]
    assert (tmp_path / "deep" / "model" / "a").read_bytes() == b"1"


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
@pytest.mark.parametrize("replace", [False, True])
def test_a_failure_leaves_nothing_new(
    error: type[BaseException], replace: bool, tmp_path: Path
) -> None:
    (tmp_path / "model").mkdir()
    write_file(tmp_path / "model" / "old", b"1")
    with pytest.raises(error), new_folder(tmp_path / "model", replace=replace) as fresh:
        write_file(fresh / "new", b"2")
        raise error
    assert names(tmp_path) == ["model"]
    assert names(tmp_path / "model") == ["old"]


def test_what_stands_there_is_replaced_only_if_asked(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    write_file(tmp_path / "model" / "old", b"1")
    with pytest.raises(OSError), new_folder(tmp_path / "model") as fresh:
        write_file(fresh / "new", b"2")
    assert names(tmp_path / "model") == ["old"]
    with new_folder(tmp_path / "model", replace=True) as fresh:
        write_file(fresh / "new", b"2")
    assert names(tmp_path / "model") == ["new"]
    assert names(tmp_path) == ["model"]


def test_the_old_folder_comes_back_if_the_new_one_cannot_take_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "model").mkdir()
    write_file(tmp_path / "model" / "old", b"1")
    rename = Path.rename

    def fail_for_new(self: Path, target: Path) -> Path:
        if self.name.endswith(".new"):
            raise OSError(5, "Input/output error")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", fail_for_new)
    with (
        pytest.raises(OSError, match="Input/output"),
        new_folder(tmp_path / "model", replace=True) as fresh,
    ):
        write_file(fresh / "new", b"2")
    assert names(tmp_path) == ["model"]
    assert names(tmp_path / "model") == ["old"]


def test_a_file_is_never_written_over(tmp_path: Path) -> None:
    write_file(tmp_path / "a", b"1")
    with pytest.raises(FileExistsError):
        write_file(tmp_path / "a", b"2")


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
    for name in ("bad", "worse"):
        with pytest.raises(ValueError, match=f"{name} is a link that leaves its folder"):
            inside(folder, name)
    for name, message in (
        ("loop", "cannot be read"),
        ("dangling", "has no file dangling"),
        ("none", "has no file none"),
        ("pipe", "is no regular file"),
        ("blobs", "is no regular file"),
    ):
        with pytest.raises(ValueError, match=message):
            inside(folder, name)
