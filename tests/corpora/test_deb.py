"""Packages as streams: with dpkg-deb and without, hostile and damaged ones."""

import random
import shutil
import tarfile
from pathlib import Path

import pytest

from lightconv.corpora.deb import read_members
from tests.corpora.debs import COMPRESSIONS, make_deb

FILES = {"usr/share/a.html": b"<p>a</p>", "usr/share/b.png": b"b", "usr/share/ä.html": b"c" * 9999}
TEXTS = {name: data for name, data in FILES.items() if name.endswith(".html")}
TOOL = shutil.which("dpkg-deb")


@pytest.fixture(params=["tool", "python"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """With the system's tool, or without it."""
    if request.param == "python":
        monkeypatch.setenv("PATH", "/nowhere")
    elif TOOL is None:
        pytest.skip("no dpkg-deb on this machine")
    return str(request.param)


@pytest.fixture
def package(tmp_path: Path) -> Path:
    return tmp_path / "a_1.0_all.deb"


def read(package: Path) -> dict[str, bytes]:
    return dict(read_members(package, lambda name: name.endswith(".html")))


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_members(package: Path, compression: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    package.write_bytes(make_deb(FILES, compression))
    assert read(package) == TEXTS


def test_the_tool_reads_the_same(package: Path, way: str) -> None:
    package.write_bytes(make_deb(FILES))
    assert read(package) == TEXTS


def test_reading_may_stop_early(package: Path, way: str) -> None:
    package.write_bytes(make_deb({f"{n}.html": b"x" * 100_000 for n in range(50)}))
    members = read_members(package, lambda name: True)
    assert next(members)[0] == "0.html"
    members.close()  # type: ignore[attr-defined]


def test_links_devices_and_giants_are_not_read(
    package: Path, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    odd = []
    for number, kind in enumerate((tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE)):
        info = tarfile.TarInfo(f"./{number}.html")
        info.type, info.linkname = kind, "/etc/passwd"
        odd.append(info)
    monkeypatch.setattr("lightconv.corpora.deb._MAX_BYTES", 9998)
    package.write_bytes(make_deb({**FILES, "../../up.html": b"up"}, ".xz", *odd))
    # A name that leads out is only a name: nothing is written.
    assert read(package) == {"usr/share/a.html": b"<p>a</p>", "../../up.html": b"up"}
    assert [file.name for file in package.parent.iterdir()] == [package.name]


@pytest.mark.parametrize("kept", [0, 5, 8, 40, 68, 75, 200, -40, -400])
def test_cut_packages(package: Path, way: str, kept: int) -> None:
    noise = {f"{n}.html": random.Random(n).randbytes(3000) for n in range(3)}
    package.write_bytes(make_deb(noise)[:kept])
    with pytest.raises(ValueError, match=r"a_1\.0_all\.deb"):
        read(package)


def test_damaged_packages(package: Path, way: str) -> None:
    noise = {f"{n}.html": random.Random(n).randbytes(3000) for n in range(3)}
    whole = make_deb(noise)
    for seed in range(10):
        place = random.Random(seed).randrange(200, len(whole) - 100)
        package.write_bytes(whole[:place] + bytes([whole[place] ^ 0xFF]) + whole[place + 1 :])
        with pytest.raises(ValueError, match=r"a_1\.0_all\.deb"):
            read(package)


def test_a_tool_that_fails_at_the_end(
    package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with tarfile.open(tmp_path / "data.tar", "w") as archive:
        archive.addfile(tarfile.TarInfo("a.html"))
    tool = tmp_path / "dpkg-deb"
    tool.write_text(f"#!/bin/sh\n/bin/cat '{tmp_path}/data.tar'\necho bad sum >&2\nexit 2\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ValueError, match="cannot be read as a package: bad sum"):
        read(package)


def test_zstd_needs_the_tool(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    package.write_bytes(make_deb(FILES, ".zst"))
    with pytest.raises(ValueError, match="needs dpkg-deb"):
        read(package)
