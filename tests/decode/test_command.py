"""The commands as people call them: lines in, lines out, exit codes, one-line errors."""

import gzip
import io
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

import lightconv
from lightconv import cli
from tests.trained import Trained


class Done(NamedTuple):
    code: int
    out: str
    err: str

    def refused(self, *words: str) -> bool:
        """One line on stderr with these words, nothing on stdout."""
        assert self.code == 2 and self.out == "", self
        assert self.err.startswith("error: ") and self.err.count("\n") == 1, self.err
        return all(word in self.err for word in words)


Run = Callable[..., Done]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    def call(*arguments: object, stdin: bytes | str = b"") -> Done:
        data = stdin.encode() if isinstance(stdin, str) else stdin
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))
        code = cli.main([str(argument) for argument in arguments])
        return Done(code, *capsys.readouterr())

    return call


def test_lines_in_lines_out(run: Run, copies: Trained) -> None:
    done = run("translate", copies.model, stdin="w1 w2\n\n  \nw3 w4 w5\n")
    assert done == (0, "w1 w2\n\n\nw3 w4 w5\n", "")
    assert run("translate", copies.run, stdin="w1 w2") == (0, "w1 w2\n", ""), "a run, no newline"
    assert run("translate", copies.model, stdin="") == (0, "", "")


def test_windows_and_batches_change_nothing(run: Run, copies: Trained) -> None:
    lines = (copies.data / "test.source.txt").read_text()
    expected = run("translate", copies.model, stdin=lines)
    assert expected.out.count("\n") == 30
    options = ("--window", "4", "--max-tokens", "9")
    assert run("translate", copies.model, *options, stdin=lines) == expected


def test_files(run: Run, copies: Trained, tmp_path: Path) -> None:
    packed = tmp_path / "in.gz"
    packed.write_bytes(gzip.compress(b"\xef\xbb\xbfw1 w2\r\nw3 w4\r\n"))
    done = run("translate", copies.model, "--input", packed)
    assert done.out == "w1 w2\nw3 w4\n"
    assert done.err.startswith("warning: dropped the byte order mark of 1 file and the carriage")
    assert run("translate", copies.model, "--input", tmp_path / "no").refused("no does not exist")
    assert run("translate", copies.model, "--input", tmp_path).refused("is a folder")
    (tmp_path / "empty").touch()
    assert run("translate", copies.model, "--input", tmp_path / "empty").refused("empty is empty")


def test_json_has_everything(run: Run, copies: Trained) -> None:
    arguments = ("translate", copies.model, "--format", "jsonl", "--n-best", "2")
    done = run(*arguments, stdin="w1 w2\n\n")
    first, second = map(json.loads, done.out.splitlines())
    assert first["line"] == 1 and first["source"] == first["text"] == "w1 w2"
    assert first["tokens"] == ["w1", "w2", "</s>"]
    assert first["logprob"] == pytest.approx(sum(first["logprobs"]))
    assert first["score"] == pytest.approx(first["logprob"] / 3**0.7)
    assert first["seconds"] > 0.0 and first["batch"] == 1
    assert first["outputs"][0]["text"] == "w1 w2"
    assert len(first["outputs"]) == 2
    assert second["text"] == "" and second["parts"] == 0 and "score" not in second
    text = run("translate", copies.model, "--n-best", "2", stdin="w1 w2\n")
    rows = [line.split("\t") for line in text.out.splitlines()]
    assert [row[0] for row in rows] == ["1", "1"]
    assert [row[2] for row in rows] == [each["text"] for each in first["outputs"]]
    assert float(rows[1][1]) == pytest.approx(first["outputs"][1]["score"], abs=1e-4)


def test_odd_text_comes_through(run: Run, copies: Trained) -> None:
    odd = "漢字 😀\u2028w1\x0bw2\n\u00a0\n\x85\n"
    done = run("translate", copies.model, stdin=odd)
    assert done.code == 0 and done.out.count("\n") == 3
    assert done.out.splitlines()[0] != ""


@pytest.mark.parametrize(
    "data, words",
    [
        (b"w1\nw\xe4\n", "standard input, line 2: byte 0xe4 is not UTF-8 (byte 2 of the line)"),
        (b"w1\n\0\n", "standard input, line 2: a NUL character (byte 1 of the line)"),
    ],
)
def test_what_is_no_text(run: Run, copies: Trained, data: bytes, words: str) -> None:
    done = run("translate", copies.model, stdin=data)
    assert done.code == 2 and words in done.err
    assert done.out == "w1\n", "what came before has its answer"
    utf16 = run("translate", copies.model, stdin="w1\n".encode("utf-16"))
    assert utf16.refused("standard input is UTF-16", "iconv")


def test_long_lines(run: Run, copies: Trained) -> None:
    long = "w1\nw1 w2 w3 w4 w5 w6\n"
    done = run("translate", copies.model, "--max-source", "3", stdin=long)
    assert done.out == long
    assert done.err == "warning: line 2: 6 tokens, expected at most 3; answered in 2 parts\n"
    strict = run("translate", copies.model, "--max-source", "3", "--strict", stdin=long)
    assert strict.refused("line 2: 6 tokens, expected at most 3")
    start = run("summarize", copies.model, "--max-source", "3", stdin=long)
    assert start.out == "w1\nw1 w2 w3\n" and "only the first 3 are read" in start.err


@pytest.mark.parametrize(
    "arguments, words",
    [
        (["--beam", "0"], "--beam 0, expected at least 1"),
        (["--n-best", "4"], "n_best=4 must not be above beam=3"),
        (["--n-best", "0"], "n_best=0 must be at least 1"),
        (["--set", "max_len_ratio=0", "--set", "min_len=9"], "min_len=9 must not be above"),
        (["--set", "alfa=1"], "Did you mean 'alpha'"),
        (["--max-source", "0"], "max_source=0 must be at least 1"),
        (["--top-k", "3"], "--top-k is for random outputs, expected --sample"),
        (["--sample", "--top-p", "0"], "top_p=0.0 must be in (0, 1]"),
        (["--beams", "3"], "did you mean '--beam'?"),
    ],
)
def test_wrong_options(run: Run, copies: Trained, arguments: list[str], words: str) -> None:
    assert run("translate", copies.model, *arguments, stdin="w1\n").refused(words)


def test_mistakes_need_no_torch(copies: Trained) -> None:
    code = (
        "import sys; from lightconv.cli import main; code = main(sys.argv[1:]);"
        "sys.exit(99 if 'torch' in sys.modules else code)"
    )
    command = [sys.executable, "-c", code, "translate", str(copies.model), "--n-best", "9"]
    done = subprocess.run(command, capture_output=True, check=False, stdin=subprocess.DEVNULL)
    assert done.returncode == 2, done.stderr


def test_wrong_models(run: Run, copies: Trained, texts: Trained, tmp_path: Path) -> None:
    assert run("translate", tmp_path / "no").refused("no does not exist", "RUN/model")
    assert run("translate", tmp_path).refused("has no config.json")
    assert run("translate", texts.model).refused("is a language model", "lightconv generate")
    assert run("generate", copies.model).refused("lightconv translate or summarize")
    (tmp_path / "config.json").write_text('{"model": {"kind": "tree"}}')
    assert run("translate", tmp_path).refused("no model of lightconv")
    (tmp_path / "config.json").write_text('{"model": {"kind": "seq2seq"}, "decode": {"beam": 0}}')
    assert run("translate", tmp_path).refused("config.json: decode.beam=0")


def test_prompts_go_on(run: Run, texts: Trained) -> None:
    model = lightconv.load(texts.model)
    done = run("generate", texts.model, "--prompt", "the", "--prompt", "")
    assert done.out.splitlines() == model.generate(["the", ""])
    assert run("generate", texts.model, stdin="the\n\n").out.splitlines() == [
        *model.generate(["the"]),
        "",
    ]
    drawn = ("generate", texts.model, "--prompt", "the", "--sample", "--n-best", "3")
    first = run(*drawn, "--seed", "5", "--top-k", "9", "--temperature", "0.8")
    assert [line.split("\t")[2][:3] for line in first.out.splitlines()] == ["the"] * 3
    assert first == run(*drawn, "--seed", "5", "--top-k", "9", "--temperature", "0.8")


def test_interactive(run: Run, copies: Trained, texts: Trained) -> None:
    done = run("interactive", copies.model, stdin="w1 w2\n\nw3\n")
    shown = [line.removeprefix("> ") for line in done.out.splitlines()]
    assert done.code == 0 and shown[0] == "w1 w2" and "w3" in shown[2]
    assert shown[1].startswith("  (") and "tokens, score -0.0" in shown[1]
    assert run("interactive", texts.model, "--beam", "1", stdin="the\n").out.startswith("> the ")


def test_a_bar_for_who_watches(run: Run, copies: Trained, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    done = run("translate", copies.model, stdin="w1\nw2\n")
    assert done.out == "w1\nw2\n" and "lines: 2 in" in done.err
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert run("translate", copies.model, stdin="w1\n") == (0, "w1\n", ""), "it sees the lines"


# --- score


def test_scores_of_texts(run: Run, texts: Trained) -> None:
    lines = (texts.data / "test.text.txt").read_text()
    expected = lightconv.load(texts.model).score(lines.splitlines())
    done = run("score", texts.model, stdin=lines)
    assert done.out.splitlines() == [f"{scored.logprob:.6f}" for scored in expected]
    assert done.err.startswith("perplexity|unit:word|base:e|eos:counted|lines:30|")
    total = run("score", texts.model, "--total", "--input", texts.data / "test.text.txt")
    assert total == (0, done.err, "")
    found = json.loads(
        run("score", texts.model, "--format", "jsonl", stdin="the\n").out.splitlines()[0]
    )
    assert found["tokens"] == ["the", "</s>"] and len(found["logprobs"]) == 2
    assert run("score", texts.model, stdin="") == (0, "", "")


def test_scores_of_pairs(run: Run, copies: Trained, tmp_path: Path) -> None:
    (tmp_path / "in").write_text("w1 w2\nw3\n")
    (tmp_path / "out").write_text("w1 w2\nw4\n")
    two = run("score", copies.model, "--source", tmp_path / "in", "--target", tmp_path / "out")
    one = run("score", copies.model, stdin="w1 w2\tw1 w2\nw3\tw4\n")
    assert two == one and two.code == 0
    good, bad = map(float, two.out.split())
    assert bad < good < 0.0


def test_wrong_pairs(run: Run, copies: Trained, texts: Trained, tmp_path: Path) -> None:
    (tmp_path / "in").write_text("w1\nw2\n")
    (tmp_path / "out").write_text("w1\n")
    both = ("--source", tmp_path / "in", "--target", tmp_path / "out")
    assert run("score", copies.model, *both).refused("2 lines", "has 1, expected as many")
    assert run("score", copies.model, *both[:2]).refused("belong together")
    assert run("score", texts.model, *both).refused("is a language model")
    alone = run("score", copies.model, stdin="w1\tw1\nw1\n")
    assert alone.code == 2 and "standard input, line 2: 0 tabs, expected one" in alone.err
    assert run("score", texts.model, "--input", tmp_path / "no").refused("does not exist")


# --- Real pipes

ENVIRONMENT = {**os.environ, "PYTHONPATH": "src", "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": ""}
ROOT = Path(__file__).parent.parent.parent


def test_a_person_gets_an_answer_for_each_line(copies: Trained) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "lightconv", "translate", str(copies.model)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=ROOT,
        env=ENVIRONMENT,
    )
    assert process.stdin is not None and process.stdout is not None
    for line in (b"w1 w2\n", b"w3\n", b"\n", b"w4 w5\n"):
        process.stdin.write(line)
        process.stdin.flush()
        assert process.stdout.readline() == line  # or it would wait here for ever
    assert process.communicate() == (b"", b"")
    assert process.returncode == 0


def test_a_closed_pipe_is_quiet(copies: Trained) -> None:
    command = (
        f"yes w1 | head -5000 | {sys.executable} -m lightconv translate "
        f"{copies.model} --beam 1 --window 50 | head -2; exit ${{PIPESTATUS[2]}}"
    )
    done = subprocess.run(
        ["bash", "-c", command],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        env=ENVIRONMENT,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "w1\nw1\n", "")
