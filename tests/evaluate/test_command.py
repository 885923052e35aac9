"""`lightconv evaluate` on files."""

import gzip
import json
import re
from pathlib import Path

import pytest

from lightconv import cli
from lightconv.evaluate import METRICS


class Files:
    """Three lines of output, references and a worse output, in a folder."""

    hypotheses = ("The cat sat on the mat.", "Hello, world!", "It is a dog of that house.")
    references = ("The cat sat on a mat.", "Hello, world!", "It is the dog of that house.")
    baseline = ("A cat sits on a mat.", "Hello world", "It is that dog of the house.")

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.out = self.write("out", *self.hypotheses)
        self.ref = self.write("ref", *self.references)
        self.base = self.write("base", *self.baseline)

    def write(self, name: str, *lines: str) -> str:
        path = self.folder / name
        path.write_bytes("".join(f"{line}\n" for line in lines).encode())
        return str(path)


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


def evaluate(*arguments: str) -> int:
    return cli.main(["evaluate", *arguments])


def test_default(files: Files, capsys: pytest.CaptureFixture[str]) -> None:
    assert evaluate("--hypotheses", files.out, "--references", files.ref) == 0
    out, err = capsys.readouterr()
    metrics = (METRICS["sacrebleu"], METRICS["chrf"])
    scores = [metric.score(files.hypotheses, files.references) for metric in metrics]
    assert out.splitlines() == [str(score) for score in scores]
    assert err == ""


def test_chosen_metrics_and_several_references(
    files: Files, capsys: pytest.CaptureFixture[str]
) -> None:
    chosen = ["--metric", "tokenized_bleu", "--metric", "sacrebleu", "--target-lang", "zh"]
    given = ["--hypotheses", files.out, "--references", files.ref, "--references", files.base]
    assert evaluate(*given, *chosen, "--format", "jsonl") == 0
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    texts = (files.hypotheses, files.references, files.baseline)
    for entry, name in zip(found, ("tokenized_bleu", "sacrebleu_zh"), strict=True):
        expected = METRICS[name].score(*texts)
        assert entry == expected.plain()


def test_against(files: Files, capsys: pytest.CaptureFixture[str]) -> None:
    given = ["--hypotheses", files.out, "--references", files.ref, "--against", files.base]
    assert evaluate(*given, "--samples", "50", "--seed", "3") == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("sacrebleu|nrefs:1|")
    assert "|test:paired|bs:50|seed:3|level:95|" in line
    metric, systems = METRICS["sacrebleu"], (files.hypotheses, files.baseline)
    bleu = [metric.score(each, files.references).value for each in systems]
    assert f" = {bleu[0]:.2f} [" in line and f" against {bleu[1]:.2f} [" in line
    assert f"difference {bleu[0] - bleu[1]:.2f} [" in line
    assert evaluate(*given, "--metric", "rouge", "--format", "jsonl") == 0
    assert json.loads(capsys.readouterr().out)["difference"]["value"] > 0


def test_packed_files_and_odd_line_ends(files: Files, capsys: pytest.CaptureFixture[str]) -> None:
    packed = files.folder / "out.gz"
    packed.write_bytes(gzip.compress("\r\n".join((*files.hypotheses, "")).encode()))
    assert evaluate("--hypotheses", str(packed), "--references", files.ref, "--metric", "chrf") == 0
    out, err = capsys.readouterr()
    assert out == f"{METRICS['chrf'].score(files.hypotheses, files.references)}\n"
    assert err == "warning: dropped the carriage return (CR) of 3 lines\n"


def test_line_separators_of_unicode_end_no_line(
    files: Files, capsys: pytest.CaptureFixture[str]
) -> None:
    odd = files.write("odd", "a\u2028b c d\x85e", "", "f\x0cg")
    same = files.write("same", "a\u2028b c d\x85e", "", "f\x0cg")
    assert evaluate("--hypotheses", odd, "--references", same, "--metric", "tokenized_bleu") == 0
    assert "|lines:3|" in capsys.readouterr().out


@pytest.mark.parametrize(
    "metric, ending, warned",
    [
        ("sacrebleu", " .", "the hypotheses seem to be tokenised, sacrebleu expects plain text"),
        ("chrf", " .", "the hypotheses seem to be tokenised, chrf expects plain text"),
        ("sacrebleu", ".", None),
        ("tokenized_bleu", " .", None),
        (
            "tokenized_bleu",
            ".",
            "the hypotheses seem not to be tokenised, tokenized_bleu expects that they are",
        ),
        ("tokenized_bleu", "", None),
    ],
)
def test_text_of_the_other_kind(
    metric: str, ending: str, warned: str | None, files: Files, capsys: pytest.CaptureFixture[str]
) -> None:
    out = files.write("kind", f"a b{ending}", f"c d{ending}", "e f")
    assert evaluate("--hypotheses", out, "--references", files.ref, "--metric", metric) == 0
    assert capsys.readouterr().err == (f"warning: {warned}\n" if warned else "")


BAD = {
    "no files": ([], "nothing to evaluate, expected MODEL --data DIR, or --hypotheses"),
    "no references": (["--hypotheses", "out"], "nothing to evaluate"),
    "unknown metric": (["--metric", "bleau"], "unknown metric 'bleau'; known: tokenized_bleu"),
    "perplexity": (["--metric", "perplexity"], "perplexity is of a model, not of texts"),
    "chrf against": (["--metric", "chrf", "--against", "base"], "chrf cannot be compared"),
    "no samples": (["--against", "base", "--samples", "0"], "--samples 0, expected at least 1"),
    "seed": (["--against", "base", "--seed", "-1"], "--seed -1, expected 0 to 4294967295"),
    "shorter": (["--references", "short"], "out has 3 lines and short has 2, expected as many"),
    "against shorter": (["--against", "short"], "out has 3 lines and short has 2"),
    "missing": (["--references", "none"], "none does not exist, expected a text file"),
    "folder": (["--references", "."], ". is a folder, expected a text file"),
    "empty": (["--references", "empty"], "empty is empty, expected lines of text"),
    "latin": (["--references", "latin"], "latin, line 1: byte 0xe9 is not UTF-8"),
    "format": (["--format", "xml"], "argument --format: invalid choice: 'xml'"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input(
    case: str, files: Files, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(files.folder)
    files.write("short", *files.references[:2])
    Path("empty").write_bytes(b"")
    Path("latin").write_bytes(b"caf\xe9\n\n\n")
    arguments, message = BAD[case]
    if arguments and arguments[0] != "--hypotheses":
        more = [] if arguments[0] == "--references" else ["--references", "ref"]
        arguments = ["--hypotheses", "out", *more, *arguments]
    assert evaluate(*arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"error: {message}")
    assert err.count("\n") == 1


PAGE = (Path(__file__).parents[2] / "docs" / "evaluation.md").read_text()


def test_the_page_runs(capsys: pytest.CaptureFixture[str]) -> None:
    (block,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    exec(block, {})
    score, comparison = capsys.readouterr().out.splitlines()
    (shown,) = re.findall(r"^    (tokenized_bleu\|.*), \.\.\.\)$", PAGE, re.MULTILINE)
    assert score.startswith(shown)
    assert "|test:paired|bs:1000|seed:12345|level:95|" in comparison


@pytest.mark.parametrize(
    "command", re.findall(r"^    lightconv (evaluate --.*)$", PAGE, re.MULTILINE)
)
def test_commands_of_the_page(command: str, files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(files.folder)
    for name in ("out.txt", "out.tok"):
        files.write(name, *files.hypotheses)
    for name in ("ref.txt", "ref.tok"):
        files.write(name, *files.references)
    files.write("baseline.txt", *files.baseline)
    assert cli.main(command.split()) == 0


def test_the_page_names_every_metric() -> None:
    assert all(f"`{name}`" in PAGE for name in (*METRICS, "perplexity"))
