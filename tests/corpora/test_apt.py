"""The package client: its calls, what is kept, its failures; packages, also damaged ones."""

import fcntl
import os
import random
import re
import shutil
import tarfile
import threading
from pathlib import Path

import pytest

from lightconv.corpora.apt import fetch_indices, fetch_packages, read_members
from tests.corpora.fake_apt import FakeApt
from tests.corpora.packing import COMPRESSIONS, make_deb, odd_member


def quiet(_: str) -> None:
    pass


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "a cache"


def verbs(fake: FakeApt) -> list[str]:
    return [next(word for word in call[1:] if not word.startswith("-")) for call in fake.calls()]


def test_indices_are_plain_text_in_the_cache(apt: FakeApt, cache: Path) -> None:
    apt.publish("en", "english é\n")
    apt.publish("en", "more\n", release="stable-updates")
    apt.publish("de", "deutsch\n")
    found = fetch_indices(cache, ["en", "de"], quiet)
    texts = {file.name: file.read_text() for files in found.values() for file in files}
    assert texts == {
        "0_stable-updates_main_i18n_Translation-en": "more\n",
        "1_stable_main_i18n_Translation-en": "english é\n",
        "0_stable_main_i18n_Translation-de": "deutsch\n",
    }
    assert all(file.is_relative_to(cache) for files in found.values() for file in files)
    assert verbs(apt) == ["update", "indextargets"]
    assert {call[-1] for call in apt.calls()} == {"C.UTF-8"}


def test_only_missing_indices_need_apt(
    apt: FakeApt, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    apt.publish("en", "old\n")
    apt.publish("de", "deutsch\n")
    fetch_indices(cache, ["en"], quiet)
    apt.publish("en", "new\n")
    found = fetch_indices(cache, ["en", "de"], quiet)
    assert [found[language][0].read_text() for language in ("en", "de")] == ["old\n", "deutsch\n"]
    monkeypatch.setenv("PATH", "/nowhere")
    said: list[str] = []
    assert fetch_indices(cache, ["en", "de"], said.append) == found
    assert len(said) == 2 and "fetched before" in said[0]


def test_everything_apt_writes_is_below_the_cache(apt: FakeApt, cache: Path) -> None:
    apt.publish("da", "dansk\n")
    fetch_indices(cache, ["da"], quiet)
    config = (cache / "apt" / "apt.conf").read_text()
    folders = dict(re.findall(r'^(Dir::\S+) "(.*)";$', config, re.MULTILINE))
    names = ("State", "State::lists", "State::status", "Cache", "Cache::archives", "Log")
    assert {f"Dir::{name}" for name in names} <= set(folders)
    assert all(Path(folder).is_relative_to(cache) for folder in folders.values())
    # Hooks of the system would change it; its sources, keys and checks are used as they are.
    assert "#clear APT::Update;" in config
    insecure = r"Dir::Etc|AllowInsecure|AllowUnauthenticated|trusted|Verify"
    assert not re.search(insecure, config, re.I)
    assert not re.search("allow|unauthenticated|force", str(apt.calls()), re.I)
    assert config.index("#clear Acquire::Languages;") < config.index("Languages {")
    assert 'Acquire::Languages { "da"; };' in config
    assert 'Packages::DefaultEnabled "false"' in config


@pytest.mark.parametrize("trouble", ["no-network", None])
def test_a_missing_language_names_reason_and_remedy(
    apt: FakeApt, cache: Path, trouble: str | None
) -> None:
    apt.publish("en", "english\n")
    if trouble:
        (apt.mirror / trouble).touch()
    said: list[str] = []
    with pytest.raises(ValueError, match="synthetic-translation") as caught:
        fetch_indices(cache, ["en", "xx"], said.append)
    missing = "Translation-en" if trouble else "Translation-xx"
    assert missing in str(caught.value)
    assert ("Temporary failure resolving" in str(caught.value)) == bool(trouble)
    assert any("Temporary failure" in line for line in said) == bool(trouble)
    assert not list((cache / "apt").glob("indices/*"))


def test_a_machine_without_apt(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    for fetch in (fetch_indices, fetch_packages):
        with pytest.raises(ValueError, match=r"no apt-get on this machine.*synthetic"):
            fetch(cache, ["en"], quiet)


def test_one_broken_source_of_several_is_reported_and_survived(apt: FakeApt, cache: Path) -> None:
    apt.publish("en", "english\n")
    (apt.mirror / "broken-source").touch()
    said: list[str] = []
    assert fetch_indices(cache, ["en"], said.append)["en"][0].read_text() == "english\n"
    assert "E: The repository 'third' is not signed." in said
    assert not any("unsandboxed" in line for line in said)


def test_a_broken_index_leaves_nothing_half_written(apt: FakeApt, cache: Path) -> None:
    apt.publish("en", "english\n")
    (apt.mirror / "broken-index").touch()
    with pytest.raises(ValueError, match=r"apt-helper .* failed with code 100 \(Read error\)"):
        fetch_indices(cache, ["en"], quiet)
    assert not list((cache / "apt" / "indices").iterdir())
    (apt.mirror / "broken-index").unlink()
    assert fetch_indices(cache, ["en"], quiet)["en"][0].read_text() == "english\n"


def test_packages_are_downloaded_once(
    apt: FakeApt, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (apt.mirror / "one.deb").write_bytes(b"1")
    (apt.mirror / "two.deb").write_bytes(b"2")
    found = fetch_packages(cache, ["one", "two"], quiet)
    assert {name: file.read_bytes() for name, file in found.items()} == {"one": b"1", "two": b"2"}
    assert verbs(apt) == ["update", "download", "download"]
    config = (cache / "apt" / "apt.conf").read_text()
    assert 'Packages::DefaultEnabled "true"' in config
    assert 'Acquire::Languages { "none"; };' in config
    monkeypatch.setenv("PATH", "/nowhere")
    assert fetch_packages(cache, ["one", "two"], quiet) == found


def test_an_unknown_package(apt: FakeApt, cache: Path) -> None:
    with pytest.raises(ValueError, match=r"download nix. failed .*Unable to locate package nix"):
        fetch_packages(cache, ["nix"], quiet)
    assert not list((cache / "apt" / "packages").iterdir())


def test_a_cache_that_apt_cannot_name(apt: FakeApt, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="without quotes"):
        fetch_indices(tmp_path / 'a"b', ["en"], quiet)


def test_another_process_is_waited_for(apt: FakeApt, cache: Path) -> None:
    apt.publish("en", "english\n")
    (cache / "apt").mkdir(parents=True)
    waiting = threading.Event()
    found: list[str] = []

    def progress(line: str) -> None:
        if line.startswith("waiting for another process"):
            waiting.set()

    def fetch() -> None:
        found.append(fetch_indices(cache, ["en"], progress)["en"][0].read_text())

    with (cache / "apt" / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_SH)
        thread = threading.Thread(target=fetch)
        thread.start()
        assert waiting.wait(30) and not found and not apt.calls()
    thread.join(30)
    assert found == ["english\n"]


# --- Packages

PAGES = {"usr/share/a.html": b"<p>a</p>", "usr/share/ä.html": b"c" * 9999}
NOISE = {f"{n}.html": random.Random(n).randbytes(3000) for n in range(3)}


needs_tool = pytest.mark.skipif(shutil.which("dpkg-deb") is None, reason="no dpkg-deb here")


@pytest.fixture
def package(tmp_path: Path) -> Path:
    return tmp_path / "a_1.0_all.deb"


def read(package: Path) -> dict[str, bytes]:
    return dict(read_members(package, lambda name: name.endswith(".html")))


@needs_tool
@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_members(package: Path, compression: str) -> None:
    package.write_bytes(make_deb({**PAGES, "usr/share/b.png": b"b"}, compression))
    assert read(package) == PAGES


@needs_tool
def test_reading_may_stop_early(package: Path) -> None:
    package.write_bytes(make_deb({f"{n}.html": b"x" * 100_000 for n in range(50)}))
    members = read_members(package, lambda name: True)
    assert next(members)[0] == "0.html"
    members.close()  # type: ignore[attr-defined]


@needs_tool
def test_links_devices_and_giants_are_not_read(
    package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kinds = (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE)
    odd = [odd_member(f"./{number}.html", kind) for number, kind in enumerate(kinds)]
    monkeypatch.setattr("lightconv.corpora.apt._MAX_BYTES", 9998)
    package.write_bytes(make_deb({**PAGES, "../../up.html": b"up"}, ".xz", *odd))
    # A name that leads out is only a name: nothing is written.
    assert read(package) == {"usr/share/a.html": b"<p>a</p>", "../../up.html": b"up"}
    assert [file.name for file in package.parent.iterdir()] == [package.name]


@needs_tool
@pytest.mark.parametrize("kept", [0, 5, 8, 40, 68, 75, 200, -40, -400])
def test_cut_packages(package: Path, kept: int) -> None:
    package.write_bytes(make_deb(NOISE)[:kept])
    with pytest.raises(ValueError, match=r"a_1\.0_all\.deb"):
        read(package)


@needs_tool
def test_damaged_packages(package: Path) -> None:
    whole = make_deb(NOISE)
    for seed in range(10):
        damaged = bytearray(whole)
        damaged[random.Random(seed).randrange(200, len(whole) - 100)] ^= 0xFF
        package.write_bytes(damaged)
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
    with pytest.raises(ValueError, match="bad sum"):
        read(package)


def test_a_machine_without_the_tool(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    package.write_bytes(make_deb(PAGES))
    with pytest.raises(ValueError, match="needs dpkg-deb"):
        read(package)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("apt-get") is None, reason="no apt on this machine")
def test_the_real_client_touches_nothing_of_the_system(cache: Path) -> None:
    before = _state()
    try:
        found = fetch_indices(cache, ["de"], quiet)
    except ValueError as error:
        pytest.skip(str(error))
    assert b"Description-de: " in found["de"][0].read_bytes()[:1000]
    assert _state() == before


def _state() -> dict[str, tuple[int, int]]:
    """Size and time of every file that apt and dpkg keep."""
    folders = ("/var/lib/apt", "/var/cache/apt", "/var/lib/dpkg", "/var/log/apt", "/etc/apt")
    files = (Path(root, name) for top in folders for root, _, ns in os.walk(top) for name in ns)
    return {str(file): (file.stat().st_size, file.stat().st_mtime_ns) for file in files}
