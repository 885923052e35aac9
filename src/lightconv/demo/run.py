"""The demo's folder: text, a run and results. Stages that are done are not repeated."""

import hashlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from functools import cached_property
from pathlib import Path
from platform import python_version
from typing import Any

from lightconv import __version__
from lightconv.config import ConfigError, read, to_dict, to_toml
from lightconv.console import Display
from lightconv.corpora import open_corpus
from lightconv.data import EOS, BytesConfig, Corpus, PrepareConfig, Prepared
from lightconv.data.prepare import prepare
from lightconv.data.prepared import is_prepared
from lightconv.demo.plan import DemoPlan, make_recipe
from lightconv.device import count_cores, processor_name
from lightconv.files import cache_folder, replace_file
from lightconv.processes import PARENT
from lightconv.recipe import Recipe
from lightconv.train.log import LOG_FILE, read_log

RESULTS_FILE = "results.json"
# Changes with what is measured or written.
VERSION = 2
SPLIT = "test"
# Texts that are shown, and the words of their sources.
SHOWN, FEWEST_WORDS = 6, 6
MOST_WORDS = {"translation": 18, "lm": 24, "summary": 60}
# A language model continues so many words with at most so many tokens; the text whose kernels are
# drawn has about so many.
PROMPT, CONTINUES, TOKENS = 4, 30, 18


class Demo:
    """Stages of a demo in a folder: prepare, train, measure_model, measure_operator.

    results  data, training, scores, examples, growth, kernels and machine, each once it is known
    corpus   text to use instead of the plan's
    """

    def __init__(self, task: str, plan: DemoPlan, out: Path, corpus: str | None = None) -> None:
        self.task, self.plan, self.out, self.corpus = task, plan, out, corpus
        self.run, self.report = out / "run", out / "report.html"

    def prepare(self, display: Display) -> None:
        """Opens the prepared folder, and makes it first if it is missing."""
        self.prepared = find_data(self.plan, self.out / "data", display, self.corpus)
        if (kind := self.prepared.task.kind) != self.plan.kind:
            raise ValueError(
                f"--corpus {self.corpus} is for {kind}, expected one for {self.plan.kind}. "
                "`lightconv prepare --list` shows them; choose another folder with --out"
            )

    @cached_property
    def recipe(self) -> Recipe:
        source, target = self.prepared.pipeline.vocabularies()
        sizes = self.prepared.vocab_sizes
        return make_recipe(self.plan, self.prepared.task, sizes, shared=source is target)

    @cached_property
    def results(self) -> dict[str, Any]:
        """Results of this recipe, data and version; empty if the file is missing or of another."""
        digests = {name: each.digest for name, each in self.prepared.contents.splits.items()}
        facts = [VERSION, __version__, to_dict(self.recipe), digests, asdict(self.plan)]
        key = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]
        try:
            found = json.loads((self.out / RESULTS_FILE).read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError):
            found = None
        return found if isinstance(found, dict) and found.get("key") == key else {"key": key}

    def _add(self, **results: Any) -> None:
        self.results.update(results)
        replace_file(self.out / RESULTS_FILE, json.dumps(self.results).encode())

    @property
    def same(self) -> bool:
        """The run folder holds a run of this recipe."""
        try:
            return read(self.run / "config.json", Recipe) == self.recipe
        except (ConfigError, OSError):
            return False

    @property
    def trained(self) -> bool:
        return self.same and (self.run / "model" / "config.json").is_file()

    @property
    def done(self) -> bool:
        known = {"scores", "growth"} <= self.results.keys()
        return known and self.report.is_file() and self.trained

    def train(self) -> int:
        """Trains or resumes the run by `lightconv train` in a process; its exit code."""
        path = self.out / "recipe.toml"
        path.write_text(to_toml(self.recipe), encoding="utf-8")
        command = [sys.executable, "-m", "lightconv", "train", str(path), "--device", "cpu"]
        command += ["--data", str(self.out / "data"), "--out", str(self.run)]
        process = subprocess.Popen(
            [*command, *([] if self.same else ["--overwrite"])],
            env={**os.environ, PARENT: str(os.getpid())},
            start_new_session=True,
        )
        while True:
            try:
                return process.wait()
            except KeyboardInterrupt:  # the process saves and ends as it would alone
                process.send_signal(signal.SIGINT)

    def measure_model(self) -> None:
        """Scores, examples and kernels of the trained model."""
        scores = self._score()
        with Display(idle="loading torch and the model"):
            from lightconv.decode.text import load

            loaded = load(self.run)
            examples = self._answer(loaded)
        model = loaded.model
        splits, log = self.prepared.contents.splits, read_log(self.run / LOG_FILE)
        last = next((entry for entry in reversed(log) if entry["kind"] == "train"), {})
        self._add(
            data={
                "corpus": self.prepared.task.corpus,
                "lead": self.prepared.pipeline.config.sides[0].truncate,
                "examples": {name: each.examples for name, each in splits.items()},
                "scored": min(self.plan.limit or sys.maxsize, splits[SPLIT].examples),
            },
            training={
                "parameters": sum(p.numel() for p in model.parameters()),
                "tokens": last.get("tokens", 0),
                "seconds": last.get("seconds", 0.0),
                "log": [{name: each.get(name) for name in ("kind", "step", "nll")} for each in log],
            },
            scores=scores,
            examples=examples,
            kernels=self._find_kernels(model, examples),
            machine=f"{processor_name()}, {count_cores()} cores, Python {python_version()}",
        )

    def _score(self) -> dict[str, list[dict[str, Any]]]:
        """Scores of the model and of baselines without a model."""
        with Display(idle="loading torch"):
            from lightconv.evaluate.comparison import Evaluation

        lead = self.out / "lead.txt" if self.task == "summary" else None
        if lead is not None:
            lead.write_text("\n".join(lead_texts(self.prepared)) + "\n", encoding="utf-8")
        options: dict[str, Any] = {"baselines": True, "limit": self.plan.limit, "samples": 1}
        evaluation = Evaluation(model=self.run, data=self.out / "data", against=lead, **options)
        found = evaluation.run().scores
        scores = {name: [score.plain() for score in each] for name, each in found.items()}
        if lead is not None:  # a better baseline for a summary than all of the source
            nearest = scores["nearest"]
            return {"model": scores["model"], "lead": scores["against"], "nearest": nearest}
        return scores

    def _answer(self, model: Any) -> list[dict[str, str]]:
        """Answers of the model to texts of the test set."""
        sources = list(self.prepared.texts(SPLIT, self.prepared.sides[0]))
        rows = choose(sources, MOST_WORDS[self.task])
        texts = [sources[row] for row in rows]
        if self.task == "lm":
            texts = [" ".join(text.split()[:PROMPT]) for text in texts]
            options = {"temperature": 0.8, "top_k": 40, "seed": 1, "max_len_plus": CONTINUES}
            outputs = model.generate(texts, sample=True, **options)
        else:
            say = model.summarize if self.task == "summary" else model.translate
            outputs = say(texts, **to_dict(self.plan.decode))
        references = self.prepared.references(SPLIT)
        found = zip(texts, outputs, rows, strict=True)
        return [{"source": a, "output": b, "reference": references[row]} for a, b, row in found]

    def _find_kernels(self, model: Any, examples: Sequence[Mapping[str, str]]) -> dict[str, Any]:
        import torch

        from lightconv.mixers.kernels import dynamic_kernels, learned_kernels

        pipeline, pairs = self.prepared.pipeline, self.task != "lm"
        encoded = pipeline.encode(
            0, [each["source" if pairs else "reference"] for each in examples]
        )
        ids = min(encoded, key=lambda ids: abs(len(ids) - TOKENS))[: TOKENS + 5]
        tokens = pipeline.vocabularies()[0].tokens
        labels = [pipeline.decode(0, [token]).strip() or tokens[token] for token in ids]
        place = len(ids) if pairs else 0  # of EOS: a source ends with it, other text begins with it
        ids.insert(place, EOS)
        labels.insert(place, "</s>")
        read, batch = model.encode if pairs else model.features, torch.tensor([ids])
        dynamic = dynamic_kernels(model, lambda: read(batch))
        return {"text": labels, "learned": learned_kernels(model), "dynamic": dynamic}

    def measure_operator(self, display: Display) -> None:
        """Time and memory of the operator against attention."""
        display.show("loading the operators")
        from lightconv.demo.page import measure_growth

        growth = []
        for length in self.plan.lengths:
            display.show(f"sequences of {length:,} tokens")
            growth.append(measure_growth(length, self.plan.length_tokens))
        self._add(growth=growth)

    def write_page(self) -> None:
        from lightconv.demo.page import make_page

        replace_file(self.report, make_page(self.task, self.plan, self.results).encode())


def find_data(plan: DemoPlan, folder: Path, display: Display, corpus: str | None) -> Prepared:
    """The prepared folder, made if it does not exist.

    corpus  text to use; None: the plan's, or the synthetic one where that cannot be fetched
    """
    real, synthetic = plan.corpora
    if is_prepared(folder):
        found, known = Prepared.open(folder), (corpus,) if corpus else plan.corpora
        if found.task.corpus not in known:
            raise ValueError(
                f"{folder} holds {found.task.corpus}, expected {' or '.join(known)}. Choose "
                "another folder with --out"
            )
        display.note(f"using {folder} ({found.task.corpus}), prepared before")
        return found
    cache, name = cache_folder() / "corpora", corpus or real
    display.show(f"fetching and reading {name}")
    try:
        opened = open_corpus(name, None, cache, display.note)
    except ValueError as error:
        if corpus is not None:
            raise
        display.note(f"{real} cannot be fetched: {error}")
        display.note(f"using {synthetic} instead: its language is invented")
        opened = open_corpus(synthetic, None, cache, display.note)
    display.end()
    return prepare(opened, folder, config=configure(opened, plan), display=display)


def configure(corpus: Corpus, plan: DemoPlan) -> PrepareConfig:
    """The corpus's own preparation, with the plan's byte pairs and lengths."""
    pipeline = corpus.pipeline
    if isinstance(pipeline.subword, BytesConfig):
        pipeline = replace(pipeline, subword=replace(pipeline.subword, vocab=plan.vocab))
    if plan.lead is not None and corpus.task.corpus == plan.corpora[0]:
        source, *others = pipeline.sides
        pipeline = replace(pipeline, sides=(replace(source, truncate=plan.lead), *others))
    filters = replace(corpus.filters, max_len=plan.max_len)
    return PrepareConfig(pipeline=pipeline, filters=filters)


def lead_texts(prepared: Prepared) -> list[str]:
    """First sentence of every source, cut to the average words of a validation summary."""
    known = prepared.references("valid")
    count = max(1, round(sum(len(text.split()) for text in known) / max(1, len(known))))
    found = []
    for text in prepared.texts(SPLIT, "source"):
        words = text.split()[:count]
        ends = [place for place, word in enumerate(words, 1) if word.endswith((".", "!", "?"))]
        found.append(" ".join(words[: ends[0]] if ends else words))
    return found


def choose(sources: Sequence[str], most: int) -> list[int]:
    """Evenly spaced rows among those whose source has a moderate number of words."""
    rows = [i for i, text in enumerate(sources) if FEWEST_WORDS <= len(text.split()) <= most]
    rows = rows or list(range(len(sources)))
    shown = min(SHOWN, len(rows))
    return [rows[place * len(rows) // shown] for place in range(shown)]
