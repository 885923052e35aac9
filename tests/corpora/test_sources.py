"""Files of folders and archives, damaged and hostile archives, parallel lines and segments."""

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
from unittest.mock import Mock

import pytest

from lightconv.corpora import sources
from lightconv.corpora.sources import SourceFiles, read_pairs, segments, unescape
from lightconv.data import text
from tests.corpora.packing import Files, odd_member, pack, write_folder

FILES = {
    "corpus/train.de": "eins\nzwei\n",
    "corpus/train.en": "one\ntwo\n",
    "corpus/deep/er/test.de": "drei\n",
}
CONTENTS = {"train.de": b"eins\nzwei\n", "train.en": b"one\ntwo\n", "test.de": b"drei\n"}


def content(source: SourceFiles, name: str) -> bytes:
    member = source.find(name)
    assert member is not None
    with source.open(member) as stream:
        return stream.read()


def everything(source: SourceFiles) -> dict[str, bytes]:
    return {
        member.base: stream.read()
        for member, stream in source.walk({member.base for member in source})
    }


@pytest.mark.parametrize("name", ["a.tar", "a.tgz", "a.tar.gz", "a.zip", "download", "folder"])
def test_the_same_files_wherever_they_lie(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    source = SourceFiles(write_folder(path, FILES) if name == "folder" else pack(path, FILES))
    assert everything(source) == everything(pickle.loads(pickle.dumps(source))) == CONTENTS
    members = source.require({"German": ["train.de"], "English": ["train.en"]}, "")
    assert list(read_pairs(source.lines, members)) == [("eins", "one"), ("zwei", "two")]
    assert {base: content(source, base) for base in CONTENTS} == CONTENTS
    assert source.find("train.fr") is None
    assert source.find("train.fr", "train.en") == source.find("train.en") is not None


def test_archives_and_loose_files_in_a_folder(tmp_path: Path) -> None:
    first, second, third = FILES.items()
    pack(tmp_path / "a.tgz", dict([first]))
    pack(tmp_path / "b.zip", dict([second]))
    write_folder(tmp_path, dict([third]))
    pack(tmp_path / "giga.tar", {"giga.en.gz": gzip.compress(b"hello\n")})
    (tmp_path / "giga.fr.gz").write_bytes(gzip.compress(b"bonjour\n"))
    source = SourceFiles(tmp_path)
    assert everything(source) == CONTENTS | {"giga.en": b"hello\n", "giga.fr": b"bonjour\n"}
    source.require({"a test set": ["other", "test.de"], "French": ["giga.fr"]}, "x")
    assert source.digests == {
        name: hashlib.sha256((tmp_path / name).read_bytes()).hexdigest()
        for name in ("a.tgz", "b.zip", "giga.tar", "giga.fr.gz", "corpus/deep/er/test.de")
    }


def test_required_files(tmp_path: Path) -> None:
    source = SourceFiles(write_folder(tmp_path, FILES))
    found = source.require({"German": ["x.de", "train.de"], "test": ["test.de"]}, "all")
    assert [member.base for member in found] == ["train.de", "test.de"]
    wanted = {f"file {n}": [f"{n}.txt"] for n in range(5)} | {"German": ["train.de"]}
    with pytest.raises(ValueError, match="lacks file 0, file 1, file 2 and 2 more, expected all"):
        source.require(wanted, "all")


@pytest.mark.parametrize("pieces", [2, 7, 90])
def test_an_archive_in_pieces(tmp_path: Path, pieces: int) -> None:
    whole = pack(tmp_path / "un.tar.gz", FILES).read_bytes()
    (tmp_path / "un.tar.gz").unlink()
    step = -(-len(whole) // pieces)
    for number, at in enumerate(range(0, len(whole), step)):
        (tmp_path / f"un.tar.gz.{number:02}").write_bytes(whole[at : at + step])
    source = SourceFiles(tmp_path)
    assert source.digests == {"un.tar.gz.00": hashlib.sha256(whole).hexdigest()}
    assert everything(source) == CONTENTS


def test_padding_after_the_archive_is_part_of_the_digest(tmp_path: Path) -> None:
    path = pack(tmp_path / "a.tar", FILES)
    path.write_bytes(path.read_bytes() + b"\0" * 4_000_000)
    assert SourceFiles(path).digests == {"a.tar": hashlib.sha256(path.read_bytes()).hexdigest()}


def test_of_files_with_one_name_the_loose_one_counts(tmp_path: Path) -> None:
    pack(tmp_path / "a.tgz", {"x/train.de": "packed\n"})
    source = SourceFiles(write_folder(tmp_path, {"z/train.de": "loose\n"}))
    assert content(source, "train.de") == b"loose\n"
    assert everything(source) == {"train.de": b"loose\n"}
    assert [member.packed for member in source] == [False, True]


def test_ignored_names(tmp_path: Path) -> None:
    pack(tmp_path / "test-filtered.tgz", {"x": "short"})
    pack(tmp_path / "test.tgz", {"x": "full", "filtered/y": "short"})
    assert everything(SourceFiles(tmp_path, ignore="filtered")) == {"x": b"full"}


def test_walk_passes_over_each_archive_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = SourceFiles(pack(tmp_path / "a.tgz", {f"f{n}": str(n) for n in range(50)}))
    counted = Mock(wraps=sources._blocks)
    monkeypatch.setattr(sources, "_blocks", counted)
    assert len(everything(source)) == 50
    assert counted.call_count == 1


def test_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    line = b"some words that go on for quite a while in this very long file " * 6 + b"\n"
    source = SourceFiles(pack(tmp_path / "a.tgz", {"big": line * 40_000, "small": "x"}))
    (big,) = source.require({"big": ["big"]}, "")
    tracemalloc.start()
    count = sum(1 for _ in source.lines(big))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert count == 40_000
    assert peak < 4 << 20 < len(line) * 40_000 // 3


def test_a_small_file_is_copied_for_those_who_need_a_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = SourceFiles(pack(tmp_path / "a.tgz", {"x/bpe.32000": "e n\n"}))
    (member,) = source
    first = source.on_disk(member, tmp_path / "cache")
    assert first.read_bytes() == b"e n\n"
    assert source.on_disk(member, tmp_path / "cache") == first
    assert [path.name for path in (tmp_path / "cache").iterdir()] == [first.name]
    loose = SourceFiles(write_folder(tmp_path / "loose", {"bpe.32000": "e n\n"}))
    assert loose.on_disk(next(iter(loose)), tmp_path) == tmp_path / "loose" / "bpe.32000"
    monkeypatch.setattr(sources, "LARGEST_COPY", 3)
    with pytest.raises(ValueError, match=r"bpe\.32000: longer than"):
        source.on_disk(member, tmp_path / "cache")


# --- Lines


def test_lines(tmp_path: Path) -> None:
    source = SourceFiles(pack(tmp_path / "b.tgz", {"x": "\ufeffa\u2028b\x0cc\r\n\nd\re"}))
    assert list(source.lines(next(iter(source)))) == ["a\u2028b\x0cc", "", "d\re"]
    source = SourceFiles(
        pack(tmp_path / "a.tgz", {"x": b"good\nb\xe4d \xff\nnul \0\nlatin \xc3\xa4"})
    )
    (member,) = source
    with pytest.raises(ValueError, match=r"a\.tgz: x, line 2: byte 0xe4 is not UTF-8"):
        list(source.lines(member))
    with pytest.warns(UserWarning, match="in 2 lines"):
        found = list(source.lines(member, mend=True))
    assert found == ["good", "b\ufffdd \ufffd", "nul  ", "latin ä"]


@pytest.mark.parametrize(
    ("lines", "found"),
    [
        (['<seg id="1">A Republican strategy</seg>'], ["A Republican strategy"]),
        (["<hl>", "<seg> AT&amp;T &lt;b&gt; &quot; &#228; &apos; </seg>"], ["AT&T <b> \" ä '"]),
        (["<seg></seg>", '<seg id="3a">&amp;lt;</seg>'], ["", "&lt;"]),
        (['  <SEG ID="4">two</SEG> <seg id="5">on a line</seg>'], ["two", "on a line"]),
        (['<seg id="6">over', "two lines</seg>", "</p>"], ["over two lines"]),
    ],
)
def test_segments_of_wmt_and_iwslt(lines: list[str], found: list[str]) -> None:
    around = ['<srcset srclang="any">', '<doc docid="1">', "<p>", *lines, "</p>", "</srcset>"]
    assert list(segments(around, "x.sgm")) == found


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["plain text", "another line"], r"x\.sgm has no <seg>"),
        (['<seg id="1">one</seg>', '<seg id="2">cut'], r"x\.sgm has a <seg> without"),
        (['<seg id="1">one</seg>', '<seg id="'], r"x\.sgm has a <seg> without"),
        (["<seg>"] * 2000, r"x\.sgm has a <seg> without"),
    ],
)
def test_files_without_segments(lines: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        list(segments(lines, "x.sgm"))


@pytest.mark.parametrize(
    ("escaped", "plain"),
    [
        ("a &amp;amp; b", "a &amp; b"),  # once
        ("R&D, &copy=2 &unknown; & &;", "R&D, &copy=2 &unknown; & &;"),
        ("&#x4e2d;&#25991;", "中文"),
        ("&#0; &#xD800; &#9999999;", "&#0; &#xD800; &#9999999;"),
    ],
)
def test_entities(escaped: str, plain: str) -> None:
    assert unescape(escaped) == plain


def test_texts_of_different_length(tmp_path: Path) -> None:
    texts = {lang: [f"{lang} " * (3 + n % 7) + str(n) for n in range(40)] for lang in ("en", "de")}
    del texts["de"][25]
    source = SourceFiles(write_folder(tmp_path, {lang: "\n".join(texts[lang]) for lang in texts}))
    members = source.require({"e": ["en"], "d": ["de"]}, "")
    pairs = read_pairs(source.lines, members)
    assert next(pairs) == (texts["en"][0], texts["de"][0])
    with pytest.raises(ValueError, match=r"en has 40 lines and .*de has 39.* line 26\. Fetch"):
        list(pairs)


# --- Damage


def flip(data: bytes, place: int, bits: int = 4) -> bytes:
    flipped = bytearray(data)
    flipped[place] ^= bits
    return bytes(flipped)


@pytest.mark.parametrize("name", ["a.tgz", "a.tar", "a.zip"])
def test_archives_cut_short_never_pass_for_whole(name: str, tmp_path: Path) -> None:
    files = {f"f{n}": random.Random(n).randbytes(3000) for n in range(4)}
    whole = pack(tmp_path / name, files).read_bytes()
    path = tmp_path / f"cut-{name}"
    for cut in random.Random(1).sample(range(1, len(whole)), 60):
        path.write_bytes(whole[:cut])
        try:
            found = everything(SourceFiles(path))
        except ValueError as error:
            assert str(tmp_path) in str(error)
            continue
        # A .tar has no checksum: what is not there was not in it. The file itself may be "loose".
        assert name == "a.tar" or list(found) == [path.name]
        assert all(files[key] == value for key, value in found.items() if key in files)


def test_flipped_bits_of_a_tgz_are_found(tmp_path: Path) -> None:
    files = {f"f{n}": random.Random(n).randbytes(2000) for n in range(3)}
    whole = pack(tmp_path / "a.tgz", files).read_bytes()
    path = tmp_path / "flipped.tgz"
    randomly = random.Random(2)
    for _ in range(60):
        # The header holds a time that nothing depends on.
        path.write_bytes(
            flip(whole, randomly.randrange(20, len(whole)), 1 << randomly.randrange(8))
        )
        with pytest.raises(ValueError, match=r"flipped\.tgz.* is damaged or incomplete"):
            SourceFiles(path)


def test_an_archive_that_changes_meanwhile(tmp_path: Path) -> None:
    source = SourceFiles(pack(tmp_path / "a.tgz", FILES))
    pack(tmp_path / "a.tgz", {"other": "x"})
    with pytest.raises(ValueError, match=r"has changed: corpus/train\.de"):
        content(source, "train.de")


# --- Wrong and hostile

ZEROS = bytes(3_000_000)
BOMB = {"x.gz": gzip.compress(ZEROS), "y": ZEROS}
MANY = {f"f{n}": "x" for n in range(8)}
NOISE = random.Random(3).randbytes(2 * sources.BLOCK)


def encrypted(data: bytes) -> bytes:
    """A .zip whose first file is marked as encrypted, in its header and in the table."""
    for mark, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        data = flip(data, data.index(mark) + offset, 1)
    return data


@pytest.mark.parametrize(
    ("name", "files", "change", "message"),
    [
        *(
            (archive, {"good": "x", name: "x"}, bytes, "names below one folder")
            for archive in ("a.tgz", "a.zip")
            for name in ("../up", "a/../../up", "/etc/passwd", "a\\..\\up")
        ),
        ("a.tgz", {"x": ZEROS}, bytes, "more than 200 times its size"),
        ("a.zip", {"x": ZEROS}, bytes, "more than 200 times its size"),
        ("a.gz", {}, lambda _: gzip.compress(ZEROS), "more than 200 times its size"),
        ("b.tar", BOMB, bytes, r"b\.tar: x\.gz .*more than 200 times"),  # innocent outside
        ("a.tgz", MANY, bytes, "more than 5 files"),
        ("folder", MANY, bytes, "more than 5 files"),
        ("a.zip", {"x": "text"}, encrypted, "x is encrypted"),
        ("a.zip", {"x": NOISE}, lambda data: flip(data, -1000), "damaged or incomplete"),
    ],
)
def test_archives_that_are_refused(
    name: str,
    files: Files,
    change: Callable[[bytes], bytes],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(text, "SMALL", 100_000)
    monkeypatch.setattr(sources, "MAX_MEMBERS", 5)
    path = tmp_path / name
    if name == "folder":
        write_folder(path, files)
    else:
        path.write_bytes(change(pack(path, files).read_bytes()))
    with pytest.raises(ValueError, match=message):
        everything(SourceFiles(path))


def test_a_bomb_does_not_hide_its_neighbours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text, "SMALL", 100_000)
    assert content(SourceFiles(pack(tmp_path / "b.tar", BOMB)), "y") == ZEROS


def test_paths_without_a_corpus(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    os.mkfifo(tmp_path / "pipe.gz")
    bad = {"nowhere": "does not exist", "empty": "holds no files", "pipe.gz": "neither a file"}
    for name, message in bad.items():
        with pytest.raises(ValueError, match=f"{name} .*{message}|{name} {message}"):
            SourceFiles(tmp_path / name)
    assert [member.base for member in SourceFiles(tmp_path)] == ["pipe"]


def test_links_devices_and_sparse_files_in_a_tar_are_skipped(tmp_path: Path) -> None:
    kinds = (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE)
    odd = [odd_member(f"corpus/{n}", kind) for n, kind in enumerate(kinds)]
    odd.append(odd_member("hole", tarfile.GNUTYPE_SPARSE))
    source = SourceFiles(pack(tmp_path / "a.tgz", FILES, *odd))
    assert everything(source) == CONTENTS
    for name in "01":
        with pytest.raises(ValueError, match=f"{name} is a link in an archive"):
            source.find(name)


def test_links_in_a_zip_are_skipped(tmp_path: Path) -> None:
    path = pack(tmp_path / "a.zip", {"good": "x"})
    with zipfile.ZipFile(path, "a") as zipped:
        info = zipfile.ZipInfo("secret")
        info.external_attr = 0o120777 << 16
        zipped.writestr(info, "/etc/passwd")
    source = SourceFiles(path)
    assert everything(source) == {"good": b"x"}
    with pytest.raises(ValueError, match="secret is a link in an archive"):
        source.find("secret")


def test_links_in_a_folder_stay_inside(tmp_path: Path) -> None:
    (tmp_path / "outside").write_text("secret")
    folder = write_folder(tmp_path / "folder", {"a/real": "text"})
    (folder / "within").symlink_to("a/real")
    (folder / "without").symlink_to(tmp_path / "outside")
    source = SourceFiles(folder)
    assert content(source, "within") == b"text"
    with pytest.raises(ValueError, match="link that leaves its folder"):
        content(source, "without")
