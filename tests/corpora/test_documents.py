"""Man pages and books: blocks, pairs of blocks, corpora."""

import gzip
import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightconv.corpora import open_corpus
from lightconv.corpora.documents import Block, pair_blocks, read_manual, read_markup
from tests.corpora.fake_apt import FakeApt
from tests.corpora.packing import make_deb

MANUAL = r""".\" A comment.
.TH ls 1 "May 2023" "Tools"
.SH NAME
ls \- list \fIdirectory\fP contents
.SH DESCRIPTION
.PP
.B ls
prints a line for each
.IR file ,
see \fBstat\fP(2) \(em or
.BR find (1).
.TP
\fB\-a\fP, \fB\-\-all\fP
show hidden files,
.\" not the whole truth
and links
.IP \(bu 3
an item of a list
.nf
$ ls   # an example
.fi
.EX
more
.EE
.PP
It\(aqs \f(CWfixed\fR \s-1SMALL\s0 text\&.
.PP
An unknown \[radicalex] sign.
"""

BOOK = """<html><head><title>A &amp; B</title><style>p {}</style></head><body>
<h2 class="title"><a id="x"></a>2.1.3. The first <em>heading</em></h2>
<div class="para">Text with <code>code</code>,<br/>a break <div class="url">and more</div></div>
<ul><li>one<li>two</ul><pre>an example<br>of code</pre>
<table><tr><td>left</td><td>right</td></tr></table>after <p>last &#8212; words
</body></html>"""


def test_blocks_of_a_man_page() -> None:
    assert read_manual(MANUAL) == [
        ("SH", "NAME"),
        ("SH", "ls - list directory contents"),
        ("SH", "DESCRIPTION"),
        ("PP", "ls prints a line for each file, see stat(2) \N{EM DASH} or find(1)."),
        ("TP", "-a, --all"),
        ("TP.text", "show hidden files, and links"),
        ("IP", "*"),
        ("IP", "an item of a list"),
        ("PP", "It's fixed SMALL text."),
    ]


def test_blocks_of_a_book() -> None:
    assert read_markup(BOOK) == [
        ("title.", "A & B"),
        ("h2.title", "The first heading"),
        ("div.para", "Text with code, a break"),
        ("div.url", "and more"),
        ("li.", "one"),
        ("li.", "two"),
        ("td.", "left"),
        ("td.", "right"),
        ("p.", "last \N{EM DASH} words"),
    ]


@given(st.text("\\.'\"\n()[]<>/-fBIRTPSH pa=&#;0", max_size=200))
def test_no_garbage_crashes(text: str) -> None:
    for read in (read_manual, read_markup):
        assert all(block.text for block in read(text))


def blocks(*texts: str, kind: str = "p") -> list[Block]:
    return [Block(kind, text) for text in texts]


def test_blocks_of_one_structure_are_pairs_unless_their_numbers_or_names_differ() -> None:
    ours = blocks("The first text.", "All of 12 files.", "See --help for more.", "One of 3 x.")
    theirs = blocks(
        "Der erste Text.", "Alle 12 Dateien.", "Siehe --version für mehr.", "Eine von drei."
    )
    assert list(pair_blocks(ours, [*theirs, Block("SH", "ÜBERSETZUNG")])) == [
        ("The first text.", "Der erste Text."),
        ("All of 12 files.", "Alle 12 Dateien."),
        ("One of 3 x.", "Eine von drei."),
    ]


def test_a_paragraph_of_one_page_only_does_not_shift_the_others() -> None:
    ours = blocks(*(f"The text of number {n}." for n in range(9)))
    theirs = blocks(*(f"Der Text mit Nummer {n}." for n in range(9) if n != 4))
    pairs = list(pair_blocks(ours, theirs))
    assert [source[-2] for source, _ in pairs] == [target[-2] for _, target in pairs]
    assert len(pairs) == 8
    # Runs of fewer than four are left out.
    assert not list(pair_blocks(ours[:3], [Block("h1", "Titel"), *theirs[:3]]))


@pytest.fixture
def mirror(apt: FakeApt) -> Path:
    if shutil.which("dpkg-deb") is None:
        pytest.skip("no dpkg-deb on this machine")

    def save(name: str, files: dict[str, bytes]) -> None:
        (apt.mirror / f"{name}.deb").write_bytes(make_deb(files))

    def html(text: str) -> bytes:
        return f"<html><body><p>{text}</p></body></html>".encode()

    handbook = "usr/share/doc/debian-handbook/html"
    save(
        "debian-handbook",
        {
            f"{handbook}/en-US/a.html": html("A chapter of words. It has two sentences."),
            f"{handbook}/de-DE/a.html": html("Ein Kapitel voller Wörter. Es hat zwei Sätze."),
            f"{handbook}/fr-FR/b.html": html("Une page seule."),
        },
    )
    for code, text in {"en": "Packages of the system.", "de": "Pakete des Systems."}.items():
        path = f"usr/share/debian-reference/ch01.{code}.html"
        save(f"debian-reference-{code}", {path: html(text)})
    guide = "usr/share/doc/installation-guide-amd64"
    save(
        "installation-guide-amd64",
        {
            f"{guide}/en/ch01.html": html("Before you start this."),
            f"{guide}/de/ch01.html": html("Bevor Sie beginnen."),
        },
    )
    page = "<page><p>{}</p></page>"
    save(
        "gnome-user-docs",
        {
            "usr/share/help/C/x.page": page.format("Press the key twice.").encode(),
            "usr/share/help/de/x.page": page.format("Drücken Sie zweimal.").encode(),
        },
    )
    for name in ["manpages-dev", "coreutils", "util-linux", "systemd", "libsane-common", "mtools"]:
        save(name, {"usr/share/man/man1/bomb.1.gz": gzip.compress(b"\n" * (9 << 20))})
    manual = ".SH NAME\nprints the {}\n".format
    save(
        "manpages",
        {
            "usr/share/man/man1/a.1.gz": gzip.compress(manual("current time").encode()),
            "usr/share/man/man1/broken.1.gz": b"\x1f\x8bbroken",
        },
    )
    german = "usr/share/man/de/man1"
    save(
        "manpages-de",
        {
            f"{german}/a.1.gz": gzip.compress(b".SH NAME\nzeigt die Uhrzeit\n"),
            f"{german}/broken.1.gz": gzip.compress(b".SH NAME\nzeigt nichts\n"),
            f"{german}/bomb.1.gz": gzip.compress(b"\n" * (9 << 20)),
        },
    )
    save("manpages-de-dev", {"usr/share/doc/readme": b"nothing"})
    for language in ("en-us", "de"):
        save(f"libreoffice-help-{language}", {"usr/share/doc/readme": b"nothing"})
    for code, text in {"en": "Tool for things", "de": "Werkzeug für Dinge"}.items():
        index = f"Package: foo\nDescription-md5: 00ff\nDescription-{code}: {text}\n"
        (apt.mirror / code).mkdir(exist_ok=True)
        (apt.mirror / code / "stable.gz").write_bytes(gzip.compress(index.encode()))
    return apt.mirror


BOOKS = {
    ("A chapter of words. It has two sentences.", "Ein Kapitel voller Wörter. Es hat zwei Sätze."),
    ("Packages of the system.", "Pakete des Systems."),
    ("Before you start this.", "Bevor Sie beginnen."),
    ("Press the key twice.", "Drücken Sie zweimal."),
}
MANUALS = {("prints the current time", "zeigt die Uhrzeit")}
CUT = {
    ("A chapter of words.", "Ein Kapitel voller Wörter."),
    ("It has two sentences.", "Es hat zwei Sätze."),
    ("Tool for things", "Werkzeug für Dinge"),
}


@pytest.mark.parametrize(
    ("name", "pairs"),
    [
        ("debian-docs-en-de", BOOKS),
        ("manpages-en-de", MANUALS),
        ("debian-all-en-de", MANUALS | CUT | {pair for pair in BOOKS if "." not in pair[0][:-1]}),
    ],
)
def test_corpus(mirror: Path, tmp_path: Path, name: str, pairs: set[tuple[str, str]]) -> None:
    corpus = open_corpus(name, None, tmp_path / "cache")
    assert {each for read in corpus.splits.values() for each in read()} == pairs
    assert (corpus.task.source_lang, corpus.task.target_lang) == ("en", "de")
