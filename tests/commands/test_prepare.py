"""`lightconv prepare`: three kinds of files, reports for people, one line for every mistake."""

import errno
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from lightconv.commands.prepare import _parser, count_rows, draw_histogram, length_rows
from lightconv.config import override, to_dict
from lightconv.corpora import CORPORA, PUBLISHED
from lightconv.corpora.synthetic import Settings, make
from lightconv.data.config import (
    BPEConfig,
    BytesConfig,
    FilterConfig,
    PipelineConfig,
    PrepareConfig,
    SideConfig,
    WordsConfig,
)
from lightconv.data.prepared import Prepared, count_lengths, describe_side, find_edges
from tests.commands.conftest import Done, Run
from tests.corpora.packing import lines, write_folder

Ask = Callable[[str], Done]


@pytest.fixture
def ask(run: Run) -> Ask:
    return lambda arguments: run("prepare", *arguments.split())


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
TEXT = f"--text train.en --valid dev.en --out data {SMALL}"


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
    by_name = "--train train.de train.en --valid dev.de dev.en"
    assert ask(f"{PAIR} {by_name} --out a {SMALL}")[0] == 0
    assert Prepared.open("a").references("valid") == ["four", ""]


# A tokeniser's output: an apostrophe as an entity, a split hyphen, a full stop apart.
TOKENS = ["I don &apos;t know .", "A well @-@ known House , isn &apos;t it ?"]


def test_tokenised_text_is_left_alone(ask: Ask, text: Path) -> None:
    write_folder(text, {"tok.de": lines(*TOKENS), "tok.en": lines(*TOKENS)})
    files = f"{PAIR} --train tok --valid tok"
    done = ask(f"{files} --out plain {SMALL}")
    assert "note: tok.en looks tokenised already, and sacrebleu expects plain text" in done.err
    assert Prepared.open("plain").task.metric == "sacrebleu"
    for options, metric, words in (
        ("--tokenized", "tokenized_bleu", TOKENS),
        ("--tokenized --lowercase", "tokenized_bleu_lowercase", [each.lower() for each in TOKENS]),
    ):
        done = ask(f"{files} {options} --out {metric}")
        assert done.code == 0 and "looks tokenised" not in done.err
        data = Prepared.open(metric)
        assert data.task.metric == metric and data.tokenized
        assert data.pipeline.config.subword == BPEConfig(merges=10_000)
        assert data.references("valid") == TOKENS
        ids = [data.store("train")[row][1].tolist() for row in range(2)]
        assert [data.pipeline.decode(1, each) for each in ids] == words
        assert data.statistics()["splits"]["train"]["sides"]["target"]["unknown"] == 0


def test_plain_text_in_lower_case(ask: Ask, text: Path) -> None:
    done = ask(f"{PAIR} --train train --valid dev --lowercase --out data {SMALL}")
    data = Prepared.open("data")
    assert "looks tokenised" not in done.err
    assert (data.task.metric, data.tokenized) == ("sacrebleu", False)
    ids = data.store("train")[1]
    assert [data.pipeline.decode(side, ids[side]) for side in (0, 1)] == [
        "zwei häuser",
        "two houses",
    ]


def test_language_modelling(ask: Ask, text: Path) -> None:
    done = ask("--text train.en --valid dev.en --out lm --set pipeline.subword.kind=words")
    data = Prepared.open("lm")
    assert (data.task.kind, data.sides) == ("language_model", ("text",))
    assert data.pipeline.config.subword == WordsConfig()
    assert ["task", "language", "model"] in [line.split() for line in done.out.splitlines()]


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


def test_a_corpus_by_name_and_its_recipe(
    ask: Ask, text: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = ask("synthetic-reverse --out data --processes 1").out
    assert Prepared.open("data").task.corpus == "synthetic-reverse"
    assert "20,000" in out and "next:" not in out, "no recipe is made for it"
    made = make("synthetic-lm", Settings(train=20, valid=5, test=5))
    corpus = replace(made, task=replace(made.task, corpus="debian-lm"))
    monkeypatch.setattr("lightconv.commands.prepare.open_corpus", lambda *_: corpus)
    out = ask("debian-lm --out lm").out
    assert "next: lightconv train debian-lm-dynamicconv-small --data lm --out RUN" in out


def test_list(ask: Ask) -> None:
    out = ask("--list").out
    assert all(name in out and entry.about in out for name, entry in CORPORA.items())
    assert "de-en.tgz" in out and "Needs nothing" in out
    assert max(map(len, out.splitlines())) <= 100


def test_torch_is_not_needed(text: Path) -> None:
    code = "import sys; from lightconv.cli import main; sys.exit(main() or 'torch' in sys.modules)"
    command = [sys.executable, "-c", code, "prepare", *TEXT.split()]
    assert subprocess.run(command, check=False).returncode == 0


# --- Mistakes

BAD_FILES = {
    "empty": b"",
    "short": b"one\ntwo\n",
    "latin": b"one\ntw\xff\nx\ny\n",
    "nul": b"one\ntw\0\nx\ny\n",
    "wide": "1\n2\n3\n4".encode("utf-16"),
    "blank": b"\n\n\n\n",
}
WITH = f"{PAIR} --valid dev --out x {SMALL} --train train.de"
MISTAKES = {
    "": "--out DIR is needed",
    "--out x": "nothing to prepare, expected the NAME of a corpus (--list shows them)",
    "debian-en-dee --out x": "unknown corpus 'debian-en-dee'; did you mean 'debian-en-de'?",
    "billion-word --out x": "billion-word needs --from PATH: 1-billion-word",
    "synthetic-lm --from y --out x": "synthetic-lm takes no --from, got y",
    "synthetic-lm --text y --out x": "--text is for files of your own, not for synthetic-lm",
    "synthetic-lm --valid y --out x": "--valid is for files of your own, not for synthetic-lm",
    "synthetic-lm --tokenized --out x": "--tokenized is for files of your own, not for synthetic",
    "--from y --out x": "--from needs the NAME of a corpus before it",
    "--text y --jsonl z --out x": "--text and --jsonl, expected the NAME of a corpus",
    "--articles y --out x": "--articles, expected the NAME of a corpus",
    "--train train --out x": "translation needs --source-lang and --target-lang",
    f"{PAIR} --train a b c --out x": "--train has 3 files, expected one prefix or two files",
    f"{PAIR} --train nope --out x": "nope.de does not exist, expected a text file",
    "--text empty --out x": "empty is empty, expected lines of text",
    "--jsonl train.en --out x": "--jsonl train.en: expected a file that ends with .jsonl",
    "--text . --out x": ". is a folder, expected a text file",
    f"{TEXT} --processes 0": "argument --processes: '0', expected",
    f"{TEXT} --set pipeline.subword.vocab=9": "pipeline.subword.vocab=9 must be at least 260",
    f"{TEXT} --set filter.max_len=9": "unknown field filter=9; did you mean 'filters'?",
    "--text train.en --out dev.en/x": "dev.en/x cannot be made: ",
    "--text train.en --out dev.en": "dev.en exists. Choose another folder, or use --overwrite",
    "--text train.en --out . --overwrite": ". exists and is not a prepared folder, so it is not",
    f"{WITH} short": "train.de has 4 lines and short has 2, expected the same number.",
    f"{WITH} latin": "latin, line 2: byte 0xff is not UTF-8 (byte 3 of the line)",
    f"{WITH} nul": "nul, line 2: a NUL character",
    f"{WITH} wide": "wide is UTF-16, expected UTF-8. Convert it with iconv",
    f"{WITH} blank": "nothing is left of split 'train' after filtering: 4 examples read, dropped: "
    "empty 4. Change the filters",
}


@pytest.mark.parametrize("arguments", MISTAKES)
def test_mistakes_are_one_line(ask: Ask, text: Path, arguments: str) -> None:
    write_folder(text, BAD_FILES)
    before = sorted(text.iterdir())
    assert ask(arguments).refused(f"error: {MISTAKES[arguments]}", after="reading ")
    assert sorted(text.iterdir()) == before, "nothing is written"


def test_marks_of_other_systems_are_one_warning(ask: Ask, text: Path) -> None:
    (text / "train.en").write_bytes(b"\xef\xbb\xbfone\r\ntwo\r\nthree\r\nfour\r\n")
    # What is held out is read from the same file: still one warning.
    done = ask(f"{PAIR} --train train --out data {SMALL}")
    dropped = "dropped the byte order mark of 1 file and the carriage return (CR) of 4 lines"
    assert done.code == 0 and done.err.count("warning: ") == 1
    assert f"warning: train.de and train.en: {dropped}\n" in done.err


def test_what_exists_is_replaced_when_asked_for(
    ask: Ask, text: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert ask(TEXT)[0] == 0
    monkeypatch.setattr("lightconv.commands.prepare.open_corpus", lambda *_: pytest.fail("fetched"))
    exists = "error: data exists. Choose another folder, or use --overwrite\n"
    for arguments in (TEXT, "debian-lm --out data"):
        assert ask(arguments) == (2, "", exists)
    assert ask(f"{TEXT} --overwrite")[0] == 0


def interrupt(*arguments: object, **options: object) -> None:
    raise KeyboardInterrupt


def fill_disk(*arguments: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def vanish(*arguments: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize(
    ("name", "fault", "code", "errors", "done"),
    [
        ("learn", interrupt, 130, [], ""),
        ("StoreWriter", fill_disk, 1, ["{}/.data.prepare: No space left on"], ", vocabulary"),
        ("_make_ids", vanish, 1, ["a worker process died (SIGKILL), expected"], ", vocabulary"),
    ],
)
def test_the_same_command_resumes_after_a_failure(
    ask: Ask,
    text: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    fault: Callable[..., None],
    code: int,
    errors: list[str],
    done: str,
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr("lightconv.data.prepare.WORTH_PROCESSES", 1)
        patched.setattr(f"lightconv.data.prepare.{name}", fault)
        found, _, err = ask(f"{TEXT} --processes 2")
    assert found == code
    expected = ["not finished: the same command resumes from here"]
    expected += [f"error: {error.format(text)}" for error in errors]
    last = err.splitlines()[-len(expected) :]
    assert all(map(str.startswith, last, expected))
    found, _, err = ask(TEXT)
    assert found == 0
    assert err.splitlines()[0] == f"resuming after: text of train, text of valid{done}"


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
    first, second = count_rows(splits())
    # A reason that never occurred has no column.
    assert first == {"split": "train", "read": "12,345", "kept": "4", "empty": "12,341"}
    assert list(second.values()) == ["valid", "4", "4", "0"]
    rows = length_rows(splits())
    names = ", ".join(rows[0])
    assert names == "split, side, tokens, unknown, mean, 50 %, 90 %, 99 %, longest"
    assert " ".join(rows[0].values()) == "train source 8 12.50% 2.0 2 3 3 3"
    assert " ".join(rows[3].values()) == "valid target 12 8.33% 3.0 2 4 4 4"


def test_the_picture() -> None:
    lines = draw_histogram(splits()["train"]).splitlines()
    assert lines[0].split() == ["source", "target"]
    assert lines[1].split() == ["1", "25.0%", "#" * 12, "0.0%"]
    assert lines[2].split() == ["2", "50.0%", "#" * 24, "50.0%", "#" * 24]
    assert lines[-1].split() == ["5", "and", "more", "0.0%", "0.0%"]
    assert len(lines) == 6
    assert len({line.rindex("%") for line in lines[1:]}) == 1
    empty = {"sides": {"text": describe_side(counted([0, 1]), 0, [0, 1, 2])}}
    found = [line.split()[:2] for line in draw_histogram(empty).splitlines()[1:3]]
    assert found == [["0", "50.0%"], ["1", "50.0%"]]


# --- verify-data: published figures


@pytest.mark.parametrize(
    ("examples", "agree"),
    [((160_239, 7_283, 6_750), True), ((160_239, 7_282, 6_750), False), ((57_105, 7_283), False)],
)
def test_data_beside_its_published_figures(
    run: Run, ask: Ask, text: Path, monkeypatch: pytest.MonkeyPatch, examples: Any, agree: bool
) -> None:
    counts = dict(zip(("train", "valid", "test"), examples, strict=False))
    made = make("synthetic-copy", Settings(train=20, valid=5, test=5))
    corpus = replace(made, task=replace(made.task, corpus="iwslt14-de-en"))
    monkeypatch.setattr("lightconv.commands.prepare.open_corpus", lambda *_: corpus)
    report = ask("iwslt14-de-en --out data --from x").out
    assert "not the paper's data: train 20, 160,239 published; valid 5, 7,283 published" in report
    code, out, _ = run("verify-data", "data")
    assert code == 3
    assert ["test", "6,750", "5", "NO"] in [line.split() for line in out.splitlines()]
    monkeypatch.setattr(Prepared, "counts", lambda _: counts)
    code, out, _ = run("verify-data", "data")
    assert code == (0 if agree else 3)
    assert ("as published (source: fairseq" in out) == agree
    assert ("not the paper's data" in out) != agree


def test_data_without_published_figures(run: Run, ask: Ask, text: Path) -> None:
    assert "published" not in ask("synthetic-copy --out data --processes 1").out
    code, out, _ = run("verify-data", "data")
    assert code == 3
    assert out.startswith("not the paper's data: corpus synthetic-copy, expected one of iwslt14")
    code, out, err = run("verify-data", ".")
    assert (code, out) == (2, "") and "prepared.json" in err
    counts = Prepared.open("data").counts()
    store = Prepared.open("data").store("train")
    assert counts["train"] == len(store) == 20_000
    assert counts["tokens"] == sum(len(target) for _, target in store)


def test_every_set_up_of_the_paper_has_figures() -> None:
    assert set(PUBLISHED) == {name for name, entry in CORPORA.items() if entry.takes_source}
    assert all(source and figures for source, figures in PUBLISHED.values())


# --- docs/data.md

PAGE = (Path(__file__).parents[2] / "docs" / "data.md").read_text()


def test_the_page_names_every_corpus() -> None:
    assert not [name for name in CORPORA if f"`{name}`" not in PAGE]


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
