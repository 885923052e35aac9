"""`lightconv prepare`: three kinds of files, reports for people, one line for every mistake."""

import errno
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from lightconv import cli
from lightconv.commands.prepare import _parser, count_rows, draw_histogram, length_rows
from lightconv.config import override, to_dict
from lightconv.corpora import CORPORA
from lightconv.data.config import (
    BPEConfig,
    BytesConfig,
    FilterConfig,
    PipelineConfig,
    PrepareConfig,
    SideConfig,
    WordsConfig,
)
from lightconv.data.prepared import Prepared
from lightconv.data.statistics import count_lengths, describe_side, find_edges
from tests.corpora.packing import lines, write_folder

Ask = Callable[[str], tuple[int, str, str]]


@pytest.fixture
def ask(capsys: pytest.CaptureFixture[str]) -> Ask:
    """Exit code, output and complaints of a command."""

    def run(arguments: str) -> tuple[int, str, str]:
        code = cli.main(["prepare", *arguments.split()])
        return code, *capsys.readouterr()

    return run


@pytest.fixture
def text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with parallel files; the one in which the command runs."""
    folder = write_folder(
        tmp_path / "text",
        {
            "train.de": lines("ein Haus", "zwei Häuser", "", "drei"),
            "train.en": lines("one house", "two houses", "nothing", "three " * 40),
            "dev.de": lines("vier", ""),
            "dev.en": lines("four", ""),
        },
    )
    monkeypatch.chdir(folder)
    return folder


PAIR = "--source-lang de --target-lang en"
SMALL = "--set pipeline.subword.vocab=280"


def test_parallel_files(ask: Ask, text: Path) -> None:
    options = f"{PAIR} --train train --valid dev {SMALL} --set filters.max_len=40"
    code, out, err = ask(f"{options} --out data")
    assert code == 0
    data = Prepared.open("data")
    assert data.task.source_lang == "de"
    assert data.pipeline.config.subword == BytesConfig(vocab=280)
    assert data.origin.filters.max_len == 40
    files = {"train/train.de", "train/train.en", "valid/dev.de", "valid/dev.en"}
    assert set(data.origin.inputs) == files
    rows = [line.split() for line in out.splitlines()]
    assert ["corpus", "own", "(de", "to", "en)"] in rows
    assert ["split", "read", "kept", "empty", "long"] in rows
    assert ["train", "4", "2", "1", "1"] in rows
    assert ["valid", "2", "2", "0", "0"] in rows
    assert "lengths of train, in tokens" in out and "####" in out
    assert err.splitlines()[0].startswith("reading train: 4 in ")


def test_two_files_by_name(ask: Ask, text: Path) -> None:
    files = "--train train.de train.en --valid dev.de dev.en"
    assert ask(f"{PAIR} {files} --out a {SMALL}")[0] == 0
    assert Prepared.open("a").references("valid") == ["four", ""]


def test_language_modelling(ask: Ask, text: Path) -> None:
    settings = "--set pipeline.subword.kind=words"
    code, out, _ = ask(f"--text train.en --valid dev.en --out lm {settings}")
    assert code == 0
    data = Prepared.open("lm")
    assert (data.task.kind, data.sides) == ("language_model", ("text",))
    assert data.pipeline.config.subword == WordsConfig()
    assert ["task", "language", "model"] in [line.split() for line in out.splitlines()]


def test_summaries(ask: Ask, text: Path) -> None:
    record = json.dumps({"document": "A long text.", "summary": "Short."})
    articles, summaries = lines("one two three", "four five"), lines("one", "four")
    write_folder(text, {"a.jsonl": f"{record}\n" * 3, "a.txt": articles, "s.txt": summaries})
    assert ask(f"--jsonl a.jsonl --valid a.jsonl --out json {SMALL}")[0] == 0
    assert Prepared.open("json").references("valid") == ["Short."] * 3
    files = "--articles a.txt --summaries s.txt --valid a.txt s.txt"
    assert ask(f"{files} --out two {SMALL}")[0] == 0
    data = Prepared.open("two")
    assert data.task.kind == "summarization"
    assert data.references("valid") == ["one", "four"]


def test_a_corpus_by_name(ask: Ask, text: Path) -> None:
    code, out, _ = ask("synthetic-reverse --out data --processes 1")
    assert code == 0
    assert Prepared.open("data").task.corpus == "synthetic-reverse"
    assert "20,000" in out and "next:" not in out, "no recipe is made for it"


def test_the_recipe_for_a_corpus_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ask: Ask
) -> None:
    from dataclasses import replace

    from lightconv.corpora.synthetic import Settings, make

    made = make("synthetic-lm", Settings(train=20, valid=5, test=5))
    corpus = replace(made, task=replace(made.task, corpus="debian-lm"))
    monkeypatch.setattr("lightconv.commands.prepare.open_corpus", lambda *_: corpus)
    code, out, _ = ask(f"debian-lm --out {tmp_path / 'data'}")
    assert code == 0
    assert f"next: lightconv train debian-lm-dynamicconv-small --data {tmp_path / 'data'}" in out


def test_list(ask: Ask) -> None:
    code, out, _ = ask("--list")
    assert code == 0
    assert all(name in out and entry.about in out for name, entry in CORPORA.items())
    assert "de-en.tgz" in out and "Needs nothing" in out
    assert max(map(len, out.splitlines())) <= 100


def test_torch_is_not_needed(text: Path) -> None:
    code = "import sys; from lightconv.cli import main; sys.exit(main() or 'torch' in sys.modules)"
    arguments = f"prepare --text train.en --valid dev.en --out data {SMALL}"
    done = subprocess.run([sys.executable, "-c", code, *arguments.split()], check=False)
    assert done.returncode == 0


# --- Mistakes


MISTAKES = [
    ("", "--out DIR is needed"),
    ("--out x", "nothing to prepare, expected the NAME of a corpus (--list shows them)"),
    ("debian-en-dee --out x", "unknown corpus 'debian-en-dee'; did you mean 'debian-en-de'?"),
    ("billion-word --out x", "billion-word needs --from PATH: 1-billion-word"),
    ("synthetic-lm --from y --out x", "synthetic-lm takes no --from, got y"),
    ("synthetic-lm --text y --out x", "--text is for files of your own, not for synthetic-lm"),
    ("synthetic-lm --valid y --out x", "--valid is for files of your own, not for synthetic-lm"),
    ("--from y --out x", "--from needs the NAME of a corpus before it"),
    ("--text y --jsonl z --out x", "--text and --jsonl, expected the NAME of a corpus"),
    ("--articles y --out x", "--articles, expected the NAME of a corpus"),
    ("--train train --out x", "translation needs --source-lang and --target-lang"),
    (f"{PAIR} --train a b c --out x", "--train has 3 files, expected one prefix or two files"),
    (f"{PAIR} --train nope --out x", "nope.de does not exist, expected a text file"),
    ("--text empty --out x", "empty is empty, expected lines of text"),
    ("--jsonl train.en --out x", "--jsonl train.en: expected a file that ends with .jsonl"),
    ("--text . --out x", ". is a folder, expected a text file"),
    ("--text train.en --out x --processes 0", "--processes 0 must be at least 1"),
    (
        "--text train.en --out x --set pipeline.subword.vocab=9",
        "pipeline.subword.vocab=9 must be at least 260",
    ),
    (
        "--text train.en --out x --set filter.max_len=9",
        "unknown field filter=9; did you mean 'filters'?",
    ),
    ("--text train.en --out dev.en/x", "dev.en/x cannot be made: "),
    ("--text train.en --out dev.en", "dev.en exists. Choose another folder"),
    ("--text train.en --out . --overwrite", ". exists and is not a prepared folder, so it is not"),
]


@pytest.mark.parametrize(("arguments", "message"), MISTAKES, ids=[each[0] for each in MISTAKES])
def test_mistakes_are_one_line(ask: Ask, text: Path, arguments: str, message: str) -> None:
    (text / "empty").touch()
    before = sorted(text.iterdir())
    code, out, err = ask(arguments)
    assert (code, out) == (2, "")
    assert f"error: {message}" in err.splitlines()[-1]
    assert sorted(text.iterdir()) == before, "nothing is written"


BAD_FILES = [
    (b"one\ntwo\n", "train.de has 4 lines and train.en has 2, expected the same number."),
    (b"one\ntw\xff\nx\ny\n", "train.en, line 2: byte 0xff is not UTF-8 (byte 3 of the line)"),
    (b"one\ntw\0\nx\ny\n", "train.en, line 2: a NUL character"),
    ("1\n2\n3\n4".encode("utf-16"), "train.en is UTF-16, expected UTF-8. Convert it with iconv"),
    (
        b"\n\n\n\n",
        "nothing is left of split 'train' after filtering: 4 examples read, dropped: empty 4. "
        "Change the filters",
    ),
]


@pytest.mark.parametrize(("content", "message"), BAD_FILES)
def test_bad_files(ask: Ask, text: Path, content: bytes, message: str) -> None:
    (text / "train.en").write_bytes(content)
    before = sorted(text.iterdir())
    code, out, err = ask(f"{PAIR} --train train --valid dev --out data {SMALL}")
    assert (code, out) == (2, "")
    assert f"error: {message}" in err.splitlines()[-1]
    assert sorted(text.iterdir()) == before


def test_marks_of_other_systems_are_one_warning(ask: Ask, text: Path) -> None:
    (text / "train.en").write_bytes(b"\xef\xbb\xbfone\r\ntwo\r\nthree\r\nfour\r\n")
    # What is held out is read from the same file: still one warning.
    code, _, err = ask(f"{PAIR} --train train --out data {SMALL}")
    assert code == 0
    warned = [line for line in err.splitlines() if line.startswith("warning: ")]
    assert warned == [
        "warning: train.de and train.en: dropped the byte order mark of 1 file and the carriage "
        "return (CR) of 4 lines"
    ]


def test_the_output_exists(ask: Ask, text: Path) -> None:
    options = f"--text train.en --valid dev.en --out data {SMALL}"
    assert ask(options)[0] == 0
    code, _, err = ask(options)
    assert code == 2
    assert err == "error: data exists. Choose another folder, or use --overwrite\n"
    assert ask(f"{options} --overwrite")[0] == 0


def test_nothing_is_fetched_for_an_output_that_exists(
    ask: Ask, text: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lightconv.commands.prepare.open_corpus", lambda *_: pytest.fail("fetched"))
    code, _, err = ask(f"debian-lm --out {text}")
    assert (code, err) == (
        2,
        f"error: {text} exists. Choose another folder, or use --overwrite\n",
    )


def test_an_interrupt_says_how_to_go_on(
    ask: Ask, text: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*arguments: object, **options: object) -> None:
        raise KeyboardInterrupt

    options = f"--text train.en --valid dev.en --out data {SMALL}"
    with monkeypatch.context() as patched:
        patched.setattr("lightconv.data.prepare.learn", interrupted)
        code, _, err = ask(options)
    assert code == 130
    assert err.splitlines()[-1] == "not finished: the same command resumes from here"
    code, _, err = ask(options)
    assert code == 0
    assert err.splitlines()[0] == "resuming after: text of train, text of valid"


def test_a_full_disk_is_a_failure_to_go_on_from(
    ask: Ask, text: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write(*arguments: object, **options: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("lightconv.data.prepare.StoreWriter", write)
    code, _, err = ask(f"--text train.en --valid dev.en --out data {SMALL}")
    assert code == 1
    assert err.splitlines()[-2:] == [
        "not finished: the same command resumes from here",
        f"error: {text / '.data.prepare'}: No space left on device",
    ]


def vanish(*arguments: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_worker_that_dies_is_a_failure_to_go_on_from(
    ask: Ask, text: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = f"--text train.en --valid dev.en --out data --processes 2 {SMALL}"
    with monkeypatch.context() as patched:
        patched.setattr("lightconv.data.prepare.WORTH_PROCESSES", 1)
        patched.setattr("lightconv.data.prepare._make_ids", vanish)
        code, _, err = ask(options)
    assert code == 1
    *_, note, line = err.splitlines()
    assert note == "not finished: the same command resumes from here"
    assert line.startswith("error: a worker process died (SIGKILL), expected it to finish.")
    code, _, err = ask(options)
    assert code == 0
    assert err.splitlines()[0] == "resuming after: text of train, text of valid, vocabulary"


# --- Tables


def counted(lengths: list[int]) -> NDArray[np.int64]:
    return count_lengths(np.zeros(0, dtype=np.int64), np.array(lengths))


def splits() -> dict[str, dict[str, Any]]:
    sides = {"source": counted([1, 2, 2, 3]), "target": counted([2, 2, 4, 4])}
    edges = find_edges(sides.values())
    described = {name: describe_side(side, 1, edges) for name, side in sides.items()}
    return {
        "train": {"read": 12345, "kept": 4, "dropped": {"empty": 12341}, "sides": described},
        "valid": {"read": 4, "kept": 4, "dropped": {}, "sides": described},
    }


def test_rows() -> None:
    header, rows = count_rows(splits())
    assert header == ["split", "read", "kept", "empty"], "what never happened has no column"
    assert rows == [["train", "12,345", "4", "12,341"], ["valid", "4", "4", "0"]]
    header, rows = length_rows(splits())
    names = ", ".join(header)
    assert names == "split, side, tokens, unknown, mean, 50 %, 90 %, 99 %, longest"
    assert rows[0] == ["train", "source", "8", "12.50%", "2.0", "2", "3", "3", "3"]
    assert rows[3] == ["valid", "target", "12", "8.33%", "3.0", "2", "4", "4", "4"]


def test_the_picture() -> None:
    lines = draw_histogram(splits()["train"])
    assert lines[0].split() == ["source", "target"]
    assert lines[1].split() == ["1", "25.0%", "#" * 12, "0.0%"]
    assert lines[2].split() == ["2", "50.0%", "#" * 24, "50.0%", "#" * 24]
    assert lines[-1].split() == ["5", "and", "more", "0.0%", "0.0%"]
    assert len(lines) == 6
    empty = {"sides": {"text": describe_side(counted([0, 1]), 0, [0, 1, 2])}}
    assert [line.split()[:2] for line in draw_histogram(empty)[1:3]] == [
        ["0", "50.0%"],
        ["1", "50.0%"],
    ]


# --- docs/data.md

PAGE = (Path(__file__).parents[2] / "docs" / "data.md").read_text()


def test_the_page_names_every_corpus() -> None:
    assert not [name for name in CORPORA if f"`{name}`" not in PAGE]


@pytest.mark.parametrize("command", re.findall(r"^    lightconv prepare (.*)$", PAGE, re.MULTILINE))
def test_the_commands_of_the_page_are_understood(command: str) -> None:
    options = _parser().parse(command.split())
    assert options.list or options.out


@pytest.mark.parametrize("setting", re.findall(r"`((?:pipeline|filters)\.\S+=\S+)`", PAGE))
def test_the_settings_of_the_page_are_understood(setting: str) -> None:
    sides = (SideConfig(lang="de"), SideConfig(lang="en"))
    for subword in (BytesConfig(), BPEConfig(merges=9), WordsConfig()):
        pipeline = PipelineConfig(sides=sides, subword=subword)
        known = setting.split("=", maxsplit=1)[0].rpartition(".")[2] in (*to_dict(subword), "kind")
        if known or ".subword." not in setting:
            extra = ["pipeline.subword.merges=5"] if setting.endswith("=bpe") else []
            config = PrepareConfig(pipeline=pipeline, filters=FilterConfig())
            override(config, [setting, *extra])
            return
    raise AssertionError(f"{setting} fits no kind of subwords")


def test_the_python_of_the_page_runs(ask: Ask, text: Path) -> None:
    folder, *others = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert ask(f"{PAIR} --train train --valid dev {SMALL} --out data/debian")[0] == 0
    exec(folder, {})
    names: dict[str, Any] = {}
    for code in others:
        exec(code, names)
    assert names["data"].task.corpus == "synthetic-copy"
    assert names["data"].statistics()["splits"]["train"]["dropped"]["long"] > 0
    assert names["batches"].plan.padding < 0.05
    assert names["loader"].position.batch > 0


def test_the_page_names_every_option() -> None:
    known = {name for name in _parser()._option_string_actions if name.startswith("--")}
    (options,) = re.findall(r"^## Options\n(.*?)^By default", PAGE, re.DOTALL | re.MULTILINE)
    assert set(re.findall(r"`(--[a-z-]+)", options)) == known - {"--help"}
