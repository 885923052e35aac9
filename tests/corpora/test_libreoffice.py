"""Help pages: elements, alternatives, and the corpus of two packages."""

import shutil
from hashlib import sha256
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightconv.corpora import open_corpus
from lightconv.corpora.debian import element_text, read_page
from tests.corpora.fake_apt import FakeApt
from tests.corpora.packing import make_deb

PAGE = """
<title>no element</title>
<h1 id="hd_id1" dir="auto">Columns</h1>
<p id="par_id2" class="paragraph" dir="auto"><a name="x"></a><span class="avis">Sets the
number</span> &amp; width of <a href="y">columns</a>.</p>
<p id="par_id3" class="code" dir="auto">Print 1</p>
<p id="par_id4" class="paragraphintable"><img src="z" alt="icon"></p>
<p class="howtogetheader">no id</p>
<p id="par_id2" class="paragraph">The same id<br>again.</p>
<p id="bm_module">other</p>
"""


def test_elements_of_a_page() -> None:
    assert read_page(PAGE) == {
        ("hd_id1", 0): "Columns",
        ("par_id2", 0): "Sets the number & width of columns.",
        ("par_id2", 1): "The same id again.",
    }


SWITCH = (
    'Choose <span id="swlnsys1" class="switchinline"><span hidden="true" id="m" class="MAC"><span '
    'class="emph">Preferences</span></span>{default}</span> now.'
)
DEFAULT = '<span hidden="true" id="d"><span class="emph">Tools - Options</span></span>'


def test_of_alternatives_the_general_one_is_taken() -> None:
    assert element_text(SWITCH.format(default=DEFAULT)) == "Choose Tools - Options now."
    # Without a general one, the first.
    other = '<span hidden="true" class="WIN">Settings</span>'
    assert element_text(SWITCH.format(default=other)) == "Choose Preferences now."
    assert element_text(SWITCH.format(default="")) == "Choose Preferences now."


def test_placeholders_survive() -> None:
    assert element_text("type <span>&lt;?&gt;</span> times") == "type <?> times"


SPANS = [
    f"<span{attributes}>"
    for attributes in ("", ' class="switchinline"', ' hidden="true"', ' hidden="true" class="MAC"')
]
TAGS = ["a ", "</span>", "<br>", "</p>", "<", "&amp;", "<b>", *SPANS]


@given(st.lists(st.sampled_from(TAGS), max_size=20))
def test_no_markup_crashes(parts: list[str]) -> None:
    assert isinstance(element_text("".join(parts)), str)
    read_page('<p id="par_id1">' + "".join(parts) + "</p>")


def page(*texts: str) -> bytes:
    lines = [f'<p id="par_id{n}" class="paragraph">{text}</p>' for n, text in enumerate(texts)]
    return "\n".join(lines).encode()


@pytest.fixture
def packages(apt: FakeApt) -> FakeApt:
    """Four languages of one page and of another that English lacks."""
    if shutil.which("dpkg-deb") is None:
        pytest.skip("no dpkg-deb on this machine")
    texts = {
        "en-us": page("Enter the width here.", "Shift+F4", "Opens a new file.", "Yes"),
        "de": page("Geben Sie die Breite ein.", "Umschalt+F4", "Opens a new file.", "Ja"),
        "fr": page("Saisissez la largeur ici.", "Maj+F4", "Ouvre un fichier."),
        "zh-cn": page("输入宽度。", "Shift+F4", "「Opens a new file」 now", "是"),
    }
    for name, data in texts.items():
        root = f"usr/share/libreoffice/help/{name}"
        files = {
            f"{root}/text/swriter/01.html": data,
            f"{root}/text/{name}.html": page("A page that only one language has."),
            f"{root}/noscript.html": page("Needs a script to work."),
            f"usr/share/doc/{name}/text/a.html": data,
        }
        (apt.mirror / f"libreoffice-help-{name}.deb").write_bytes(make_deb(files))
    return apt


@pytest.mark.parametrize(
    ("language", "pairs"),
    [
        ("de", {("Enter the width here.", "Geben Sie die Breite ein.")}),
        (
            "fr",
            {
                ("Enter the width here.", "Saisissez la largeur ici."),
                ("Opens a new file.", "Ouvre un fichier."),
            },
        ),
        ("zh", {("Enter the width here.", "输入宽度。")}),
    ],
)
def test_corpus(
    packages: FakeApt, tmp_path: Path, language: str, pairs: set[tuple[str, str]]
) -> None:
    corpus = open_corpus(f"libreoffice-en-{language}", None, tmp_path / "cache")
    assert {example for reader in corpus.splits.values() for example in reader()} == pairs
    assert (corpus.task.source_lang, corpus.task.target_lang) == ("en", language)
    assert [side.lang for side in corpus.pipeline.sides] == ["en", language]
    assert corpus.pipeline.subword.kind == "bytes"
    english = (packages.mirror / "libreoffice-help-en-us.deb").read_bytes()
    assert sha256(english).hexdigest() in corpus.digests.values()
    assert len(corpus.digests) == 2


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("apt-get") is None, reason="no apt on this machine")
def test_the_real_corpus_is_large(tmp_path: Path) -> None:
    try:
        corpus = open_corpus("libreoffice-en-zh", None, tmp_path)
    except ValueError as error:
        pytest.skip(str(error))
    sizes = {split: sum(1 for _ in reader()) for split, reader in corpus.splits.items()}
    assert sizes["train"] > 10_000
    assert all(500 < sizes[split] < 5000 for split in ("valid", "test"))
