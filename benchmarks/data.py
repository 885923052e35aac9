"""Cost of preparation and loading, from text to batches, compared with required bars.

    python -m benchmarks.data                     every figure; about ten minutes on two cores
    python -m benchmarks.data --only padding loader opening order
    python -m benchmarks.data --small             a hundredth of the text, to try this file
    python -m benchmarks.data --write docs        also the table in docs/data.md

Texts are synthetic (`benchmarks.texts`) and prepared in a temporary folder. Exit code 1 if a figure
misses its bar.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.pages import measured, table
from benchmarks.pages import replace as write_page
from benchmarks.texts import Language, ted_like

PAIRS = 160_000  # of IWSLT'14 German to English
LINES = 5_000_000
STORED_PAIRS, STORED_TOKENS = 36_000_000, 1_000_000_000  # of WMT'14 English to French
MAX_TOKENS = 4096
# Numbers of different words, typical of talks and news of that size.
TYPES = {"de": 120_000, "en": 55_000}
LINE_TYPES = 3_000_000
WORDS_PER_LINE = 12


class Figure(NamedTuple):
    """A measured value and its bar; `met` is True if the bar is met."""

    what: str
    value: str
    bar: str
    met: bool


class Stopwatch:
    """A display that measures the time from the end of one activity to the end of the next."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._what = ""
        self._last = time.perf_counter()

    def note(self, text: str) -> None:
        """Ignored."""

    def show(self, what: str, done: int, total: int | None = None) -> None:
        """Ends the previous activity if `what` is a new one."""
        if what != self._what:
            self.end()
            self._what = what

    def end(self) -> None:
        """Records the time of the current activity."""
        if self._what:
            now = time.perf_counter()
            self.seconds[self._what] = now - self._last
            self._last, self._what = now, ""


def measure_bpe(folder: Path, scale: float) -> Iterator[Figure]:
    """Seconds to learn BPE and to encode sentence pairs, on all cores."""
    from lightconv.corpora.own import own_corpus
    from lightconv.data.config import BPEConfig, PrepareConfig
    from lightconv.data.prepare import prepare

    pairs = int(PAIRS * scale)
    for place, (lang, lengths) in enumerate(zip(TYPES, ted_like(pairs), strict=True)):
        Language(TYPES[lang], place).write(folder / f"train.{lang}", lengths, seed=place)
    corpus = own_corpus("translation", train=folder / "train", source_lang="de", target_lang="en")
    pipeline = replace(corpus.pipeline, subword=BPEConfig(merges=10_000))
    watch = Stopwatch()
    found = prepare(
        corpus,
        folder / "prepared",
        config=PrepareConfig(pipeline=pipeline, filters=corpus.filters),
        display=watch,
    )
    _check_text(found.pipeline, found.store("valid"), found.references("valid"))
    seconds = watch.seconds
    print({what: round(value, 1) for what, value in seconds.items()}, flush=True)
    learning = seconds["counting words"] + seconds["learning the vocabulary"]
    encoding = seconds["encoding train"]
    total = learning + encoding
    rate = 2 * len(found.store("train")) / encoding
    yield Figure(
        f"BPE of {pairs:,} pairs, 10,000 joint merges: learning and encoding",
        f"{total:.1f} s ({learning:.1f} + {encoding:.1f})",
        "60 s",
        total < 60,
    )
    yield Figure("encoding them, files included", f"{rate:,.0f} sentences/s", "50,000", rate > 5e4)


def _check_text(pipeline: Any, store: Any, references: Sequence[str]) -> None:
    """Checks the result before it is reported: decoded ids equal the text."""
    from lightconv.data import UNK

    known = 0
    for place, text in enumerate(references):
        ids = store[place][1].tolist()
        if UNK not in ids:  # a subword that does not occur in training
            known += 1
            if pipeline.decode(1, ids) != text:
                raise AssertionError(f"line {place + 1} did not come back: {text!r}")
    if 10 * known < len(references):
        raise AssertionError(f"{known} of {len(references)} lines without unknown tokens")


def measure_memory(folder: Path, scale: float) -> Iterator[Figure]:
    """Peak memory of `lightconv prepare` including its workers."""
    lines = int(LINES * scale)
    draw = np.random.default_rng(0)
    lengths = 1 + draw.poisson(WORDS_PER_LINE - 1, size=lines)
    Language(int(LINE_TYPES * scale**0.5), 1).write(folder / "lines.txt", lengths, seed=1)
    size = (folder / "lines.txt").stat().st_size / 1e6
    command = [sys.executable, "-m", "lightconv", "prepare", "--text", str(folder / "lines.txt")]
    peak, seconds = watch_memory([*command, "--out", str(folder / "lm")])
    yield Figure(
        f"memory while a file of {lines:,} lines ({size:,.0f} MB) is prepared, workers included",
        f"{peak / 1e9:.2f} GB (in {seconds:,.0f} s)",
        "1.5 GB",
        peak < 1.5e9,
    )


def watch_memory(command: Sequence[str]) -> tuple[int, float]:
    """Peak bytes and seconds of a command: the largest sum of the peaks of concurrent processes.

    The peaks of processes need not coincide, so this is an upper bound.
    """
    began = time.perf_counter()
    most = 0
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        while process.poll() is None:
            most = max(most, sum(map(_peak, _family(process.pid))))
            time.sleep(0.02)
    if process.returncode:
        raise RuntimeError(f"exit code {process.returncode}: {' '.join(command)}")
    return most, time.perf_counter() - began


def _family(pid: int) -> Iterator[int]:
    yield pid
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            children = task.read_text().split()
        except OSError:  # it has just ended
            continue
        for child in children:
            yield from _family(int(child))


def _peak(pid: int) -> int:
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    found = [line.split()[1] for line in status.splitlines() if line.startswith("VmHWM:")]
    return int(found[0]) * 1024 if found else 0


def measure_padding(folder: Path, scale: float) -> Iterator[Figure]:
    """Share of padded positions."""
    from lightconv.data import BatchPlan

    lengths = [side + 1 for side in ted_like(int(PAIRS * scale))]
    padding = BatchPlan(lengths, max_tokens=MAX_TOKENS).padding
    what = f"padding in batches of {MAX_TOKENS:,} tokens, lengths as of talks"
    yield Figure(what, f"{padding:.1%}", "5 %", padding < 0.05)


def measure_loader(folder: Path, scale: float) -> Iterator[Figure]:
    """Target tokens per second of one loader thread, and of a step of the smallest model."""
    from lightconv.data import Loader, Position

    batches = _batches(folder, int(PAIRS * scale))
    with Loader(batches, Position(1), tokens_per_update=1) as loader:
        next(loader)
        began, tokens = time.perf_counter(), 0
        while time.perf_counter() - began < 3:
            tokens += sum(batch.tokens for update in islice(loader, 20) for batch in update)
        rate = tokens / (time.perf_counter() - began)
    name, consumed = consumption()
    yield Figure(
        f"loader, against {consumed:,.0f} tokens/s that {name} consumes",
        f"{rate:,.0f} tokens/s ({rate / consumed:,.0f}x)",
        "20x",
        rate > 20 * consumed,
    )


def consumption() -> tuple[str, float]:
    """The small recipe with the fewest parameters, and its target tokens per second.

    Forward and backward only: an optimiser would make it slower.
    """
    import torch

    from benchmarks.measure import interleave
    from lightconv.models.folder import build
    from lightconv.models.seq2seq import Seq2Seq
    from lightconv.paper.recipes import RECIPES
    from lightconv.recipe import count_parameters

    small = [name for name in RECIPES if name.endswith("-small")]
    name = min(small, key=lambda name: count_parameters(RECIPES[name].model))
    recipe = RECIPES[name]
    torch.manual_seed(0)
    model = build(recipe.model).train()
    T = 24
    shape = (recipe.train.max_tokens // T, T)
    vocab = model.output.scores(torch.zeros(1, recipe.model.dim)).shape[-1]
    sides = 2 if isinstance(model, Seq2Seq) else 1
    inputs = [torch.randint(4, vocab, shape) for _ in range(sides)]
    target = torch.randint(4, vocab, shape)

    def step() -> None:
        model.zero_grad(set_to_none=True)
        x = model.features(*inputs).flatten(0, 1)
        model.output.nll(x, target.flatten()).sum().backward()

    seconds = interleave({"step": step}, rounds=5, patience=60.0)["step"]
    return name, target.numel() / seconds


def _batches(folder: Path, examples: int) -> Any:
    """Batches of a split with sentence lengths like those of talks."""
    from lightconv.data import Batches, Pairs, Store, StoreWriter

    with StoreWriter(folder, "train", {"source": 9000, "target": 7000}) as writer:
        sides = ted_like(examples)
        for begin in range(0, examples, 1000):
            parts = (side[begin : begin + 1000].tolist() for side in sides)
            writer.append(*([np.full(size, 7) for size in part] for part in parts))
    return Batches(Pairs(Store(folder, "train")), max_tokens=MAX_TOKENS)


def measure_order(folder: Path, scale: float) -> Iterator[Figure]:
    """Order of the examples of an epoch, for several numbers of ranks."""
    from lightconv.data import Loader, Position

    batches = _batches(folder, 20_000)

    def order(ranks: int) -> list[list[list[int]]]:
        """The batches of each update in the global order."""
        found: list[list[list[list[int]]]] = []
        for rank in range(ranks):
            options: dict[str, Any] = {"rank": rank, "ranks": ranks}
            with Loader(batches, Position(1), tokens_per_update=40_000, **options) as loader:
                mine = []
                while loader.position.epoch == 0:
                    mine.append([batch.rows.tolist() for batch in next(loader)])
                found.append(mine)
        return [
            [rows for turn in _turns(updates) for rows in turn]
            for updates in zip(*found, strict=True)
        ]

    expected = order(1)
    same = all(order(ranks) == expected for ranks in (2, 3, 4))
    what = "order of the examples for 1, 2, 3, 4 ranks"
    yield Figure(what, "identical" if same else "DIFFERENT", "identical", same)


def _turns(updates: Sequence[Sequence[list[int]]]) -> Iterator[list[list[int]]]:
    """Batch 0 of each rank, batch 1 of each, ..."""
    for turn in range(max(map(len, updates))):
        yield [mine[turn] for mine in updates if turn < len(mine)]


def measure_opening(folder: Path, scale: float) -> Iterator[Figure]:
    """Time to open a store of the size of the largest corpus, in sparse files."""
    from lightconv.data import Store
    from lightconv.data.store import Header, file_name

    for side in ("source", "target"):
        for suffix, item in ((".bin", 2), (".idx", 8)):
            header = Header(
                suffix=suffix,
                item=item,
                examples=STORED_PAIRS,
                tokens=STORED_TOKENS,
                vocab=40_000,
                payload=bytes(32),
                split=bytes(32),
            )
            with (folder / file_name("train", side, suffix)).open("wb") as file:
                file.write(header.pack())
                file.truncate(header.size)
                if suffix == ".idx":
                    file.seek(header.size - item)
                    file.write(STORED_TOKENS.to_bytes(item, "little"))
    seconds = []
    for _ in range(9):
        began = time.perf_counter()
        store = Store(folder, "train")
        seconds.append(time.perf_counter() - began)
    middle = sorted(seconds)[4]
    what = f"opening {len(store):,} pairs with {STORED_TOKENS:,} tokens a side"
    yield Figure(what, f"{middle * 1e3:.2f} ms", "50 ms", middle < 0.05)


PARTS: dict[str, Callable[[Path, float], Iterator[Figure]]] = {
    "bpe": measure_bpe,
    "memory": measure_memory,
    "padding": measure_padding,
    "loader": measure_loader,
    "order": measure_order,
    "opening": measure_opening,
}


def main(argv: Sequence[str] | None = None) -> int:
    """Prints the figures; exit code 1 if one misses its bar."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--small", action="store_true", help="a hundredth of the text")
    parser.add_argument("--write", type=Path, metavar="DOCS", help="folder of data.md")
    options = parser.parse_args(argv)
    head = f"{measured()}."
    print(head, flush=True)
    figures: list[Figure] = []
    for name in options.only:
        with tempfile.TemporaryDirectory(prefix="lightconv-") as folder:
            for figure in PARTS[name](Path(folder), 0.01 if options.small else 1.0):
                print(" | ".join(map(str, figure)), flush=True)
                figures.append(figure)
    rows = [[what, value, bar] for what, value, bar, _ in figures]
    found = table(["", "measured", "bar"], rows)
    print(f"\n{found}")
    if options.write:
        write_page(options.write / "data.md", "benchmarks.data", f"{head}\n\n{found}")
    return 0 if all(figure.met for figure in figures) else 1


if __name__ == "__main__":
    sys.exit(main())
