"""`lightconv demo` from text to page, on a little invented text."""

import json
import re
import shutil
import time
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import pytest

from lightconv import cli
from lightconv.commands import fit
from lightconv.console import Display
from lightconv.corpora import Progress, open_corpus
from lightconv.corpora.synthetic import Settings, make
from lightconv.data.text import Corpus
from lightconv.demo import run as stages
from lightconv.demo.page import PAPER

CORPORA = {task: f"synthetic-{task}" for task in ("translation", "lm", "summary")}


class Page(HTMLParser):
    """Tags, references and words of a page; its tags must fit."""

    VOID = ("meta", "img", "source", "br")

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.references: dict[str, list[str]] = {"src": [], "srcset": [], "href": []}
        self.tags: set[str] = set()
        self.said: list[str] = []
        self.open: list[str] = []
        self.feed(path.read_text())
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.open += [] if tag in self.VOID else [tag]
        for name, value in attrs:
            self.references.get(name, []).append(value or "")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.said.append(data)


SMALL = Settings(train=300, valid=10, test=16)


@pytest.fixture(scope="module", autouse=True)
def small_corpora() -> Iterator[None]:
    """Synthetic corpora are small, and there is no apt on this machine."""

    def small(name: str, source: Path | None, cache: Path, progress: Progress) -> Corpus:
        if name.startswith("synthetic-"):
            return make(name, SMALL)
        return open_corpus(name, source, cache, progress)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stages, "open_corpus", small)
        patch.setattr(shutil, "which", lambda name: None)
        yield


def run(out: Path, task: str, *more: str) -> int:
    corpus = CORPORA[task]
    arguments = ["--task", task, "--quick", "--corpus", corpus, "--out", str(out)]
    return cli.main(["demo", *arguments, *more])


@pytest.fixture(scope="module", params=list(CORPORA))
def done(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A demo that has ended, for each task."""
    out = tmp_path_factory.mktemp(f"demo-{request.param}")
    assert run(out, request.param) == 0
    return out


def task_of(out: Path) -> str:
    return next(task for task in CORPORA if f"demo-{task}" in out.name)


def test_the_page_stands_alone(done: Path) -> None:
    text, page = (done / "report.html").read_text(), Page(done / "report.html")
    images = page.references["src"]
    assert len(images) == 2  # learning and growth; kernels are tables
    assert all(image.startswith("data:image/svg+xml;base64,") for image in images)
    assert (page.references["href"], page.references["srcset"]) == ([PAPER], [])
    # Nothing but the link to the paper may name another place; base64 has no colon.
    assert re.findall(r"https?://[^\s\"<]*", text) == [PAPER]
    assert not page.tags & {"script", "link", "iframe", "object"}
    assert "url(" not in text and "@import" not in text


def test_the_page_says_what_was_found(done: Path) -> None:
    results = json.loads((done / "model.fit" / "state.json").read_text())
    said = " ".join(Page(done / "report.html").said)
    for example in results["examples"]:
        assert " ".join(example["reference"].split()[:20]) in said
    for scores in results["scores"].values():
        assert f"{scores[0]['value']:.2f}" in said
    assert results["scores"]["model"][0]["signature"] in said
    baselines = {"translation": "copy nearest", "lm": "unigram bigram", "summary": "lead nearest"}
    assert list(results["scores"]) == ["model", *baselines[task_of(done)].split()]


def test_the_second_time_is_quick_and_says_the_same(
    done: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = (done / "report.html").stat().st_mtime_ns
    begin = time.process_time()
    assert run(done, task_of(done)) == 0
    assert time.process_time() - begin < 1.0
    assert (done / "report.html").stat().st_mtime_ns == before
    out = capsys.readouterr().out
    assert str(done / "report.html") in out
    assert "on 6 held-out texts" in out
    assert "updates" not in out  # nothing was trained


@pytest.fixture
def out(done: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(done, tmp_path / done.name))


ONCE = pytest.mark.parametrize("done", ["translation"], indirect=True)


@ONCE
def test_what_is_missing_is_made_again(out: Path) -> None:
    """A lost page is drawn again from the results, and is the same to the byte."""
    text = (out / "report.html").read_bytes()
    (out / "report.html").unlink()
    assert run(out, "translation") == 0
    assert (out / "report.html").read_bytes() == text


@ONCE
@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"key": "one"}', "null", "[" * 10**5])
def test_results_of_others_are_not_used(text: str, out: Path) -> None:
    def reopen() -> stages.Demo:
        found = stages.Demo("translation", out, 300, CORPORA["translation"], quick=True)
        found.open_fit(lambda choice: None)
        return found

    assert reopen().done
    (out / "results.json").write_text(text)
    assert reopen().results.keys() == {"key"} and not reopen().done


def test_without_apt_the_text_is_invented_and_used_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LIGHTCONV_CACHE", str(tmp_path / "cache"))
    demo = stages.Demo("lm", tmp_path, 300, quick=True)
    with Display() as display:
        texts = demo.find_text(display)
    assert texts is not None and texts.corpus_name == "synthetic-lm"
    said = capsys.readouterr().err
    assert "no apt-get on this machine" in said
    assert "using synthetic-lm instead" in said


def test_a_corpus_that_was_asked_for_is_not_replaced(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LIGHTCONV_CACHE", str(tmp_path / "cache"))
    assert cli.main(["demo", "--corpus", "debian-en-fr", "--out", str(tmp_path)]) == 2
    assert "no apt-get" in capsys.readouterr().err
    assert not (tmp_path / "model.fit").exists()


@pytest.mark.parametrize(
    "option, value, message",
    [("--corpus", "debian-en-dee", "did you mean 'debian-en-de'"), ("--task", "x", "translation")],
)
def test_mistyped_names_are_refused(
    option: str, value: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["demo", option, value, "--out", str(tmp_path / "x")]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "x").exists()


@ONCE
def test_text_for_another_task_is_refused(out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(out, "lm") == 2
    assert "holds synthetic-translation" in capsys.readouterr().err
    arguments = ["--quick", "--corpus", "synthetic-lm", "--out", str(out / "new")]
    assert cli.main(["demo", *arguments]) == 2
    assert "is for language_model, expected one for translation" in capsys.readouterr().err


@pytest.mark.parametrize("missing, extra", [("rouge_score", "rouge"), ("matplotlib", "plot")])
def test_a_missing_package_is_named_at_once(
    missing: str,
    extra: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fit, "find_spec", lambda name: None if name == missing else True)
    assert run(tmp_path / "x", "summary") == 2
    assert f"pip install 'lightconv[{extra}]'" in capsys.readouterr().err
    assert not (tmp_path / "x").exists()
