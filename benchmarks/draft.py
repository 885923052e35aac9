"""A teacher, its students and their use as drafts: quality, and speed at one sentence at a time.

    python -m benchmarks.draft MODEL STUDENT ... --data DIR                trained models
    python -m benchmarks.draft MODEL STUDENT ... --data DIR --write docs   also the tables in docs

Real sentences and real outputs, since the gain of a draft depends on how often the models agree.
The last student is the draft. All run in one process in turns on one thread; figures are medians.
Outputs that a draft changes are an error.
"""

import argparse
import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

from benchmarks.measure import interleave
from benchmarks.pages import measured, replace, table
from lightconv.data.prepared import Prepared
from lightconv.decode.draft import Draft, DraftSearch
from lightconv.decode.engine import Engine
from lightconv.decode.options import DecodeConfig, Options, TextOptions
from lightconv.decode.search import ModelSearch, search_batches
from lightconv.evaluate.metrics import METRICS
from lightconv.evaluate.system import Examples, open_model

PARTS = {Draft: ("add", "propose", "follow"), DraftSearch: ("add", "_score")}
HEADER = (
    *("precision of the model", "sentences/s", "with the draft", "ratio", "words of a run"),
    *("share of the draft", "of the model: sources", "its runs", "the rest"),
)


def profile(call: Callable[[], object]) -> Counter[str]:
    """Seconds of a call by part, and the number of runs."""
    found: Counter[str] = Counter()

    def watch(owner: type, name: str) -> Any:
        method, part = getattr(owner, name), f"{owner.__name__}.{name}"

        def watched(*arguments: Any) -> Any:
            begin = time.perf_counter()
            result = method(*arguments)
            found[part] += time.perf_counter() - begin
            found["runs"] += name == "_score"
            return result

        return patch.object(owner, name, watched)

    patches = [watch(owner, name) for owner, names in PARTS.items() for name in names]
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


def one_by_one(search: ModelSearch, sources: Sequence[list[int]]) -> dict[int, Any]:
    """The hypotheses of each source, searched alone."""
    found = search_batches(search, sources, TextOptions(max_sentences=1))
    return {each.row: each.hypotheses for each in found}


def compare(models: Sequence[Any], examples: Examples, lines: int, rounds: int) -> str:
    """BLEU on all examples, and speed of the first `lines`, of each model and beam."""
    sources = [*examples.sources()][:lines]
    scores, sides = {}, {}
    for model, beam in product(models, (4, 1)):
        config = model.config
        name = f"{len(config.encoder)}+{len(config.decoder)} layers of width {config.dim}"
        decode = DecodeConfig(beam=beam)
        _, _, (score,) = examples.evaluate(model, decode, [METRICS["sacrebleu"]])
        scores[name, beam] = score.value
        search = ModelSearch(Engine(model), Options(decode=decode))
        sides[f"{name} {beam}"] = partial(one_by_one, search, sources)
    seconds = interleave(sides, rounds, patience=1e9)
    first, rows = next(iter(seconds.values())), []
    for ((name, beam), bleu), each in zip(scores.items(), seconds.values(), strict=True):
        speed = [f"{len(sources) / each:,.0f}", f"{first / each:.2f}x"]
        rows.append([name, str(beam), f"{bleu:.2f}", *speed])
    return table(("model, float32", "beam", "BLEU", "sentences/s", "against the first"), rows)


def measure(model: Any, draft: Any, sources: Sequence[list[int]], rounds: int) -> str:
    """Speed of greedy search with and without the draft, and where its time goes."""
    options, proposing, rows = Options(decode=DecodeConfig(beam=1)), Engine(draft, "int8"), []
    for precision in (None, "int8"):
        engine = Engine(model, precision)
        plain = partial(one_by_one, ModelSearch(engine, options), sources)
        helped = partial(one_by_one, ModelSearch(engine, options, proposing), sources)
        expected = plain()
        if helped() != expected:
            raise RuntimeError("the draft has changed an output")
        seconds = interleave({"plain": plain, "helped": helped}, rounds, patience=1e9)
        parts = profile(helped)
        words = sum(len(found[0].tokens) for found in expected.values())
        shares = [sum(parts[f"Draft.{name}"] for name in PARTS[Draft])]
        shares += [parts["DraftSearch.add"] - parts["Draft.add"], parts["DraftSearch._score"]]
        shares += [parts["all"] - sum(shares)]
        rates = [f"{len(sources) / each:,.0f}" for each in seconds.values()]
        ratio = f"{seconds['plain'] / seconds['helped']:.2f}x"
        agreed = f"{words / parts['runs']:.2f}"
        percents = [f"{each / parts['all']:.0%}" for each in shares]
        rows.append([precision or "float32", *rates, ratio, agreed, *percents])
    return table(HEADER, rows)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("students", type=Path, nargs="+")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--lines", type=int, default=150)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--write", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(1)
    prepared = Prepared.open(given.data)
    examples = Examples(prepared, "test")
    models = [open_model(each, prepared)[0].load("cpu") for each in (given.model, *given.students)]
    drafts = measure(models[0], models[-1], [*examples.sources()][: given.lines], given.rounds)
    text = compare(models, examples, given.lines, given.rounds)
    call = "python -m benchmarks.draft MODEL STUDENT ... --data DIR"
    about = f"BLEU of {examples.count:,} lines, speed of {given.lines} of them one at a time"
    text = f"{measured()}; `{call}`; {about}.\n\n{text}\n\n{drafts}"
    print(text)
    if given.write:
        replace(given.write, "benchmarks.draft", text)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
