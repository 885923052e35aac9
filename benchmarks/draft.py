"""Greedy search of single sentences with and without a draft: speed, and where the time goes.

    python -m benchmarks.draft MODEL DRAFT --data DIR                trained models
    python -m benchmarks.draft MODEL DRAFT --data DIR --write docs   also the table in docs

Real sentences and real outputs, since the gain depends on how often the models agree. Both sides
run in one process in turns on one thread; figures are medians. Outputs that differ are an error.
"""

import argparse
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

from benchmarks.measure import interleave
from benchmarks.pages import measured, replace, table
from lightconv.data.prepared import Prepared
from lightconv.decode.draft import Draft, DraftSearch
from lightconv.decode.engine import Engine
from lightconv.decode.options import DecodeConfig, Options
from lightconv.decode.search import ModelSearch
from lightconv.evaluate.system import Examples, open_model

PARTS = {"draft": (Draft, ("add", "propose", "follow")), "runs": (DraftSearch, ("_score",))}
HEADER = (
    *("precision of the model", "sentences/s", "with the draft", "ratio", "words of a run"),
    *("share of the draft", "of the model's runs", "of the rest"),
)


def profile(call: Callable[[], object]) -> Counter[str]:
    """Seconds of a call by part, and the number of runs."""
    found: Counter[str] = Counter()

    def watch(part: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def watched(*arguments: Any) -> Any:
            begin = time.perf_counter()
            result = method(*arguments)
            found[part] += time.perf_counter() - begin
            found[f"{part}, calls"] += 1
            return result

        return watched

    patches = [
        patch.object(owner, name, watch(part, getattr(owner, name)))
        for part, (owner, names) in PARTS.items()
        for name in names
    ]
    begin = time.perf_counter()
    for each in patches:
        each.start()
    try:
        call()
    finally:
        for each in patches:
            each.stop()
    found["all"] = time.perf_counter() - begin
    return found


def measure(model: Path, draft: Path, data: Path, lines: int, rounds: int) -> str:
    """The table."""
    prepared = Prepared.open(data)
    sources = [*Examples(prepared, "test", lines).sources()]
    one, other = (open_model(path, prepared)[0].load("cpu") for path in (model, draft))
    options, proposing, rows = Options(decode=DecodeConfig(beam=1)), Engine(other, "int8"), []
    for precision in (None, "int8"):
        engine = Engine(one, precision)
        plain = ModelSearch(engine, options)
        helped = ModelSearch(engine, options, proposing)

        def search(by: ModelSearch) -> list[Any]:
            return [by([source], [1]) for source in sources]

        expected = search(plain)
        if search(helped) != expected:
            raise RuntimeError("the draft has changed an output")
        sides = {"plain": lambda: search(plain), "helped": lambda: search(helped)}  # noqa: B023
        seconds = interleave(sides, rounds, patience=1e9)
        parts = profile(sides["helped"])
        words = sum(len(found[0][0].tokens) for found in expected)
        shares = [parts["draft"], parts["runs"], parts["all"] - parts["draft"] - parts["runs"]]
        rates = [f"{len(sources) / seconds[side]:,.0f}" for side in sides]
        ratio = f"{seconds['plain'] / seconds['helped']:.2f}x"
        agreed = f"{words / parts['runs, calls']:.2f}"
        percents = [f"{each / parts['all']:.0%}" for each in shares]
        rows.append([precision or "float32", *rates, ratio, agreed, *percents])
    return table(HEADER, rows)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("draft", type=Path)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--lines", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--write", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(1)
    text = measure(given.model, given.draft, given.data, given.lines, given.rounds)
    call = "python -m benchmarks.draft MODEL DRAFT --data DIR"
    text = f"{measured()}; `{call}`, {given.lines} sentences.\n\n{text}"
    print(text)
    if given.write:
        replace(given.write, "benchmarks.draft", text)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
