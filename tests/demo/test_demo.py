"""`lightconv demo` from text to page, on a little invented text."""

import json
import re
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from lightconv import cli
from lightconv.commands import demo
from lightconv.console import Display
from lightconv.corpora.synthetic import Settings, make
from lightconv.data.prepare import prepare
from lightconv.demo import run as stages
from lightconv.demo.page import PAPER
from lightconv.demo.plan import PLANS, quick

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


def small_data(folder: Path, task: str) -> None:
    prepare(make(CORPORA[task], Settings(train=300, valid=10, test=16)), folder, processes=1)


def run(out: Path, task: str) -> int:
    corpus = CORPORA[task]
    return cli.main(["demo", "--task", task, "--quick", "--corpus", corpus, "--out", str(out)])


@pytest.fixture(scope="module", params=list(CORPORA))
def done(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A demo that has ended, for each task."""
    out = tmp_path_factory.mktemp(f"demo-{request.param}")
    small_data(out / "data", request.param)
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
    results = json.loads((done / "results.json").read_text())
    said = " ".join(Page(done / "report.html").said)
    for example in results["examples"]:
        assert " ".join(example["reference"].split()[:20]) in said
    for scores in results["scores"].values():
        assert f"{scores[0]['value']:.2f}" in said
    assert results["scores"]["model"][0]["signature"] in said
    assert len(results["scores"]) == (2 if task_of(done) == "lm" else 3)


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
    assert "on the test set" in out
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


def reopen(out: Path, **changes: int) -> stages.Demo:
    plan = replace(quick(PLANS["translation"]), **changes)
    found = stages.Demo("translation", plan, out, CORPORA["translation"])
    with Display(quiet=True) as display:
        found.prepare(display)
    return found


@ONCE
@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"key": "one"}', "null", "[" * 10**5])
def test_results_of_others_are_not_used(text: str, out: Path) -> None:
    assert reopen(out).done
    (out / "results.json").write_text(text)
    found = reopen(out)
    assert found.results.keys() == {"key"} and found.trained and not found.done


@ONCE
def test_another_size_is_trained_anew(out: Path) -> None:
    found = reopen(out, steps=3)
    assert found.results.keys() == {"key"} and not found.trained
    assert found.train() == 0
    assert found.trained


def test_ctrl_c_is_passed_on(tmp_path: Path) -> None:
    """The run is saved, and the demo ends with its exit code."""
    small_data(tmp_path / "data", "lm")
    script = "import sys\nfrom dataclasses import replace\nfrom lightconv import cli\n" + (
        "from lightconv.demo.plan import PLANS\nPLANS['lm'] = replace(PLANS['lm'], dim=32)\n"
        "sys.exit(cli.main(sys.argv[1:]))"
    )
    arguments = ["demo", "--task", "lm", "--corpus", "synthetic-lm", "--out", str(tmp_path)]
    process = subprocess.Popen(
        [sys.executable, "-c", script, *arguments], stderr=subprocess.PIPE, text=True
    )
    log = tmp_path / "run" / "log.jsonl"
    end = time.monotonic() + 120
    while not (log.exists() and log.read_text()) and time.monotonic() < end:
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 130, err
    assert "saved as" in err
    assert list((tmp_path / "run" / "checkpoints").glob("step-*"))


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


def test_text_for_another_task_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small_data(tmp_path / "data", "lm")
    assert run(tmp_path, "translation") == 2
    assert "holds synthetic-lm" in capsys.readouterr().err
    arguments = ["--quick", "--corpus", "synthetic-lm", "--out", str(tmp_path)]
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
    monkeypatch.setattr(demo, "find_spec", lambda name: None if name == missing else True)
    assert run(tmp_path / "x", "summary") == 2
    assert f"pip install 'lightconv[{extra}]'" in capsys.readouterr().err
    assert not (tmp_path / "x").exists()
