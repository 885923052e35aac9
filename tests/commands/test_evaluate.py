"""`lightconv evaluate` on files, and it and `lightconv tune` on folders of tests/golden."""

import gzip
import hashlib
import json
import re
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import lightconv
from lightconv import train
from lightconv.evaluate import METRICS, Score
from lightconv.files import write_manifest
from lightconv.models.folder import ModelFolder
from lightconv.ops.library import native
from tests.commands.conftest import Done, Run

GOLDEN = Path(__file__).parents[1] / "golden"
PAGE = (Path(__file__).parents[2] / "docs" / "evaluation.md").read_text()
PAIRS = ("end/pairs", "--data", "data/pairs")
TEXT = ("end/text", "--data", "data/text")
MODEL = ("end/pairs/model", *PAIRS[1:])
NATIVE = pytest.mark.skipif(native().library is None, reason="no C++ kernels")

OUT = ("The cat sat on the mat.", "Hello, world!", "It is a dog of that house.")
REF = ("The cat sat on a mat.", "Hello, world!", "It is the dog of that house.")
BASE = ("A cat sits on a mat.", "Hello world", "It is that dog of the house.")
FILES = ("--hypotheses", "out", "--references", "ref")

Evaluate = Callable[..., Done]


@pytest.fixture
def evaluate(run: Run) -> Evaluate:
    def call(*arguments: object) -> Done:
        done = run("evaluate", *arguments)
        assert done.code == 0, done.err
        return done

    return call


def write(name: str, *lines: str) -> None:
    Path(name).write_bytes("".join(f"{line}\n" for line in lines).encode())


@pytest.fixture(autouse=True)
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Outputs, references, worse outputs and the golden folders in the working directory."""
    monkeypatch.chdir(tmp_path)
    for name, lines in (("out", OUT), ("ref", REF), ("base", BASE)):
        write(name, *lines)
    shutil.copytree(GOLDEN / "end", "end")  # may be changed
    for name in ("middle", "models", "data"):
        Path(name).symlink_to(GOLDEN / name)


def read_json(done: Done) -> list[Any]:
    return [json.loads(line) for line in done.out.splitlines()]


def translate(**options: Any) -> list[str]:
    sources = Path("data/pairs/test.source.txt").read_text().splitlines()
    return lightconv.load("end/pairs").translate(sources, **options)


# --- files


def score(name: str, *references: Sequence[str]) -> Score:
    """R15: the score of OUT, signed with a digest of the references."""
    found = METRICS[name].score(OUT, *references)
    text = "".join("\n".join([*each, "", ""]) for each in references)
    mark = hashlib.sha256(text.encode()).hexdigest()[:8]
    return replace(found, signature=found.signature.extend({"texts": mark}))


def test_default(evaluate: Evaluate) -> None:
    done = evaluate(*FILES)
    scores = [score(name, REF) for name in ("sacrebleu", "chrf")]
    assert done.out.splitlines() == [str(score) for score in scores]
    assert done.err == ""


def test_chosen_metrics_and_several_references(evaluate: Evaluate) -> None:
    chosen = ["--metric", "tokenized_bleu", "--metric", "sacrebleu", "--target-lang", "zh"]
    done = evaluate(*FILES, "--references", "base", *chosen, "--format", "jsonl")
    names = ("tokenized_bleu", "sacrebleu_zh")
    assert read_json(done) == [score(name, REF, BASE).plain() for name in names]


def test_against_a_file(evaluate: Evaluate) -> None:
    given = (*FILES, "--against", "base")
    (line,) = evaluate(*given, "--samples", "50", "--seed", "3").out.splitlines()
    assert line.startswith("sacrebleu|nrefs:1|")
    assert "|test:paired|bs:50|seed:3|level:95|" in line
    bleu = [METRICS["sacrebleu"].score(each, REF).value for each in (OUT, BASE)]
    assert f" = {bleu[0]:.2f} [" in line and f" against {bleu[1]:.2f} [" in line
    assert f"difference {bleu[0] - bleu[1]:.2f} [" in line
    (found,) = read_json(evaluate(*given, "--metric", "rouge", "--format", "jsonl"))
    assert found["difference"]["value"] > 0
    write("kind", "a b .", "c d .", "e f .")
    warned = evaluate("--hypotheses", "kind", *given[2:]).err
    assert warned.count("seem to be tokenised") == 1, "chrf is not compared"


def test_packed_files_and_odd_lines(evaluate: Evaluate) -> None:
    Path("out.gz").write_bytes(gzip.compress("\r\n".join((*OUT, "")).encode()))
    done = evaluate("--hypotheses", "out.gz", *FILES[2:], "--metric", "chrf")
    assert done.out == f"{score('chrf', REF)}\n"
    assert done.err == "warning: dropped the carriage return (CR) of 3 lines\n"
    write("odd", "a\u2028b c d\x85e", "", "f\x0cg")  # separators of Unicode end no line
    odd = ("--hypotheses", "odd", "--references", "odd", "--metric", "tokenized_bleu")
    assert "|lines:3|" in evaluate(*odd).out


@pytest.mark.parametrize(
    "metric, ending, warned",
    [
        ("sacrebleu", " .", "seem to be tokenised, sacrebleu expects plain text"),
        ("chrf", " .", "seem to be tokenised, chrf expects plain text"),
        ("sacrebleu", ".", None),
        ("tokenized_bleu", " .", None),
        ("tokenized_bleu", ".", "seem not to be tokenised, tokenized_bleu expects that they are"),
        ("tokenized_bleu", "", None),
    ],
)
def test_text_of_the_other_kind(
    metric: str, ending: str, warned: str | None, evaluate: Evaluate
) -> None:
    write("kind", f"a b{ending}", f"c d{ending}", "e f")
    done = evaluate("--hypotheses", "kind", *FILES[2:], "--metric", metric)
    assert done.err == (f"warning: the hypotheses {warned}\n" if warned else "")


# --- a model

# tests/commands/tables has no versions of libraries and no times.
VERSIONS = r"\|(version|lightconv|rouge-score|nltk):[\w.]+"
TABLES: dict[str, tuple[str, ...]] = {
    "pairs": (*PAIRS, "--against", "end/ranks", "--samples", "20", "--engine", "torch"),
    "text": TEXT,
    "summary": ("models/summary", "--data", "data/summaries", "--engine", "torch"),
}


@pytest.mark.parametrize("name", TABLES)
def test_tables_with_baselines(name: str, evaluate: Evaluate) -> None:
    out = re.sub(VERSIONS, "", evaluate(*TABLES[name], "--floor").out)
    rate = r"^time    [\d.]+ s, [\d,.]+ sentences/s, [\d,]+ tokens/s\n"
    expected = Path(__file__).with_name("tables") / f"evaluate-{name}.txt"
    assert re.sub(rate, "", out, flags=re.MULTILINE) == expected.read_text()


def test_json_and_another_system(evaluate: Evaluate) -> None:
    write("other", *(f"{line} domu" for line in translate()))
    common = (*PAIRS, "--format", "jsonl", "--samples", "50")
    found = read_json(evaluate(*common, "--against", "other", "--out", "out", "--overwrite"))
    assert [each.get("system") for each in found] == ["model"] * 2 + ["against"] * 2 + [None]
    comparison = found[-1]
    assert comparison["first"]["value"] == found[0]["value"] > comparison["second"]["value"]
    assert comparison["second"]["value"] == found[2]["value"]
    assert "|system:file|" in found[2]["signature"]
    assert comparison["p_value"] < 0.1 and "|test:paired|bs:50|" in comparison["signature"]
    assert found[0]["about"]["model"] == "end/pairs/model"
    assert Path("out").read_text().splitlines() == translate()
    few = read_json(evaluate(*common, "--against", "other", "--limit", "3"))
    assert all("|lines:3|" in each["signature"] for each in few)
    # Against a model: itself.
    itself = evaluate(*common, "--against", PAIRS[0], "--metric", "tokenized_bleu")
    assert read_json(itself)[-1]["difference"]["value"] == 0.0


@NATIVE
def test_the_backend_is_named(evaluate: Evaluate) -> None:
    for options, engine in (
        ((), "native"),
        (("--engine", "torch"), "torch"),
        (("--set", "coverage=0.1"), "torch (coverage needs to know the attention)"),
        (("--quantize", "int8"), "native, int8"),
    ):
        out = evaluate(*PAIRS, "--limit", "3", *options).out
        assert f"engine  {engine}\n" in out and "\nlines   3\n" in out
        assert ("|quantize:int8|" in out) == ("int8" in options)


@NATIVE
def test_eight_bits_beside_float(evaluate: Evaluate) -> None:
    common = (*PAIRS, "--quantize", "int8", "--compare")
    out = evaluate(*common, "--samples", "50").out
    exact, short = translate(), translate(quantize="int8")
    same = sum(a == b for a, b in zip(short, exact, strict=True))
    assert f"same outputs   {same} of 16\n" in out
    assert "engine         native, int8\n" in out
    assert re.search(r"\ntime, float32  [\d.]+ s, .*\nspeed          [\d.]+x of float32\n", out)
    (line,) = (line.split() for line in out.splitlines() if line.startswith("sacrebleu "))
    references = Path("data/pairs/test.target.txt").read_text().splitlines()
    scores = (METRICS["sacrebleu"].score(each, references).value for each in (short, exact))
    assert line[1:] == [f"{score:.2f}" for score in scores]
    assert "|test:paired|bs:50|" in out and " against " in out
    *found, _ = read_json(evaluate(*common, "--samples", "5", "--format", "jsonl"))
    signatures = {each["system"]: each["signature"] for each in found}
    assert "|quantize:int8|" in signatures["model"] and "quantize" not in signatures["float32"]


def test_an_ensemble(evaluate: Evaluate) -> None:
    """Copies of a model say what it says alone."""
    common = (*PAIRS, "--format", "jsonl")
    alone, _ = read_json(evaluate(*common))
    more = ("--ensemble", "end/pairs", "--ensemble", "end/pairs/model")
    together, _ = read_json(evaluate(*common, *more))
    assert together["value"] == alone["value"] and "|ensemble:3|" in together["signature"]
    assert together["about"]["model"] == " + ".join(["end/pairs/model"] * 3)
    assert together["about"]["engine"] == alone["about"]["engine"]


# --- bad input

MIX = (*PAIRS[:1], *TEXT[1:])
BAD: dict[str, tuple[tuple[str, ...], str]] = {
    "nothing": ((), "nothing to evaluate, expected MODEL --data DIR, or --hypotheses"),
    "no references": (("--hypotheses", "out"), "nothing to evaluate"),
    "unknown metric": ((*FILES, "--metric", "bleau"), "unknown metric 'bleau'; known: tokenized"),
    "perplexity": ((*FILES, "--metric", "perplexity"), "perplexity is a measure of a model"),
    "chrf": ((*FILES, "--metric", "chrf", "--against", "base"), "chrf cannot be compared"),
    "no samples": ((*FILES, "--samples", "0"), "argument --samples: '0', expected"),
    "seed": ((*FILES, "--seed", "-1"), "--seed -1, expected 0 to 4294967295"),
    "large seed": ((*FILES, "--seed", f"{1 << 32}"), "--seed 4294967296, expected 0 to "),
    "overwrite": ((*FILES, "--overwrite"), "--overwrite is for a model"),
    "shorter": ((*FILES[:3], "short"), "out has 3 lines and short has 2, expected the same"),
    "against shorter": ((*FILES, "--against", "short"), "out has 3 lines and short has 2"),
    "missing": ((*FILES[:3], "none"), "none does not exist, expected a text file"),
    "folder": ((*FILES[:3], "."), ". is a folder, expected a text file"),
    "empty": ((*FILES[:3], "empty"), "empty is empty, expected lines of text"),
    "latin": ((*FILES[:3], "latin"), "latin, line 1: byte 0xe9 is not UTF-8"),
    "format": ((*FILES, "--format", "xml"), "argument --format: invalid choice: 'xml'"),
    "floor of files": ((*FILES, "--floor"), "--floor is for a model"),
    "no data": (PAIRS[:1], "--data DIR is needed"),
    "split": ((*PAIRS, "--split", "dev"), "data/pairs has the splits train, valid, test, no 'dev'"),
    "beam": ((*PAIRS, "--beam", "0"), "argument --beam: '0'"),
    "limit": ((*PAIRS, "--limit", "0"), "argument --limit: '0'"),
    "setting": ((*PAIRS, "--set", "alfa=1"), "unknown field alfa=1; did you mean 'alpha'"),
    "metric": ((*PAIRS, "--metric", "blue"), "unknown metric 'blue'"),
    "other data": (MIX, "data/text holds texts, expected pairs of source and target by end/pairs"),
    "other ensemble": ((*PAIRS, "--ensemble", "end/text"), "data/pairs holds pairs of source"),
    "other model": ((*PAIRS, "--against", "end/text"), "data/pairs holds pairs of source"),
    "lines of another": ((*PAIRS, "--against", "out"), "out has 3 lines, expected 16"),
    "compare": ((*PAIRS, "--compare"), "--compare without --quantize int8, expected both"),
    "no model": (("no", *PAIRS[1:]), "no does not exist"),
    "no preparation": ((*PAIRS[:2], "."), ". has no prepared.json, expected a prepared folder"),
    "files and model": ((*PAIRS, "--hypotheses", "out"), "--hypotheses and --references are files"),
    "out": ((*PAIRS, "--out", "out"), "out exists"),
    **{
        f"{option} of texts": ((*TEXT, f"--{option}", *values), f"--{option} is for outputs, but ")
        for option, *values in (
            ("metric", "sacrebleu"),
            ("against", "out"),
            ("ensemble", "end/text"),
            ("quantize", "int8"),
            ("engine", "native"),
            ("out", "x"),
            ("batch-size", "2"),
        )
    },
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input(case: str, run: Run) -> None:
    write("short", *REF[:2])
    Path("empty").write_bytes(b"")
    Path("latin").write_bytes(b"caf\xe9\n\n\n")
    arguments, message = BAD[case]
    assert run("evaluate", *arguments).refused(f"error: {message}")
    assert Path("out").read_text().splitlines() == list(OUT), "nothing was overwritten"


# --- tune


def test_trials_and_their_scores(run: Run) -> None:
    more = ("--alphas", "0,1", "--grid", "beam=1, 4")
    for name, arguments in (("pairs", (*PAIRS, *more)), ("text", TEXT)):
        expected = Path(__file__).with_name("tables") / f"tune-{name}.txt"
        assert run("tune", *arguments, "--dry-run").out == expected.read_text()


def test_the_choice_is_written_into_the_model(run: Run) -> None:
    model = Path(MODEL[0])
    files = {path.name for path in model.iterdir()}
    before = (model / "config.json").read_bytes()
    common = ("tune", *MODEL, "--alphas", "0.2,0.9", "--grid", "beam=2,4")
    assert len(run(*common, "--limit", "5", "--dry-run").out.splitlines()) == 5
    assert (model / "config.json").read_bytes() == before
    done = run(*common)
    assert done.code == 0
    (best,) = (line.split() for line in done.out.splitlines() if "*" in line)
    assert done.err.count("note: decoding in ") == 1
    tables = ModelFolder(model).tables
    chosen = {"alpha": float(best[2]), "beam": int(best[3])}
    assert tables["decode"] == json.loads(before)["decode"] | chosen
    tuned = tables["tuned"]
    assert (tuned["metric"], tuned["split"], tuned["lines"]) == ("sacrebleu", "valid", 24)
    assert tuned["averaged"] == [] and len(tuned["data"]) == 64
    assert tuned["value"] == pytest.approx(float(best[4]), abs=0.01)
    assert lightconv.load(model).translate(["the cat"], **chosen) == (
        lightconv.load(model).translate(["the cat"])
    )
    assert {path.name for path in model.iterdir()} == files


def test_a_run_chooses_its_checkpoints(run: Run) -> None:
    trained = train.Run.open(PAIRS[0])
    for counts, number in (("9,2,2", 2), ("1", 1)):
        options = ("--alphas", "1", "--counts", counts, "--limit", "9")
        done = run("tune", *PAIRS, *options)
        assert done.code == 0 and len(done.out.splitlines()) == 2, "each count once"
        folder = ModelFolder(PAIRS[0])
        steps = trained.regular_steps()[-number:]
        assert folder.tables["tuned"]["averaged"] == steps
        assert folder.tables["tuned"]["lines"] == 9
        wanted = dict(trained.average(steps).named_parameters())
        found = dict(folder.load().named_parameters())
        assert found.keys() == wanted.keys()
        assert all((wanted[name] == tensor).all() for name, tensor in found.items())
        assert folder.tables["decode"]["alpha"] == 1.0
        assert folder.tables["task"]["corpus"] == "own"


def test_a_run_of_texts_is_tuned_by_perplexity(run: Run) -> None:
    assert run("tune", *TEXT).code == 0
    tuned = ModelFolder(TEXT[0]).tables["tuned"]
    assert tuned["metric"] == "perplexity"
    assert tuned["value"] == pytest.approx(4.33, abs=0.01)


BAD_TUNE: dict[str, tuple[tuple[str, ...], str]] = {
    "no data": (PAIRS[:1], "--data"),
    "counts of a model": ((*MODEL, "--counts", "2"), "model is not a run"),
    "too few": ((*PAIRS, "--counts", "9"), "2 regular checkpoints, expected at least 9"),
    **{
        f"{option} {text}": ((*MODEL, option, text), f"argument {option}: '{text}', ")
        for option, texts in (
            ("--alphas", ("x", "-1", "nan", "")),
            ("--counts", ("0", "1.5", "x")),
            ("--grid", ("beam", "beam=", "alpha=1")),
        )
        for text in texts
    },
    "limit": ((*MODEL, "--limit", "0"), "argument --limit: '0'"),
    "metric": ((*MODEL, "--metric", "chrf"), "chrf is not a sum over lines"),
    "split": ((*MODEL, "--split", "dev"), "no 'dev'"),
    "language model": (("end/text/model", *TEXT[1:]), "expected a run"),
    "other data": ((*MODEL[:1], *TEXT[1:]), "holds texts"),
    "other data of a run": ((*PAIRS[:1], *TEXT[1:]), "holds texts"),
    "field": ((*MODEL, "--grid", "bem=1"), "bem"),
    "no folder": (("nothing", *PAIRS[1:]), "nothing does not exist"),
}


@pytest.mark.parametrize("case", BAD_TUNE)
def test_nothing_is_tuned(case: str, run: Run) -> None:
    arguments, message = BAD_TUNE[case]
    assert run("tune", *arguments).refused(message)


# --- shortlist


@NATIVE
def test_a_shortlist_and_what_it_costs(run: Run) -> None:
    model = Path(MODEL[0])
    write_manifest(model, skip=("README.md",))
    before = {path.name: path.read_bytes() for path in model.iterdir()}
    common = ("shortlist", *MODEL, "--best", "3", "--always", "5")
    assert run("translate", MODEL[0], "--shortlist", "--input", "out").refused("no shortlist")
    done = run(*common, "--dry-run")
    assert {path.name: path.read_bytes() for path in model.iterdir()} == before
    assert run(*common).out.splitlines()[-1] == done.out.splitlines()[-1]
    rows = [line.split() for line in done.out.splitlines()]
    every, short = (float(row[3 + (row[0] == "all") - 1]) for row in rows[1:3])
    assert done.out.splitlines()[-1] == f"loss: {every - short:.2f} sacrebleu"
    folder = ModelFolder(model)
    folder.verify()
    words = lightconv.load(model)
    assert words.translate(["the cat"], shortlist=True) and words.translate(["the cat"])
    (model / "shortlist.safetensors").write_bytes(b"\0" * 16)
    with pytest.raises(ValueError, match="damaged"):
        folder.verify()
    (model / "manifest.json").unlink()
    done = run("translate", MODEL[0], "--shortlist", "--input", "out")
    assert done.refused("shortlist.safetensors is damaged")
    assert run("shortlist", "end/text/model", *TEXT[1:]).refused("expected a model of pairs")


# --- training, and the page


def test_training_measures_it(run: Run) -> None:
    """A run begun with a metric is resumed with it only."""
    shutil.copytree("middle/pairs", "run")
    common = ["train", "run/config.json", "--data", "data/pairs", "--out"]
    done = run(*common, "run", "--metric", "bleu")
    assert done.code == 2
    assert "was begun with no --metric, expected the same, got sacrebleu" in done.err
    few = ("--set", "train.max_steps=3", "--set", "train.validate_every=3")
    done = run(*common, "fresh", *few, "--metric", "bleu")
    assert done.code == 0
    assert done.err.count("note: sacrebleu of 24 lines, texts:") == 1
    entries = [json.loads(line) for line in Path("fresh/log.jsonl").read_text().splitlines()]
    assert list(entries[-1]["metric"]) == ["sacrebleu"]
    done = run(*common, "fresh", *few)
    assert done.code == 2 and "was begun with sacrebleu" in done.err


def test_the_page_runs(capsys: pytest.CaptureFixture[str]) -> None:
    (block,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    exec(block, {})
    score, comparison = capsys.readouterr().out.splitlines()
    (shown,) = re.findall(r"^    (tokenized_bleu\|.*), \.\.\.\)$", PAGE, re.MULTILINE)
    assert score.startswith(shown)
    assert "|test:paired|bs:1000|seed:12345|level:95|" in comparison
    assert all(f"`{name}`" in PAGE for name in (*METRICS, "perplexity"))


# --- Speed


def test_speed_of_models_side_by_side(run: Run) -> None:
    words = ("speed", MODEL[0], PAIRS[0], *MODEL[1:], "--rounds", 2, "--limit", 3, "--beam", 2)
    done = run(*words, "--batch-size", 2, "--split", "valid", "--out", "speed.json")
    assert done.code == 0, done.err
    found = json.loads(Path("speed.json").read_text())["speeds"]
    assert [len(each["rounds"]) for each in found] == [2, 2]
    assert {(each["lines"], each["beam"], each["sentences"]) for each in found} == {(3, 2, 2)}
    assert "beam 2, batches of 2" in done.out and "3 lines of valid" in done.out
    (first, second) = [line for line in done.out.splitlines() if line.startswith("end/pairs")]
    (one, two), (three, four) = (each["rounds"] for each in found)
    assert first.split()[-1] == "1.000"
    assert second.split()[-1] == f"{(one / three + two / four) / 2:.3f}"
    assert run("speed", TEXT[0], *TEXT[1:]).refused("language model")
    assert run("speed", MODEL[0], "--data", "data/text").refused("data/text")


def test_sentences_of_a_batch_change_no_output(evaluate: Evaluate) -> None:
    """One at a time, two, or all: the same translations, in batches of at most so many."""
    outputs = set()
    for size in (1, 2, 256):
        evaluate(*MODEL, "--batch-size", size, "--beam", 2, "--out", f"{size}.txt")
        outputs.add(Path(f"{size}.txt").read_text())
    assert len(outputs) == 1


def test_a_batch_size_needs_a_model(run: Run) -> None:
    assert run("evaluate", *FILES, "--batch-size", 4).refused("--batch-size is for a model")
