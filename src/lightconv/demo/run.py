"""The demo's folder: a fit to a fetched corpus, and a page. Stages that are done are not repeated.

`model` is the model folder of the fit, with its work beside it; results.json has what the page
shows besides: kernels, and time and memory of the operator.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from platform import python_version
from typing import Any

from lightconv import __version__
from lightconv.config import read
from lightconv.console import Display
from lightconv.corpora import open_corpus
from lightconv.data import EOS, Corpus, Prepared
from lightconv.data.config import TaskKind
from lightconv.data.prepared import is_prepared
from lightconv.device import count_cores, processor_name
from lightconv.files import cache_folder, replace_file
from lightconv.fitting.card import TASKS, score_rows
from lightconv.fitting.run import Decision, Fit
from lightconv.fitting.texts import Own
from lightconv.recipe import Recipe, count_parameters
from lightconv.train.log import LOG_FILE, read_log

RESULTS_FILE = "results.json"
# Changes with what is measured or written.
VERSION = 3
# The text whose kernels are drawn has about so many tokens.
TOKENS = 18
# Lengths of sequences for the operator, with so many tokens or more in all.
LENGTHS, LENGTH_TOKENS = (128, 256, 512, 1024, 2048, 4096, 8192), 2048
# Changes of the recipe, lengths and lines that are decoded for a demo in seconds.
QUICK = ("train.max_steps=20", "train.tokens_per_update=128")
QUICK_LENGTHS, QUICK_LINES = (32, 64), 6


@dataclass(frozen=True)
class DemoTask:
    """A task of the demo; the second corpus is for machines that cannot fetch the first."""

    kind: TaskKind
    corpora: tuple[str, str]
    about: str


DEMO_TASKS = {
    "translation": DemoTask(
        "translation", ("debian-en-de", "synthetic-translation"), "a small translator"
    ),
    "lm": DemoTask("language_model", ("debian-lm", "synthetic-lm"), "a small language model"),
    "summary": DemoTask(
        "summarization", ("debian-summary", "synthetic-summary"), "a small summariser"
    ),
}


class Demo:
    """Stages of a demo in a folder: find_text, a fit, measure, write_page.

    corpus   text to use instead of the task's
    seconds  all time of the fit
    quick    everything in seconds; the model learns nothing
    """

    def __init__(
        self, task: str, out: Path, seconds: float, corpus: str | None = None, *, quick: bool
    ) -> None:
        self.task, self.out, self.corpus, self.quick = task, out, corpus, quick
        self.report, self._seconds = out / "report.html", seconds
        out.mkdir(parents=True, exist_ok=True)

    def open_fit(self, report: Callable[[Decision], None]) -> Fit:
        """The fit of the folder; its time begins now."""
        small: dict[str, Any] = {"settings": QUICK, "size": "nano", "most_lines": QUICK_LINES}
        how = small if self.quick else {}
        self.fit = Fit(self.out / "model", self._seconds, report=report, **how)
        return self.fit

    def find_text(self, display: Display) -> Own | None:
        """Text of the corpus, or of the synthetic one where it cannot be fetched; None: prepared.

        ValueError if the folder holds text of another corpus or task.
        """
        wanted = DEMO_TASKS[self.task]
        real, synthetic = wanted.corpora
        folder = self.out / "model.fit" / "data"
        if is_prepared(folder):
            found = Prepared.open(folder).task.corpus
            known = (self.corpus,) if self.corpus else wanted.corpora
            if found not in known:
                raise ValueError(
                    f"{self.out} holds {found}, expected {' or '.join(known)}. Choose another "
                    "folder with --out"
                )
            display.note(f"using {folder} ({found}), prepared before")
            return None
        cache, name = cache_folder() / "corpora", self.corpus or real
        display.show(f"fetching and reading {name}")
        try:
            opened = open_corpus(name, None, cache, display.note)
        except ValueError as error:
            if self.corpus is not None:
                raise
            display.note(f"{real} cannot be fetched: {error}")
            display.note(f"using {synthetic} instead: its language is invented")
            opened = open_corpus(synthetic, None, cache, display.note)
        display.end()
        return self.own(opened)

    def own(self, corpus: Corpus) -> Own:
        """The texts of a corpus as those of one's own; ValueError if it is of another task."""
        task, kind = corpus.task, DEMO_TASKS[self.task].kind
        if task.kind != kind:
            raise ValueError(
                f"--corpus {task.corpus} is for {task.kind}, expected one for {kind}. `lightconv "
                "prepare --list` shows them; choose another folder with --out"
            )
        splits = {split: list(reader()) for split, reader in corpus.splits.items()}
        languages = (task.source_lang or task.target_lang, task.target_lang)
        return Own(kind, splits, languages, task.corpus, task.corpus)

    # --- Results of the page

    @cached_property
    def results(self) -> dict[str, Any]:
        """Results of this version and model; empty if the file is missing or of another."""
        facts = [VERSION, __version__, self.fit.state.get("scores"), self.quick]
        key = json.dumps(facts, sort_keys=True)
        try:
            found = json.loads((self.out / RESULTS_FILE).read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError):
            found = None
        return found if isinstance(found, dict) and found.get("key") == key else {"key": key}

    @property
    def done(self) -> bool:
        return {"kernels", "growth"} <= self.results.keys() and self.report.is_file()

    def _add(self, **results: Any) -> None:
        self.results.update(results)
        replace_file(self.out / RESULTS_FILE, json.dumps(self.results).encode())

    def measure(self, display: Display) -> None:
        """Kernels of the model; time and memory of the operator against attention."""
        if "kernels" not in self.results:
            display.show("loading torch and the model")
            self._add(kernels=self._find_kernels())
        if "growth" not in self.results:
            from lightconv.demo.page import measure_growth

            growth = []
            for length in QUICK_LENGTHS if self.quick else LENGTHS:
                display.show(f"sequences of {length:,} tokens")
                growth.append(measure_growth(length, 128 if self.quick else LENGTH_TOKENS))
            machine = f"{processor_name()}, {count_cores()} cores, Python {python_version()}"
            self._add(growth=growth, machine=machine)

    def _find_kernels(self) -> dict[str, Any]:
        import torch

        from lightconv.decode.text import load
        from lightconv.mixers.kernels import dynamic_kernels, learned_kernels
        from lightconv.models import Seq2Seq

        model = load(self.fit.out).model
        pipeline, pairs = self.fit.prepared.pipeline, self.task != "lm"
        texts = [each["source" if pairs else "reference"] for each in self.fit.state["examples"]]
        encoded = pipeline.encode(0, texts)
        ids = min(encoded, key=lambda ids: abs(len(ids) - TOKENS))[: TOKENS + 5]
        tokens = pipeline.vocabularies()[0].tokens
        labels = [pipeline.decode(0, [token]).strip() or tokens[token] for token in ids]
        place = len(ids) if pairs else 0  # of EOS: a source ends with it, other text begins with it
        ids.insert(place, EOS)
        labels.insert(place, "</s>")
        read, batch = model.encode if isinstance(model, Seq2Seq) else model.features, [ids]
        dynamic = dynamic_kernels(model, lambda: read(torch.tensor(batch)))
        return {"text": labels, "learned": learned_kernels(model), "dynamic": dynamic}

    def facts(self) -> dict[str, Any]:
        """All that the page shows, from the fit and the results."""
        fit, state = self.fit, self.fit.state
        task, splits = fit.prepared.task, fit.prepared.contents.splits
        log = read_log(fit.run_path / LOG_FILE)
        last = next((entry for entry in reversed(log) if entry["kind"] == "train"), {})
        model = read(fit.run_path / "config.json", Recipe).model
        return {
            "task": self.task,
            "metric": TASKS[task.kind][3],
            "headline": score_rows(state),
            **{name: state[name] for name in ("scores", "examples")},
            **{name: self.results[name] for name in ("growth", "kernels", "machine")},
            "data": {
                "corpus": task.corpus,
                "lead": fit.prepared.pipeline.config.sides[0].truncate,
                "examples": {name: each.examples for name, each in splits.items()},
                "scored": state["scored"],
            },
            "training": {
                "layers": " + ".join(str(len(layers)) for layers in model.stacks.values()),
                "dim": model.dim,
                "parameters": count_parameters(model),
                "steps": last.get("step", 0),
                "tokens": last.get("tokens", 0),
                "seconds": last.get("seconds", 0.0),
                "log": [{name: each.get(name) for name in ("kind", "step", "nll")} for each in log],
            },
        }

    def write_page(self) -> None:
        from lightconv.demo.page import make_page

        replace_file(self.report, make_page(self.facts()).encode())
