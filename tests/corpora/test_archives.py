"""Files come as they are, wherever they lie; damaged and hostile archives are refused."""

import gzip
import hashlib
import os
import pickle
import random
import tarfile
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from lightconv.corpora import archives, unpack
from lightconv.corpora.archives import Source
from tests.corpora.packing import write_folder, write_gzip, write_tar, write_zip

FILES = {
    "corpus/train.de": "eins\nzwei\n",
    "corpus/train.en": "one\ntwo\n",
    "corpus/deep/er/test.de": "drei\n",
}


def content(source: Source, name: str) -> bytes:
    member = source.find(name)
    assert member is not None
    with source.open(member) as stream:
        return stream.read()


def everything(source: Source) -> dict[str, bytes]:
    return {found.member.base: found.stream.read() for found in source.walk(lambda name: True)}


BUILDERS: dict[str, Callable[[Path], Path]] = {
    "folder": lambda folder: write_folder(folder / "loose", FILES),
    "tar": lambda folder: write_tar(folder / "a.tar", FILES),
    "tgz": lambda folder: write_tar(folder / "a.tgz", FILES),
    "tar.gz": lambda folder: write_tar(folder / "a.tar.gz", FILES),
    "zip": lambda folder: write_zip(folder / "a.zip", FILES),
    "tgz with another name": lambda folder: write_tar(folder / "download", FILES),
    "archives in a folder": lambda folder: (
        write_tar(folder / "a.tgz", dict(list(FILES.items())[:1])).parent
        and write_zip(folder / "b.zip", dict(list(FILES.items())[1:])).parent
    ),
}


@pytest.mark.parametrize("builder", BUILDERS.values(), ids=BUILDERS)
def test_the_same_files_wherever_they_lie(builder: Callable[[Path], Path], tmp_path: Path) -> None:
    source = Source(builder(tmp_path))
    assert content(source, "train.de") == b"eins\nzwei\n"
    assert content(source, "test.de") == b"drei\n"
    assert everything(source) == {
        "train.de": b"eins\nzwei\n",
        "train.en": b"one\ntwo\n",
        "test.de": b"drei\n",
    }
    assert source.find("train.fr") is None
    assert source.find("train.fr", "train.en") == source.named("train.en")[0]


def test_two_files_of_one_archive_are_read_side_by_side(tmp_path: Path) -> None:
    source = Source(write_tar(tmp_path / "a.tgz", FILES))
    readers = [source.lines(source.named(name)[0]) for name in ("train.de", "train.en")]
    assert list(zip(*readers, strict=True)) == [("eins", "one"), ("zwei", "two")]


def test_gzip_inside_an_archive_and_alone(tmp_path: Path) -> None:
    write_tar(tmp_path / "giga.tar", {"giga.en.gz": gzip.compress(b"hello\n")})
    write_gzip(tmp_path / "giga.fr.gz", "bonjour\n")
    source = Source(tmp_path)
    assert content(source, "giga.en") == b"hello\n"
    assert content(source, "giga.fr") == b"bonjour\n"


@pytest.mark.parametrize("pieces", [2, 7, 90])
def test_an_archive_in_pieces(tmp_path: Path, pieces: int) -> None:
    whole = write_tar(tmp_path / "un.tar.gz", FILES).read_bytes()
    (tmp_path / "un.tar.gz").unlink()
    step = -(-len(whole) // pieces)
    for number, at in enumerate(range(0, len(whole), step)):
        (tmp_path / f"un.tar.gz.{number:02}").write_bytes(whole[at : at + step])
    source = Source(tmp_path)
    assert content(source, "train.en") == b"one\ntwo\n"
    assert source.digests == {"un.tar.gz.00": hashlib.sha256(whole).hexdigest()}
    assert len(everything(source)) == 3


def test_digests_are_those_of_the_files(tmp_path: Path) -> None:
    write_tar(tmp_path / "a.tgz", FILES)
    write_zip(tmp_path / "b.zip", {"x": "y"})
    (tmp_path / "c.txt").write_bytes(b"loose")
    source = Source(tmp_path)
    source.record(source)
    assert source.digests == {
        name: hashlib.sha256((tmp_path / name).read_bytes()).hexdigest()
        for name in ("a.tgz", "b.zip", "c.txt")
    }


def test_what_stands_behind_the_archive_is_part_of_the_digest(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "a.tar", FILES)
    path.write_bytes(path.read_bytes() + b"\0" * 4_000_000)
    assert Source(path).digests == {"a.tar": hashlib.sha256(path.read_bytes()).hexdigest()}


def test_of_files_with_one_name_the_loose_one_counts(tmp_path: Path) -> None:
    write_tar(tmp_path / "a.tgz", {"x/train.de": "packed\n"})
    write_folder(tmp_path, {"z/train.de": "loose\n"})
    source = Source(tmp_path)
    assert content(source, "train.de") == b"loose\n"
    assert everything(source) == {"train.de": b"loose\n"}
    assert [member.packed for member in source.named("train.de")] == [False, True]


def test_walk_passes_over_each_archive_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = Source(write_tar(tmp_path / "a.tgz", {f"f{n}": str(n) for n in range(50)}))
    opened: list[Path] = []
    original = archives.contents
    monkeypatch.setattr(archives, "contents", lambda path: opened.append(path) or original(path))
    assert len(everything(source)) == 50
    assert len(opened) == 1


def test_a_source_travels_to_another_process(tmp_path: Path) -> None:
    source = pickle.loads(pickle.dumps(Source(write_tar(tmp_path / "a.tgz", FILES))))
    assert content(source, "train.en") == b"one\ntwo\n"


def test_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    line = b"some words that go on for quite a while in this very long file " * 6 + b"\n"
    source = Source(write_tar(tmp_path / "a.tgz", {"big": line * 40_000, "small": "x"}))
    tracemalloc.start()
    count = sum(1 for _ in source.lines(source.named("big")[0]))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert count == 40_000
    assert peak < 4 << 20 < len(line) * 40_000 // 3


# --- Lines


def test_lines_are_cut_at_newlines_only(tmp_path: Path) -> None:
    text = "\ufeffa\u2028b\x0cc\r\n\nd\re"
    source = Source(write_tar(tmp_path / "a.tgz", {"x": text}))
    assert list(source.lines(source.named("x")[0])) == ["a\u2028b\x0cc", "", "d\re"]


def test_broken_bytes_are_named_or_mended(tmp_path: Path) -> None:
    source = Source(
        write_tar(tmp_path / "a.tgz", {"x": b"good\nb\xe4d \xff\nnul \0\nlatin \xc3\xa4"})
    )
    (member,) = source.named("x")
    with pytest.raises(ValueError, match=r"a\.tgz: x, line 2: byte 0xe4 is not UTF-8"):
        list(source.lines(member))
    with pytest.warns(UserWarning, match="replaced broken bytes in 2 lines"):
        found = list(source.lines(member, mend=True))
    assert found == ["good", "b\ufffdd \ufffd", "nul  ", "latin ä"]


# --- Damage


@pytest.mark.parametrize("name", ["a.tgz", "a.tar", "a.zip"])
def test_archives_cut_short_never_pass_for_whole(name: str, tmp_path: Path) -> None:
    files = {f"f{n}": random.Random(n).randbytes(3000) for n in range(4)}
    write = write_zip if name.endswith("zip") else write_tar
    whole = write(tmp_path / name, files).read_bytes()
    path = tmp_path / f"cut-{name}"
    for cut in random.Random(1).sample(range(1, len(whole)), 60):
        path.write_bytes(whole[:cut])
        try:
            found = everything(Source(path))
        except ValueError as error:
            assert str(tmp_path) in str(error)
            continue
        # A .tar has no checksum: what is not there was not in it. The file itself may be "loose".
        assert name == "a.tar" or list(found) == [path.name]
        assert all(files[key] == value for key, value in found.items() if key in files)


def test_flipped_bits_of_a_tgz_are_found(tmp_path: Path) -> None:
    files = {f"f{n}": random.Random(n).randbytes(2000) for n in range(3)}
    whole = write_tar(tmp_path / "a.tgz", files).read_bytes()
    path = tmp_path / "flipped.tgz"
    randomly = random.Random(2)
    for _ in range(60):
        flipped = bytearray(whole)
        # The header holds a name and a time that nothing depends on.
        flipped[randomly.randrange(20, len(whole))] ^= 1 << randomly.randrange(8)
        path.write_bytes(flipped)
        with pytest.raises(ValueError, match=r"flipped\.tgz.* is damaged or incomplete .*again"):
            Source(path)


def test_a_flipped_bit_of_a_zip_is_found_when_it_is_read(tmp_path: Path) -> None:
    data = random.Random(3).randbytes(2 * unpack.BLOCK)
    path = write_zip(tmp_path / "a.zip", {"x": data})
    flipped = bytearray(path.read_bytes())
    flipped[-1000] ^= 4
    path.write_bytes(flipped)
    with pytest.raises(ValueError, match="damaged or incomplete"):
        everything(Source(path))


def test_an_archive_that_changes_meanwhile(tmp_path: Path) -> None:
    source = Source(write_tar(tmp_path / "a.tgz", FILES))
    write_tar(tmp_path / "a.tgz", {"other": "x"})
    with pytest.raises(ValueError, match=r"has changed: corpus/train\.de is gone"):
        content(source, "train.de")


# --- Wrong and hostile


def test_what_is_no_corpus(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"nowhere does not exist, expected the archive or the"):
        Source(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="empty holds no files"):
        Source(tmp_path / "empty")
    os.mkfifo(tmp_path / "pipe.gz")
    with pytest.raises(ValueError, match="is neither a file nor a folder"):
        Source(tmp_path / "pipe.gz")
    assert [member.base for member in Source(tmp_path)] == ["pipe"]


@pytest.mark.parametrize("name", ["../up", "a/../../up", "/etc/passwd", "a\\..\\up"])
@pytest.mark.parametrize("write", [write_tar, write_zip], ids=["tar", "zip"])
def test_names_that_climb_out(write: Callable[..., Path], name: str, tmp_path: Path) -> None:
    suffix = "zip" if write is write_zip else "tgz"
    with pytest.raises(ValueError, match="expected names below one folder"):
        Source(write(tmp_path / f"a.{suffix}", {"good": "x", name: "x"}))


def test_links_in_a_tar_are_no_files(tmp_path: Path) -> None:
    links = {"corpus/secret": "/etc/passwd"}
    source = Source(write_tar(tmp_path / "a.tgz", FILES, links=links))
    assert len(everything(source)) == 3
    with pytest.raises(ValueError, match="secret is a link in an archive, expected a file"):
        source.find("secret")


def test_links_in_a_zip_are_no_files(tmp_path: Path) -> None:
    path = tmp_path / "a.zip"
    with zipfile.ZipFile(path, "w") as zipped:
        zipped.writestr("good", "x")
        info = zipfile.ZipInfo("secret")
        info.external_attr = 0o120777 << 16
        zipped.writestr(info, "/etc/passwd")
    assert everything(Source(path)) == {"good": b"x"}


def test_links_in_a_folder_stay_inside(tmp_path: Path) -> None:
    (tmp_path / "outside").write_text("secret")
    folder = write_folder(tmp_path / "folder", {"a/real": "text"})
    (folder / "within").symlink_to("a/real")
    (folder / "without").symlink_to(tmp_path / "outside")
    source = Source(folder)
    assert content(source, "within") == b"text"
    with pytest.raises(ValueError, match="is a link that leaves its folder"):
        content(source, "without")


def test_devices_and_sparse_files_are_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "a.tar"
    with tarfile.open(path, "w", format=tarfile.GNU_FORMAT) as tar:
        for name, kind in (("null", tarfile.CHRTYPE), ("pipe", tarfile.FIFOTYPE)):
            info = tarfile.TarInfo(name)
            info.type = kind
            tar.addfile(info)
        info = tarfile.TarInfo("hole")
        info.type = tarfile.GNUTYPE_SPARSE
        tar.addfile(info)
        tar.addfile(tarfile.TarInfo("good"))
    assert everything(Source(path)) == {"good": b""}


def test_bombs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unpack, "SMALL", 100_000)
    zeros = bytes(3_000_000)
    for path in (
        write_gzip(tmp_path / "a.gz", zeros),
        write_tar(tmp_path / "a.tgz", {"x": zeros}),
        write_zip(tmp_path / "a.zip", {"x": zeros}),
    ):
        with pytest.raises(ValueError, match="unpacks to more than 200 times its size"):
            Source(path)
    # The outer archive is innocent here.
    inner = write_tar(tmp_path / "b.tar", {"x.gz": gzip.compress(zeros), "y": zeros})
    source = Source(inner)
    assert content(source, "y") == zeros
    with pytest.raises(ValueError, match=r"b\.tar: x\.gz unpacks to more than 200 times"):
        content(source, "x")


def test_too_many_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archives, "MAX_MEMBERS", 5)
    many = {f"f{n}": "x" for n in range(8)}
    for path in (write_tar(tmp_path / "a.tgz", many), write_folder(tmp_path / "folder", many)):
        with pytest.raises(ValueError, match="holds more than 5 files, expected one corpus"):
            Source(path)


def test_an_encrypted_zip(tmp_path: Path) -> None:
    path = write_zip(tmp_path / "a.zip", {"x": "text"})
    data = bytearray(path.read_bytes())
    for mark, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        data[data.index(mark) + offset] |= 1
    path.write_bytes(data)
    with pytest.raises(ValueError, match="x is encrypted"):
        Source(path)


def test_a_small_file_is_copied_for_those_who_need_a_path(tmp_path: Path) -> None:
    source = Source(write_tar(tmp_path / "a.tgz", {"x/bpe.32000": "e n\n"}))
    (member,) = source.named("bpe.32000")
    first = source.on_disk(member, tmp_path / "cache")
    assert first.read_bytes() == b"e n\n"
    assert source.on_disk(member, tmp_path / "cache") == first
    assert [path.name for path in (tmp_path / "cache").iterdir()] == [first.name]
    loose = Source(write_folder(tmp_path / "loose", {"bpe.32000": "e n\n"}))
    path = loose.on_disk(loose.named("bpe.32000")[0], tmp_path / "cache")
    assert path == tmp_path / "loose" / "bpe.32000"
