"""`lightconv table`: shown, printed, run with a worker that only pretends, stopped and resumed."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from lightconv.corpora.synthetic import Settings, make
from lightconv.data.prepare import prepare
from lightconv.paper import experiment
from lightconv.paper.results import ResultsFolder
from lightconv.paper.tables import TABLES
from tests.commands.conftest import Run

ROOT = Path(__file__).parents[2]
RESULTS = Path("results/normalization/copy")
NONE, TANH = "wmt-en-de-normalize-none-small", "wmt-en-de-normalize-tanh-small"
RUN = [
    *("table", "normalization", "--scale", "cpu", "--data", "data/copy", "--seeds", "2"),
    *("--rows", "normalize-none", "--rows", "tanh", "--steps", "6", "--run"),
]
# The command as a process: with the worker that pretends, and Ctrl-C as in a terminal.
START = (
    "import signal, sys; from lightconv import cli; from lightconv.paper import experiment as e;"
    "signal.signal(signal.SIGINT, signal.default_int_handler);"
    "e.WORKER, e.PAUSE = 'tests.paper.fake_worker', 0.02; sys.exit(cli.main(sys.argv[1:]))"
)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data") / "copy"
    settings = Settings(train=40, valid=10, test=5, symbols=10, min_len=2, max_len=4)
    prepare(make("synthetic-copy", settings), folder, processes=1)
    return folder


@pytest.fixture
def folder(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with data, and a worker that trains nothing."""
    monkeypatch.chdir(tmp_path)
    Path("data").mkdir()
    Path("data/copy").symlink_to(data)
    monkeypatch.setenv("PYTHONPATH", f"{ROOT / 'src'}{os.pathsep}{ROOT}", prepend=os.pathsep)
    monkeypatch.setenv("FAKE_LOG", str(tmp_path / "calls.txt"))
    monkeypatch.setattr(experiment, "WORKER", "tests.paper.fake_worker")
    monkeypatch.setattr(experiment, "PAUSE", 0.02)
    return tmp_path


def calls(folder: Path) -> list[str]:
    path = folder / "calls.txt"
    return path.read_text().splitlines() if path.exists() else []


def statuses() -> dict[str, str]:
    found = ResultsFolder.open(RESULTS).all().values()
    return {f"{one.recipe}.seed{one.seed}": one.status for each in found for one in each}


def find_row(out: str, start: str) -> str:
    return next(line for line in out.splitlines() if line.startswith(start))


# --- Shown


def test_names_of_the_tables(run: Run) -> None:
    out = run("table").out
    assert [line.split()[0] for line in out.splitlines()] == list(TABLES)


@pytest.mark.parametrize("name", TABLES)
def test_every_table_is_shown(name: str, run: Run, folder: Path) -> None:
    answer = run("table", name, "--markdown")
    assert answer.code == 0, answer.err
    lines = [line for line in answer.out.splitlines() if line.startswith("|")]
    header = [cell.strip() for cell in lines[0].strip("|").split("|")]
    ours = [place for place, cell in enumerate(header) if cell.endswith("(ours)")]
    assert len(ours) == 1 + len(TABLES[name].columns)
    for line, row in zip(lines[2:], TABLES[name].rows, strict=False):
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        assert cells[:3] == [row.text, row.recipe, row.params]
        assert [cells[place] for place in ours if place != 3] == ["not run"] * (len(ours) - 1)
        assert int(cells[3].replace(",", "")) > 10**7
        assert [cells[place - 1] for place in ours[1:]] == list(row.figures)
    assert f"lightconv table {name} --scale cpu --corpus " in answer.out


# --- Run


def test_rows_and_seeds_are_run_once(run: Run, folder: Path) -> None:
    answer = run(*RUN)
    assert answer.code == 0, answer.err
    done = calls(folder)
    assert len(done) == 8
    trained = [line.split() for line in done if line.startswith("train ")]
    assert [words[1] for words in trained] == [NONE, TANH, NONE, TANH]
    for words in trained:
        assert "train.max_steps=6" in words and not any("vocab" in word for word in words)
    row = find_row(answer.out, "DynamicConv (tanh), width 256")
    # Seeds 1 and 2: the letters of the name, less 10 and 20; a minute; 600 tokens in 3 s.
    mean = len(TANH) - 15
    assert row.split()[-4:] == [TANH.removesuffix("-small"), "25.6", "±", "0.2"]
    for cell in (f"{mean:.2f} ± 7.07", "1.0 ± 0.0 min", "200 ± 0", "1,030"):
        assert cell in row
    assert "not run" in find_row(answer.out, "DynamicConv, width 256")
    again = run(*RUN)
    assert again.code == 0
    assert calls(folder) == done
    assert row in again.out
    assert row in run("table", "normalization").out


def test_results_of_another_version_are_continued(run: Run, folder: Path) -> None:
    """0.1.0 gave each training the vocabulary of the data: the rest is trained in the same way."""
    assert run(*RUN).code == 0
    path = RESULTS / "experiment.json"
    experiment = json.loads(path.read_text())
    old = ["model.share_embeddings=all", "model.source_vocab=14", "model.target_vocab=14"]
    experiment["settings"] = [*old, *experiment["settings"]]
    path.write_text(json.dumps(experiment))
    (RESULTS / f"{TANH}.seed2.json").unlink()
    before = len(calls(folder))
    again = run(*RUN)
    assert again.code == 0, again.err
    words = next(line for line in calls(folder)[before:] if line.startswith("train ")).split()
    assert words[1] == TANH and {*old} < {*words}
    assert json.loads(path.read_text()) == experiment
    # What somebody had set himself is not forgotten.
    experiment["settings"].append("model.dropout=0.5")
    path.write_text(json.dumps(experiment))
    refused = run(*RUN)
    assert refused.code == 2 and "made otherwise: settings" in refused.err


def test_results_say_where_they_come_from(run: Run, folder: Path) -> None:
    absolute = [str(folder / "data" / "copy") if word == "data/copy" else word for word in RUN]
    assert run(*absolute).code == 0
    text = (RESULTS / f"{TANH}.seed2.json").read_text()
    found = json.loads(text)
    assert found["command"].startswith("lightconv table normalization --scale cpu --data copy ")
    assert found["command"].endswith("--run") and found["date"].endswith("UTC")
    assert str(folder) not in text
    assert (found["seed"], found["status"]) == (2, "done")
    assert found["measured"]["machine"] == {"processor": "an abacus"}
    made = json.loads((RESULTS / "experiment.json").read_text())
    assert set(made["data"]) == {"train", "valid", "test"}
    written = [RESULTS / name for name in ("table.md", "table.png")]
    for path in written:
        path.unlink()
    assert run("table", "normalization", "--write").out.split() == [*map(str, written)]
    page = written[0].read_text()
    sizes = "width 256, 4 heads, 4+3 layers, k=3,7,15,31, DropConnect"
    assert f"| DynamicConv (tanh), {sizes} | 1,030 | 2 | {len(TANH) - 15:.2f} ± 7.07 |" in page
    assert f"| DynamicConv, {sizes} | - | 0 | not run |" in page
    assert "sacrebleu|fake" in page and "an abacus" in page
    assert written[1].read_bytes().startswith(b"\x89PNG")


def test_what_diverges_is_a_row(run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fates = {f"{NONE}.seed1": "diverge", f"{NONE}.seed2": "diverge", f"{TANH}.seed1": "diverge"}
    monkeypatch.setenv("FAKE", json.dumps(fates))
    answer = run(*RUN)
    assert answer.code == 0
    row = find_row(answer.out, "DynamicConv (not normalised)")
    assert " diverged " in row and "1,030" in row
    assert "1 diverged" in find_row(answer.out, "DynamicConv (tanh)")
    assert "gradients were not finite at step 3" in answer.out
    done = calls(folder)
    assert run(*RUN).code == 0
    assert calls(folder) == done


@pytest.mark.parametrize("fate, why", [("fail", "disk is full"), ("kill", "exit code -9")])
def test_what_fails_is_tried_again(
    run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch, fate: str, why: str
) -> None:
    monkeypatch.setenv("FAKE", json.dumps({f"{NONE}.seed1": fate}))
    answer = run(*RUN)
    assert answer.code == 1
    assert statuses() == {
        **dict.fromkeys((f"{NONE}.seed2", f"{TANH}.seed1", f"{TANH}.seed2"), "done"),
        f"{NONE}.seed1": "failed",
    }
    assert why in answer.err and why in answer.out
    monkeypatch.setenv("FAKE", "{}")
    assert run(*RUN).code == 0
    assert set(statuses().values()) == {"done"}
    assert len(calls(folder)) == 7 + 2


def test_a_corpus_is_prepared_first_and_no_torch_is_loaded(folder: Path) -> None:
    words = ["table", "mt2", "--scale", "cpu", "--corpus", "synthetic-copy", "--seeds", "1"]
    words += ["--rows", "lightconv", "--steps", "6", "--run"]
    code = START.replace("[1:])", "[1:]) or 'torch' in sys.modules")
    for out in ("17 and more", ""):  # the histogram that `lightconv prepare` prints
        done = subprocess.run(
            [sys.executable, "-c", code, *words], capture_output=True, text=True, check=True
        )
        assert out in done.stdout and "\nLightConv, width 256, 2 heads" in done.stdout
    assert (folder / "data" / "synthetic-copy").is_dir()
    assert [line.split()[0] for line in calls(folder)] == ["train", "measure"]


def test_what_cannot_be_used_and_a_limit_of_time_end_it(
    run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE", json.dumps({f"{TANH}.seed1": "refuse"}))
    answer = run(*RUN)
    assert answer.code == 2
    assert answer.err.splitlines()[-1] == f"error: {TANH}: vocabulary (data): 3 ids, expected 4"
    assert list(statuses()) == [f"{NONE}.seed1"]
    # The time is up.
    monkeypatch.setenv("FAKE", json.dumps({f"{TANH}.seed1": "wait"}))
    assert run(*RUN, "--max-time", "1s").code == 75
    assert list(statuses()) == [f"{NONE}.seed1"]


def test_speed_is_measured_once_for_all_rows(run: Run, folder: Path) -> None:
    words = ["table", "ablation", "--scale", "cpu", "--data", "data/copy", "--seeds", "2"]
    words += ["--steps", "6", "--rows", "cnn", "--rows", "depthwise", "--limit", "4", "--run"]
    assert run(*words).code == 0
    (call,) = [line for line in calls(folder) if line.startswith("speed ")]
    names = [f"wmt-en-de-ablation-{name}-small.seed1" for name in ("cnn", "depthwise")]
    runs = [str(Path("runs/ablation/copy") / name) for name in names]
    options = "--split test --beam 4 --batch-size 256 --limit 4 --device auto --out"
    assert call.startswith(f"speed {' '.join(runs)} --data ") and options in call
    page = Path("results/ablation/copy/table.md").read_text()
    # 20 sentences in a tenth and two tenths of a second, half of that more and less.
    assert "| 200.0 (133.3 to 400.0) |" in page and "| 100.0 (66.7 to 200.0) |" in page
    assert "beam 4, batches of 256" in page and "machine quiet" in page
    assert run(*words).code == 0
    assert len([line for line in calls(folder) if line.startswith("speed ")]) == 1
    # Another row: all are measured again, side by side.
    assert run(*words[:-1], "--rows", "windowed", "--run").code == 0
    again = [line for line in calls(folder) if line.startswith("speed ")][1]
    assert again.count(".seed1") == 3


# --- Stopped, killed, gone on with


def begin(folder: Path, waits: str) -> "subprocess.Popen[str]":
    """The command as a process, once the row that waits is under way."""
    process = subprocess.Popen(
        [sys.executable, "-c", START, *RUN],
        env={**os.environ, "FAKE": json.dumps({waits: "wait"})},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    flag = folder / "runs/normalization/copy" / waits / "waiting"
    deadline = time.monotonic() + 60
    while not flag.exists() and time.monotonic() < deadline and process.poll() is None:
        time.sleep(0.02)
    assert flag.exists()
    return process


@pytest.mark.parametrize(
    "number, code", [(signal.SIGTERM, 75), (signal.SIGINT, 130), (signal.SIGKILL, -9)]
)
def test_stopped_and_gone_on_with(
    run: Run, folder: Path, number: signal.Signals, code: int
) -> None:
    with begin(folder, f"{TANH}.seed1") as process:
        process.send_signal(number)
        assert process.wait(60) == code
        if code != -9:
            assert process.stderr is not None
            assert process.stderr.read().endswith("the same command resumes from there\n")
    assert statuses() == {f"{NONE}.seed1": "done"}
    # The worker of one that was killed has the lock until it has seen that: this waits for it.
    assert run(*RUN).code == 0
    assert set(statuses().values()) == {"done"}
    done = calls(folder)
    assert done[3] == ("orphan ended" if code == -9 else f"told {number.name}")
    trained = [line.split()[1] for line in done if line.startswith("train ")]
    assert trained == [NONE, TANH, TANH, NONE, TANH]


def test_one_at_a_time(run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(experiment, "PATIENCE", 0.1)
    with begin(folder, f"{NONE}.seed1") as process:
        answer = run(*RUN)
        process.terminate()
        assert process.wait(60) == 75
    assert answer.code == 2
    assert "another `lightconv table` is running there" in answer.err


# --- The paper's size


def test_full_size_rows_are_run_where_their_data_is(run: Run, folder: Path) -> None:
    words = ["table", "mt1", "--scale", "paper", "--rows", "wmt-en-de-dynamicconv", "--seeds", "2"]
    answer = run(*words, "--run")
    assert answer.refused(
        "`lightconv prepare wmt16-en-de --from PATH --out data/wmt16-en-de` makes it"
    )
    corpus = make("synthetic-copy", Settings(train=20, valid=5, test=5, symbols=10))
    named = replace(corpus, task=replace(corpus.task, corpus="wmt16-en-de"))
    prepare(named, folder / "data" / "wmt16-en-de", processes=1)
    answer = run(*words, "--run")
    assert answer.code == 0, answer.err
    assert [line.split()[0] for line in calls(folder)] == ["train", "tune", "measure"] * 2
    shown = run("table", "mt1").out
    # On validation the first seed is the better one.
    best, mean = (f"{each + len('wmt-en-de-dynamicconv'):.2f}" for each in (10, 15))
    figures = ["29.7", best, f"({mean}", "±", "7.07)"]
    assert find_row(shown, "DynamicConv, En-De").split()[-5:] == figures
    assert "not run" in find_row(shown, "DynamicConv, En-Fr")


# --- Mistakes


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["ablatoin"], "did you mean 'ablation'?"),
        (["ablation", "--run"], "--run needs --scale"),
        (["ablation", "--steps", "5"], "--steps needs --scale"),
        (["ablation", "--scale", "cpu"], "--corpus NAME"),
        (["ablation", "--scale", "cpu", "--corpus", "debian-en-d"], "did you mean 'debian-en-d"),
        (["ablation", "--scale", "cpu", "--corpus", "wmt16-en-de"], "cannot be fetched"),
        (["ablation", "--scale", "cpu", "--data", "nowhere"], "nowhere does not exist"),
        (["lm", "--scale", "cpu", "--data", "data/copy"], "expected language model"),
        (["ablation", "--scale", "paper", "--steps", "5"], "--steps is for --scale cpu"),
        (["ablation", "--scale", "paper", "--set", "model.depth=3"], "model.depth"),
        (["ablation", "--scale", "paper", "--rows", "nonsense"], "--rows nonsense"),
        (["ablation", "--scale", "paper", "--nodes", "2", "--run"], "--run is for one machine"),
        (["ablation", "--scale", "paper", "--seeds", "0"], "argument --seeds: '0'"),
        (["ablation", "--scale", "paper", "--seeds", "1001"], "--seeds 1001 must be at most 1000"),
        (["ablation", "--scale", "cpu", "--corpus", "x", "--data", "y"], "two sources of data"),
        (["ablation", "--scale", "cpu", "--data", "x", "--name", "../x"], "--name '../x'"),
        (["ablation", "--results", "nowhere"], "--results nowhere"),
        (["ablation", "--write"], "nothing of the table ablation was run"),
        ([*RUN[1:], "--max-time", "soon"], "--max-time: 'soon' is not a time"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_mistakes_are_one_line(run: Run, folder: Path, arguments: list[str], message: str) -> None:
    assert run("table", *arguments).refused(message)
    assert calls(folder) == []


def test_other_settings_do_not_mix(run: Run, folder: Path) -> None:
    assert run(*RUN).code == 0
    answer = run(*RUN, "--set", "model.dropout=0.2")
    assert answer.code == 2
    assert "made otherwise" in answer.err and "another --name" in answer.err
    assert run(*RUN, "--set", "model.dropout=0.2", "--name", "wet").code == 0
    assert len(calls(folder)) == 16
