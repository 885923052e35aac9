"""`lightconv translate`, `score` and their like: lines in, lines out, one-line errors."""

import gzip
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import lightconv
from lightconv.commands.translate import _format
from lightconv.data.vocabulary import Vocabulary
from lightconv.decode.answer import Answer, Output
from lightconv.decode.options import TextOptions
from tests.decode.fakes import BANDS, words_model
from tests.trained import Trained

from .conftest import Run

ROOT = Path(__file__).parents[2]


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


def test_alignments(run: Run, copies: Trained) -> None:
    lines = "w1 w2 w3\n\nw4 w5\n"
    plain = run("translate", copies.model, stdin=lines).out.splitlines()
    done = run("translate", copies.model, "--alignments", stdin=lines)
    rows = [line.split("\t") for line in done.out.splitlines()]
    assert [row[0] for row in rows] == plain and rows[1] == ["", ""]
    found = [[tuple(map(int, pair.split("-"))) for pair in row[1].split()] for row in rows]
    assert [t for _, t in found[0]] == [0, 1, 2] and {s for s, _ in found[0]} <= {0, 1, 2}
    jsonl = run("translate", copies.model, "--alignments", "--format", "jsonl", stdin=lines)
    first = json.loads(jsonl.out.split("\n")[0])
    assert [tuple(pair) for pair in first["alignment"]] == found[0]
    assert first["source_tokens"] == ["w1", "w2", "w3"]
    ranked = run("translate", copies.model, "--alignments", "--n-best", "2", stdin="w1\n\n")
    assert [line.count("\t") for line in ranked.out.splitlines()] == [3, 3, 3]


def test_prefixes(run: Run, copies: Trained) -> None:
    done = run("translate", copies.model, "--prefix", stdin="w1 w2\tw7\nw1 w2\n\tw3\nw1 w2\t\n")
    begun, *others = done.out.split("\n")
    assert done.code == 0 and begun.startswith("w7 ") and others == ["w1 w2", "", "w1 w2", ""]
    wrong = run("translate", copies.model, "--prefix", stdin="w1\nw1\tw2\tw3\n")
    assert wrong.code == 2 and "line 2: 2 tabs" in wrong.err
    long = run("translate", copies.model, "--prefix", stdin="w1\t" + "w2 " * 7)
    assert long.refused("line 1: a prefix of 7 tokens, expected fewer than the 7")
    full = run("translate", copies.model, "--prefix", stdin="w1\t" + "w2 " * 6)
    assert full.out == " ".join(["w2"] * 6) + "\n"


def test_odd_text_comes_through(run: Run, copies: Trained) -> None:
    odd = "漢字 😀\u2028w1\x0bw2\n\u00a0\n\x85\n"
    done = run("translate", copies.model, stdin=odd)
    assert done.code == 0 and done.out.count("\n") == 3
    assert done.out.splitlines()[0] != ""


def test_long_lines(run: Run, copies: Trained) -> None:
    long = "w1\nw1 w2 w3 w4 w5 w6\n"
    done = run("translate", copies.model, "--max-source", "3", stdin=long)
    assert done.out == long
    assert done.err == "warning: line 2: 6 tokens, expected at most 3; answered in 2 parts\n"
    strict = run("translate", copies.model, "--max-source", "3", "--strict", stdin=long)
    assert strict.refused("line 2: 6 tokens, expected at most 3")
    start = run("summarize", copies.model, "--max-source", "3", stdin=long)
    assert start.out == "w1\nw1 w2 w3\n" and "only the first 3 are read" in start.err


def test_marks_between_sentences(run: Run) -> None:
    command = ("summarize", ROOT / "tests" / "golden" / "models" / "summary", "--prefix")
    line = "The dog sees.\tA dog. ¶ A cat.\n"
    kept, joined = (run(*command, *more, stdin=line).out for more in (["--sentences"], []))
    assert kept.startswith("A dog. ¶ A cat.") and joined == kept.replace("¶ ", "")


def test_mistakes_need_no_torch(copies: Trained) -> None:
    code = (
        "import sys; from lightconv.cli import main; code = main(sys.argv[1:]);"
        "sys.exit(99 if 'torch' in sys.modules else code)"
    )
    command = [sys.executable, "-c", code, "translate", str(copies.model), "--n-best", "9"]
    done = subprocess.run(command, capture_output=True, check=False, stdin=subprocess.DEVNULL)
    assert done.returncode == 2, done.stderr


def test_prompts_go_on(run: Run, texts: Trained) -> None:
    model = lightconv.load(texts.model)
    done = run("generate", texts.model, "--prompt", "the", "--prompt", "")
    assert done.out.splitlines() == model.generate(["the", ""])
    lines = run("generate", texts.model, stdin="the\n\n").out.splitlines()
    assert lines == [*model.generate(["the"]), ""]
    drawn = f"generate {texts.model} --prompt the --sample --n-best 3 --seed 5 --top-k 9".split()
    first = run(*drawn, "--temperature", "0.8")
    assert [line.split("\t")[2][:3] for line in first.out.splitlines()] == ["the"] * 3
    assert first == run(*drawn, "--temperature", "0.8")


def test_interactive(run: Run, copies: Trained, texts: Trained) -> None:
    done = run("interactive", copies.model, stdin="w1 w2\n\nw3\n")
    shown = [line.removeprefix("> ") for line in done.out.splitlines()]
    assert done.code == 0 and shown[0] == "w1 w2" and "w3" in shown[2]
    assert shown[1].startswith("  (") and "tokens, score -0.0" in shown[1]
    assert run("interactive", texts.model, "--beam", "1", stdin="the\n").out.startswith("> the ")


def test_files(run: Run, copies: Trained, tmp_path: Path) -> None:
    packed = tmp_path / "in.gz"
    packed.write_bytes(gzip.compress(b"\xef\xbb\xbfw1 w2\r\nw3 w4\r\n"))
    done = run("translate", copies.model, "--input", packed)
    assert done.out == "w1 w2\nw3 w4\n"
    assert done.err.startswith("warning: dropped the byte order mark of 1 file and the carriage")


def test_ensembles(run: Run, copies: Trained) -> None:
    lines = "w1 w2\n\nw3 w4 w5\n"
    alone = run("translate", copies.model, "--format", "jsonl", stdin=lines)
    same = run(
        "translate", copies.model, "--ensemble", copies.run, "--format", "jsonl", stdin=lines
    )
    answers = (map(json.loads, done.out.splitlines()) for done in (alone, same))
    for one, other in zip(*answers, strict=True):
        assert one["text"] == other["text"]
        assert one.get("score", 0.0) == pytest.approx(other.get("score", 0.0), abs=1e-5)


def test_drafts(run: Run, copies: Trained) -> None:
    command = ("translate", copies.model, "--beam", "1")
    lines = "w1 w2\n\nw3 w4 w5\n" * 20
    drafted = run(*command, "--draft", copies.run, stdin=lines)
    assert drafted.code == 0 and drafted.out == run(*command, stdin=lines).out == lines


def test_the_lines_before_a_bad_one_are_answered(run: Run, copies: Trained) -> None:
    done = run("translate", copies.model, stdin=b"w1\nw\xe4\n")
    assert done.code == 2 and done.out == "w1\n"
    assert "standard input, line 2: byte 0xe4 is not UTF-8 (byte 2 of the line)" in done.err


@pytest.fixture(scope="module")
def places(
    copies: Trained, texts: Trained, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Path]:
    """Models, and `tmp`, a folder of things that are none."""
    tmp = tmp_path_factory.mktemp("places")
    (tmp / "folder").mkdir()
    (tmp / "blank").touch()
    (tmp / "model.pt").write_bytes(b"\x80\x04K\x01.")
    shutil.copytree(copies.model, tmp / "beam")
    config = json.loads((tmp / "beam" / "config.json").read_text())
    config["decode"]["beam"] = 0
    (tmp / "beam" / "config.json").write_text(json.dumps(config))
    shutil.copytree(copies.model, tmp / "twin")
    vocabulary = min((tmp / "twin").glob("vocab*"))
    vocabulary.write_text(vocabulary.read_text().replace("w1\n", "w11\n"))
    # Else the manifest, not the ensemble, is the reason.
    (tmp / "twin" / "manifest.json").unlink()
    return {"copies": copies.model, "texts": texts.model, "tmp": tmp}


@pytest.mark.parametrize(
    "command, words",
    [
        ("translate {copies} --beam 0", "argument --beam: '0', expected"),
        ("translate {copies} --n-best 4", "n_best=4 must not be above beam=3"),
        ("translate {copies} --n-best 0", "argument --n-best: '0'"),
        ("translate {copies} --set max_len_ratio=0 --set min_len=9", "min_len=9 must not be above"),
        ("translate {copies} --set alfa=1", "did you mean 'alpha'"),
        ("translate {copies} --max-source 0", "argument --max-source: '0'"),
        ("translate {copies} --set min_len=90", "line 1: at least 90 tokens, and at most 7"),
        ("translate {copies} --set min_len_ratio=9", "line 1: at least 18 tokens, and at most 7"),
        ("translate {copies} --engine torch --quantize int8", "the C++ engine, got engine='torch'"),
        ("translate {copies} --set coverage=1 --quantize int8", "coverage=1 runs in torch only"),
        ("translate {copies} --set coverage=1 --engine native", "coverage=1 runs in torch only"),
        ("translate {copies} --top-k 3", "top_k is for random outputs, expected sample (--sample)"),
        ("translate {copies} --sample --top-p 0", "top_p=0.0 must be in (0, 1]"),
        ("translate {copies} --beams 3", "did you mean '--beam'?"),
        ("translate {copies} --alignment", "did you mean '--alignments'?"),
        ("translate {copies} --input {tmp}/no", "no does not exist"),
        ("translate {copies} --input {tmp}", "is a folder"),
        ("translate {copies} --input {tmp}/blank", "is empty"),
        ("generate {texts} --prompt the --input {tmp}/blank", "--prompt and --input, expected one"),
        ("translate {copies} --ensemble {texts}", "another kind of model"),
        ("translate {copies} --ensemble {tmp}/no", "does not exist"),
        ("translate {copies} --ensemble {tmp}/twin", "ensemble (|vocab|same prepared"),
        ("translate {copies} --draft {copies}", "is for greedy search|got beam=3"),
        ("translate {copies} --beam 1 --draft {tmp}/twin", "draft (|vocab|same prepared"),
        ("translate {tmp}/no", "no does not exist|RUN/model"),
        ("translate {tmp}/folder", "has no config.json"),
        ("translate {texts}", "is a language model|lightconv generate"),
        ("generate {copies}", "`lightconv translate` or `lightconv summarize`"),
        ("translate {tmp}/model.pt", "is a pickle|lightconv import"),
        ("translate {tmp}/beam", "config.json: decode.beam=0"),
    ],
)
def test_wrong_calls(run: Run, places: dict[str, Path], command: str, words: str) -> None:
    done = run(*command.format(**places).split(), stdin="w1\n")
    assert done.refused(*words.split("|")), done.err


def test_the_backend_is_told(run: Run, tmp_path: Path) -> None:
    words_model(BANDS).save(tmp_path / "model", vocabulary=Vocabulary.of("abcde"))
    command = ("generate", tmp_path / "model", "--set", "max_len_plus=3")
    done = run(*command, stdin="a b\n")
    assert done.code == 0 and done.err.startswith("note: decoding in torch, not in the C++ engine")
    native = run(*command, "--engine", "native", stdin="a b\n")
    assert native.refused("engine='native' cannot run this model")


@pytest.mark.parametrize("given", [False, True])
def test_a_bar_for_who_watches(
    run: Run, copies: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: bool
) -> None:
    """With --input at a terminal, standard input is the keyboard, which is not read."""
    (tmp_path / "in").write_text("w1\nw2\n")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    arguments = ("--input", tmp_path / "in") if given else ()
    done = run("translate", copies.model, *arguments, stdin="w1\nw2\n", typed=given)
    assert done.out == "w1\nw2\n" and "lines: 2 in" in done.err
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert run("translate", copies.model, stdin="w1\n") == (0, "w1\n", ""), "it sees the lines"


def test_columns_are_separated_by_tabs_only() -> None:
    answer = Answer(7, "x", [Output("a\tb", -1.0, [4, 2], ["a\tb", "</s>"], [-1.0, 0.0], [(0, 0)])])
    for options, expected in (
        (TextOptions(), "a\tb"),
        (TextOptions(alignments=True), "a b\t0-0"),
        (TextOptions(n_best=2), "7\t-1.0000\ta b"),
    ):
        assert _format(answer, "text", options, str) == [expected]
    two = answer._replace(outputs=answer.outputs * 2)
    found = json.loads(_format(two, "jsonl", TextOptions(), str.upper)[0])
    assert [found["text"], *(each["text"] for each in found["outputs"])] == ["A\tB"] * 3


# --- score


def test_scores_of_texts(run: Run, texts: Trained) -> None:
    lines = (texts.data / "test.text.txt").read_text()
    expected = lightconv.load(texts.model).score(lines.splitlines())
    done = run("score", texts.model, stdin=lines)
    assert done.out.splitlines() == [f"{scored.logprob:.6f}" for scored in expected]
    assert done.err.startswith("perplexity|unit:word|base:e|eos:counted|lines:30|")
    total = run("score", texts.model, "--total", "--input", texts.data / "test.text.txt")
    assert total == (0, done.err, "")
    one = run("score", texts.model, "--format", "jsonl", stdin="the\n")
    found = json.loads(one.out.splitlines()[0])
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
    for model, arguments, words in (
        (copies, both, ("2 lines", "has 1")),
        (copies, both[:2], ("belong together",)),
        (copies, (*both, "--input", tmp_path / "in"), ("--input and --source",)),
        (texts, both, ("is a language model",)),
        (texts, ("--input", tmp_path / "no"), ("does not exist",)),
    ):
        assert run("score", model.model, *arguments).refused(*words)
    alone = run("score", copies.model, stdin="w1\tw1\nw1\n")
    assert alone.code == 2 and "standard input, line 2: 0 tabs" in alone.err


# --- Real pipes

ENVIRONMENT = {**os.environ, "PYTHONPATH": "src", "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": ""}


def test_a_person_gets_an_answer_for_each_line(copies: Trained) -> None:
    pipes: Any = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    command = [sys.executable, "-m", "lightconv", "translate", str(copies.model)]
    process = subprocess.Popen(command, cwd=ROOT, env=ENVIRONMENT, **pipes)
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
    options: Any = {"capture_output": True, "text": True, "cwd": ROOT, "env": ENVIRONMENT}
    done = subprocess.run(["bash", "-c", command], check=False, **options)
    assert (done.returncode, done.stdout, done.stderr) == (0, "w1\nw1\n", "")


# --- Files that one sentence visits

TRACE = """
import io, json, sys
from pathlib import Path
import lightconv
from lightconv import cli

root = str(Path(lightconv.__file__).parent) + "/"
command, sentence, inside = set(), set(), []

def visit(frame, event, _):
    code = frame.f_code
    if not code.co_filename.startswith(root) or not code.co_flags & 1:  # a module or class body
        return
    if event == "call":
        inside.extend([1] if code.co_name == "answer_windows" else [])
        command.add(code.co_filename.removeprefix(root))
        sentence.update([code.co_filename.removeprefix(root)] if inside else [])
    elif event == "return" and code.co_name == "answer_windows":
        inside.pop()

sys.stdin = io.TextIOWrapper(io.BytesIO(b"w1 w2\\n"))
sys.setprofile(visit)
cli.main(["translate", sys.argv[1], "--beam", "2", "--engine", "native"])
sys.setprofile(None)
loaded = [name for name in sys.modules if name.startswith("lightconv.")]
print(json.dumps({"sentence": sorted(sentence), "command": sorted(command), "loaded": loaded}))
"""


def test_a_sentence_visits_few_files(copies: Trained) -> None:
    done = subprocess.run(
        [sys.executable, "-c", TRACE, str(copies.model)], capture_output=True, text=True, check=True
    )
    answer, found = done.stdout.splitlines()
    visited = json.loads(found)
    assert answer == "w1 w2"
    assert len(visited["sentence"]) <= 15, visited["sentence"]
    assert len(visited["command"]) <= 45, visited["command"]
    unwanted = ("lightconv.paper", "lightconv.train", "lightconv.recipe", "lightconv.evaluate")
    assert not [name for name in visited["loaded"] if name.startswith(unwanted)]
