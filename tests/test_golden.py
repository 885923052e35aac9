"""Folders that 0.1.0 wrote: they open, and give what they gave then.

Integers and texts must be equal, numbers near, because processors round differently; on a machine
like the one that made them, final models are equal byte by byte. tests/golden/make.py made all.
"""

import contextlib
import hashlib
import io
import json
import re
import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

import lightconv
from lightconv.cli import main
from lightconv.data import subword
from tests.golden.make import RUNS, preparations

GOLDEN = Path(__file__).parent / "golden"
DATA = ("pairs", "text", "summaries")
MODELS = ("end/pairs", "end/ranks", "end/text", "models/summary", "models/imported")
SOURCE = [[5, 6, 7, 4, 8, 2], [7, 4, 2, 1, 1, 1]]
TARGET = [[2, 5, 8, 6], [2, 4, 7, 5]]
# How many columns of the logits are kept; the sum over all is kept beside them.
COLUMNS = 12
ANSWERS = {
    "pairs": ("translate", "end/pairs", "--input", "texts/test.en", "--n-best", "2"),
    "pairs-torch": ("translate", "end/pairs", "--input", "texts/test.en", "--engine", "torch"),
    "pairs-int8": ("translate", "end/pairs", "--input", "texts/test.en", "--quantize", "int8"),
    "pairs-sample": ("translate", "end/pairs", "--input", "texts/test.en", "--sample"),
    "ensemble": (
        *("translate", "end/pairs", "--ensemble", "end/ranks", "--input", "texts/test.en"),
        *("--alignments", "--set", "coverage=0.2", "--beam", "4"),
    ),
    "ranks": ("translate", "end/ranks", "--input", "texts/test.en"),
    "text": ("generate", "end/text", "--input", "texts/test.txt"),
    "summary": ("summarize", "models/summary", "--input", "texts/test.en"),
    "imported": (
        *("translate", "models/imported", "--input", "fairseq/dict.de.txt"),
        *("--set", "max_len_plus=6"),
    ),
}
SCORES = {
    "pairs": ("end/pairs", "--source", "texts/test.en", "--target", "texts/test.eo"),
    "ranks": ("end/ranks", "--source", "texts/test.en", "--target", "texts/test.eo"),
    "text": ("end/text", "--input", "texts/test.txt"),
    "summary": ("models/summary", "--source", "texts/test.en", "--target", "texts/test.en"),
}
EVALUATIONS = {
    "pairs": ("end/pairs", "--data", "data/pairs", "--floor"),
    "ranks": ("end/ranks", "--data", "data/pairs", "--split", "valid"),
    "text": ("end/text", "--data", "data/text"),
    "summary": ("models/summary", "--data", "data/summaries"),
}
# Parts of a signature that say who computed it, not what.
# The digest of what was read, `texts`, is of later versions.
VERSIONS = ("version:", "lightconv:", "nltk:", "rouge-score:", "texts:")
TABLE = ("table", "decoders", "--results", "results")


# --- The one place that knows how the library reads its data


def read_epoch(folder: Path, rank: int, ranks: int) -> Iterator[list[tuple[Tensor, ...]]]:
    """Update by update of an epoch, the arrays of a rank's batches: inputs, then the target."""
    from lightconv.data import Position
    from lightconv.train import CosineConfig, TrainConfig
    from lightconv.train.data import PreparedData

    schedule = CosineConfig(peak=1.0, warmup=0, period=1)
    config = TrainConfig(max_steps=1, tokens_per_update=300, max_tokens=150, schedule=schedule)
    group: Any = SimpleNamespace(rank=rank, size=ranks)
    with PreparedData(folder).updates(Position(3, 1), config, group) as updates:
        while updates.position.epoch == 1:
            yield [(*batch.inputs, batch.target) for batch in next(updates)]


# --- What is measured, the same for the file of digests and for the test


def run(*arguments: object) -> str:
    """What a command prints; names of golden folders are relative to them."""
    printed = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True)
    with contextlib.redirect_stdout(printed):
        assert main(list(map(str, arguments))) == 0, arguments
    printed.seek(0)
    return printed.read()


def run_in(golden: Path, *arguments: str) -> str:
    return run(*(golden / a if (golden / a).exists() else a for a in arguments))


def describe_machine() -> dict[str, str]:
    """Everything on which the last bit of a sum may depend."""
    found = json.loads(run("doctor", "--json"))
    path = Path("/proc/cpuinfo")
    lines = path.read_text().splitlines() if path.exists() else []
    cpu = {name.strip(): value.strip() for name, _, value in (x.partition(":") for x in lines)}
    names = ("vendor_id", "cpu family", "model", "model name")
    kernels = {name: str(found[name]) for name in ("torch", "instruction_set")}
    return kernels | {name: cpu.get(name, "unknown") for name in names}


def measure_batches(golden: Path, name: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for rank, ranks in ((0, 1), (1, 2)):
        digest, sizes = hashlib.sha256(), []
        for update in read_epoch(golden / "data" / name, rank, ranks):
            sizes.append(len(update))
            for array in (each for batch in update for each in batch):
                digest.update(f"{array.dtype} {tuple(array.shape)}".encode())
                digest.update(array.contiguous().numpy().tobytes())
        found[f"{rank} of {ranks}"] = {"batches": sizes, "sha256": digest.hexdigest()}
    return found


def measure_logits(golden: Path, name: str) -> dict[str, Any]:
    model = lightconv.load(golden / name)
    inputs = [TARGET] if name == "end/text" else [SOURCE, TARGET]
    with torch.no_grad():
        logits = model(*map(torch.tensor, inputs))
    totals = logits.double().logsumexp(-1)
    return {
        "shape": list(logits.shape),
        "logits": [round(x, 5) for x in logits[..., :COLUMNS].flatten().tolist()],
        "totals": [round(x, 5) for x in totals.flatten().tolist()],
    }


def ask(golden: Path, *arguments: str) -> list[dict[str, Any]]:
    return [
        json.loads(line) for line in run_in(golden, *arguments, "--format", "jsonl").splitlines()
    ]


def measure_answers(golden: Path, name: str) -> list[dict[str, Any]]:
    """Of each line the tokens, and all outputs with their scores."""
    found = []
    for each in ask(golden, *ANSWERS[name]):
        kept = {key: each[key] for key in ("tokens", "alignment") if key in each}
        outputs = [[output["text"], output["score"]] for output in each.get("outputs", [each])]
        found.append(_round({**kept, "outputs": outputs}))
    return found


def measure_scores(golden: Path, name: str) -> list[Any]:
    found = ask(golden, "score", *SCORES[name])
    return [_round([each["logprob"], sum(each["logprobs"])]) for each in found]


def measure_evaluation(golden: Path, name: str) -> list[Any]:
    found = []
    for each in ask(golden, "evaluate", *EVALUATIONS[name]):
        parts = each["signature"].split("|")
        each["signature"] = "|".join(part for part in parts if not part.startswith(VERSIONS))
        kept = ("system", "metric", "value", "parts", "signature")
        found.append(_round({key: each[key] for key in kept}))
    return found


def measure_table(golden: Path) -> list[str]:
    return run_in(golden, *TABLE).splitlines()


def keep_figures(text: str) -> list[list[str]]:
    """Lines, and the cells of tables; not the names of rows, nor what explains them."""
    explained = ("- rows have", "- speed: ", "| ---", "---")
    lines = [line for line in text.splitlines() if not line.startswith(explained)]
    cells = [re.split(r"\s*\|\s*|\s{2,}", line.strip("| ")) for line in lines]
    named = [cell for cell in cells if len(cell) == 1 or cell[0] == "row"]
    figures = [[each for each in cell if re.match(r"\d|-$", each)] for cell in cells]
    return [[c for c in cell if c != "row (paper)"] for cell in named] + [f for f in figures if f]


def final_model(folder: Path) -> Path:
    return folder / "model" / "model.safetensors"


def digest_parameters(path: Path) -> str:
    """Of the tensors to the last bit; a file may say other things beside them."""
    digest = hashlib.sha256()
    for name, tensor in sorted(load_file(path).items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)} ".encode())
        digest.update(tensor.contiguous().numpy().tobytes())
    return digest.hexdigest()


# What is measured, and of which folders or commands.
MEASURES: dict[str, tuple[Callable[[Path, str], Any], Iterable[str]]] = {
    "batches": (measure_batches, DATA),
    "logits": (measure_logits, MODELS),
    "answers": (measure_answers, ANSWERS),
    "scores": (measure_scores, SCORES),
    "evaluations": (measure_evaluation, EVALUATIONS),
}


def measure(golden: Path) -> dict[str, Any]:
    """Everything that digests.json holds."""
    torch.set_num_threads(1)
    return {
        "machine": describe_machine(),
        **{
            k: {name: find(golden, name) for name in names} for k, (find, names) in MEASURES.items()
        },
        "table": {" ".join(TABLE): measure_table(golden)},
        "final": {name: digest_parameters(final_model(golden / "end" / name)) for name in RUNS},
    }


def _round(value: Any) -> Any:
    if isinstance(value, float):
        return round(value, 5)
    if isinstance(value, dict):
        return {key: _round(each) for key, each in value.items()}
    return [_round(each) for each in value] if isinstance(value, list) else value


# --- Tests


@pytest.fixture(scope="module")
def stored() -> Any:
    return json.loads((GOLDEN / "digests.json").read_text())


@pytest.fixture(autouse=True)
def one_thread(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Sums do not depend on the number of cores."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def assert_near(found: Any, wanted: Any, at: str = "") -> None:
    """The same values; floats within 1e-3 (scores) of each other."""
    assert type(found) is type(wanted), at
    if isinstance(wanted, dict):
        assert found.keys() == wanted.keys(), at
        for key, value in wanted.items():
            assert_near(found[key], value, f"{at}.{key}")
    elif isinstance(wanted, list):
        assert len(found) == len(wanted), at
        for place, value in enumerate(wanted):
            assert_near(found[place], value, f"{at}.{place}")
    elif isinstance(wanted, float):
        assert found == pytest.approx(wanted, abs=1e-3, rel=1e-4), at
    else:
        assert found == wanted, at


@pytest.mark.parametrize(
    "kind, name", [(kind, name) for kind, (_, names) in MEASURES.items() for name in names]
)
def test_what_it_gives(kind: str, name: str, stored: Any) -> None:
    """Batches are equal; logits are nearer than scores."""
    found, wanted = MEASURES[kind][0](GOLDEN, name), stored[kind][name]
    assert_near(found, wanted)
    if kind == "batches":
        assert found == wanted
    for key in ("logits", "totals") if kind == "logits" else ():
        assert found[key] == pytest.approx(wanted[key], abs=1e-4, rel=1e-4)


@pytest.mark.parametrize("name", DATA)
def test_preparing_again_gives_the_same_ids(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the codes of 0.1.0, which broke ties between pairs in another way."""
    if (codes := GOLDEN / "data" / name / "codes.txt").exists():
        monkeypatch.setattr(subword, "learn_codes", lambda *_: subword.Codes.load(codes))
    words = preparations(GOLDEN / "texts")[name]
    run("prepare", *words, "--processes", 1, "--out", tmp_path / name)
    old, new = (
        {path.name: path.read_bytes() for path in folder.iterdir() if path.suffix != ".json"}
        | {"statistics": json.loads((folder / "statistics.json").read_text())}
        for folder in (GOLDEN / "data" / name, tmp_path / name)
    )
    assert old == new


def test_results(stored: Any) -> None:
    found, old = measure_table(GOLDEN), stored["table"][" ".join(TABLE)]
    assert keep_figures("\n".join(found)) == keep_figures("\n".join(old))


def test_writing_the_page_of_results_again(tmp_path: Path) -> None:
    shutil.copytree(GOLDEN / "results", tmp_path / "results")
    page = tmp_path / "results" / "decoders" / "pairs" / "table.md"
    before = page.read_text()
    page.unlink()
    run("table", "decoders", "--results", tmp_path / "results", "--write")
    assert keep_figures(page.read_text()) == keep_figures(before)


@pytest.mark.parametrize("name", RUNS)
def test_a_run_resumed_in_the_middle(name: str, stored: Any, tmp_path: Path) -> None:
    """Its end is near the stored one; the same in two parts, or all on the same machine."""
    steps, processes = RUNS[name][2:4]
    words = ["train", GOLDEN / f"{name}.toml", "--data", GOLDEN / "data" / RUNS[name][1]]
    words += ["--processes", processes] if processes > 1 else []
    for folder in ("resumed", "parts"):
        shutil.copytree(GOLDEN / "middle" / name, tmp_path / folder)
    shorter = ["--allow-changes", "--set", f"train.max_steps={steps - 15}"]
    parts = (shorter, shorter[:1]) if processes == 1 else ()  # several take seconds to start
    for changes in parts:
        run(*words, "--out", tmp_path / "parts", *changes)
    run(*words, "--out", tmp_path / "resumed")
    resumed = final_model(tmp_path / "resumed")
    if parts:
        assert digest_parameters(final_model(tmp_path / "parts")) == digest_parameters(resumed)
    if name == "ranks":  # its attention drops weights by a hash since, and so other ones
        ends = (
            last_loss(folder / "log.jsonl")
            for folder in (tmp_path / "resumed", GOLDEN / "end" / name)
        )
        assert next(ends) == pytest.approx(next(ends), rel=0.1)
        return
    assert_near_parameters(resumed, final_model(GOLDEN / "end" / name))
    if describe_machine() == stored["machine"]:
        assert digest_parameters(resumed) == stored["resumed"][name]
        # A run that was resumed keeps its library of products; a new one might choose another.
        run(*words, "--out", tmp_path / "whole", "--set", "train.products=default")
        # Kernels of heads narrower than a vector have other last bits than in the first half.
        assert digest_parameters(final_model(tmp_path / "whole")) == stored["whole"][name]


def test_a_run_whose_recipe_has_batches_since(tmp_path: Path) -> None:
    """The same command with the recipe of today: the run keeps its own tokens and task."""
    text = (GOLDEN / "text.toml").read_text()
    new = text.replace("tokens_per_update = 300", "batches_per_update = 2")
    new = new.replace('corpus = "own"', 'corpus = "debian-lm"')
    assert "batches" in new and "debian" in new
    (tmp_path / "new.toml").write_text(new)
    shutil.copytree(GOLDEN / "middle" / "text", tmp_path / "run")
    before = (tmp_path / "run" / "config.json").read_bytes()
    words = ["train", tmp_path / "new.toml", "--data", GOLDEN / "data" / "text"]
    printed = run(*words, "--out", tmp_path / "run")
    assert "target tokens in " in printed and "the recipe has 2 batches" in printed
    assert (tmp_path / "run" / "config.json").read_bytes() == before
    assert_near_parameters(final_model(tmp_path / "run"), final_model(GOLDEN / "end" / "text"))


def last_loss(log: Path) -> float:
    entries = [json.loads(line) for line in log.read_text().splitlines()]
    return float(next(each["nll"] for each in entries[::-1] if each["kind"] == "valid"))


def assert_near_parameters(found: Path, wanted: Path) -> None:
    ours, theirs = load_file(found), load_file(wanted)
    assert ours.keys() == theirs.keys()
    for key, tensor in theirs.items():
        torch.testing.assert_close(ours[key], tensor, atol=1e-4, rtol=1e-4, msg=key)


def copy(name: str, folder: Path) -> Path:
    return Path(shutil.copytree(GOLDEN / name, folder / "copy"))


@pytest.mark.parametrize("name", RUNS)
def test_a_run_at_its_end_has_nothing_to_do(name: str, tmp_path: Path) -> None:
    folder = copy(f"end/{name}", tmp_path)
    before = digest_parameters(final_model(folder))
    words = ["train", GOLDEN / f"{name}.toml", "--data", GOLDEN / "data" / RUNS[name][1]]
    run(*words, "--out", folder)
    assert digest_parameters(final_model(folder)) == before


@pytest.mark.parametrize("name, options", [("ranks", ["2"]), ("pairs", ["1", "--ema"])])
def test_averages(name: str, options: list[str], tmp_path: Path) -> None:
    """The recipe of the first averages its last two; that of the second has moving averages."""
    folder = copy(f"end/{name}", tmp_path)
    run("average", folder, "--out", tmp_path / "model", "--last", *options)
    assert_near_parameters(tmp_path / "model" / "model.safetensors", final_model(folder))


def test_an_import(tmp_path: Path) -> None:
    folder = GOLDEN / "fairseq"
    dicts = [word for x in ("de", "en") for word in ("--dict", folder / f"dict.{x}.txt")]
    importing = ["import", "fairseq", folder / "checkpoint.pt", *dicts]
    run(*importing, "--out", tmp_path / "model")
    for path in (GOLDEN / "models" / "imported").iterdir():
        found = tmp_path / "model" / path.name
        if path.suffix == ".safetensors":
            assert digest_parameters(found) == digest_parameters(path)
        elif path.name == "config.json":  # transformers reads the new name, nothing else does
            text = found.read_text().replace('  "model_type": "lightconv",\n', "")
            assert text == path.read_text()
        elif path.name != "README.md":
            assert found.read_bytes() == path.read_bytes(), path.name
