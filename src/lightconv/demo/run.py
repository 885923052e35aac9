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
from lightconv.data.config import BytesConfig
from lightconv.data.corpus import Corpus
from lightconv.data.origin import PrepareConfig
from lightconv.data.prepare import prepare
from lightconv.data.prepared import Prepared, is_prepared
from lightconv.data.vocabulary import EOS
from lightconv.demo.plan import Plan, make_recipe
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
# A language model continues so many words with at most so many tokens.
PROMPT, CONTINUES = 4, 30
# Tokens of the text whose kernels are drawn, about.
TOKENS = 18


class Demo:
    """Stages of a demo in a folder: prepare, train, measure_model, measure_operator.

    results  data, training, scores, examples, growth, kernels and machine, each once it is known
    corpus   text to use instead of the plan's
    """

    def __init__(self, task: str, plan: Plan, out: Path, corpus: str | None = None) -> None:
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
        return (
            {"scores", "growth"} <= self.results.keys() and self.report.is_file() and self.trained
        )

    def train(self) -> int:
        """Trains or resumes the run by `lightconv train`; its exit code."""
        path = self.out / "recipe.toml"
        path.write_text(to_toml(self.recipe), encoding="utf-8")
        options: list[object] = ["--data", self.prepared.folder, "--out", self.run]
        options += ["--device", "cpu", *([] if self.same else ["--overwrite"])]
        return run_command("train", path, *options)[0]

    def measure_model(self) -> int:
        """Scores, examples and kernels of the trained model; an exit code."""
        code, scores = self._score()
        if code:
            return code
        with Display(idle="loading torch and the model", pause=2.0):
            from lightconv.decode.text import load

            loaded = load(self.run)
            examples = self._answer(loaded)
        model = getattr(loaded, "model", loaded)
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
        return 0

    def _score(self) -> tuple[int, dict[str, list[dict[str, Any]]]]:
        """Scores of the model and of baselines, by `lightconv evaluate`, and its exit code."""
        options: list[object] = ["--data", self.prepared.folder, "--floor", "--device", "cpu"]
        if self.plan.limit is not None:
            options += ["--limit", self.plan.limit]
        if self.task == "summary":
            # The first words of a text are a better baseline for a summary than all of it.
            path = self.out / "lead.txt"
            path.write_text("\n".join(lead_texts(self.prepared)) + "\n", encoding="utf-8")
            options += ["--against", path, "--samples", 1]
        code, lines = run_command("evaluate", self.run, *options)
        scores: dict[str, list[dict[str, Any]]] = {}
        for line in lines:
            if "system" in line:
                scores.setdefault(line["system"], []).append(line)
        if "against" in scores:
            names = {"model": "model", "lead": "against", "nearest": "nearest"}
            scores = {name: scores[system] for name, system in names.items()}
        return code, scores

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
        found = zip(texts, outputs, (references[row] for row in rows), strict=True)
        return [dict(zip(("source", "output", "reference"), row, strict=True)) for row in found]

    def _find_kernels(self, model: Any, examples: Sequence[Mapping[str, str]]) -> dict[str, Any]:
        from lightconv.demo.measure import dynamic_kernels, learned_kernels

        pipeline, pairs = self.prepared.pipeline, len(self.prepared.sides) == 2
        texts = [example["source" if pairs else "reference"] for example in examples]
        encoded = pipeline.encode(0, texts)
        ids = min(encoded, key=lambda ids: abs(len(ids) - TOKENS))[: TOKENS + 5]
        tokens = pipeline.vocabularies()[0].tokens
        labels = [pipeline.decode(0, [token]).strip() or tokens[token] for token in ids]
        # A source ends with EOS, a text of a language model begins with it.
        place = len(ids) if pairs else 0
        ids.insert(place, EOS)
        labels.insert(place, "</s>")
        learned, dynamic = learned_kernels(model), dynamic_kernels(model, ids)
        return {"text": labels, "learned": learned, "dynamic": dynamic}

    def measure_operator(self, display: Display) -> None:
        """Time and memory of the operator against attention."""
        display.show("loading the operators")
        from lightconv.demo.measure import measure_growth

        growth, tokens = [], self.plan.length_tokens
        for length in self.plan.lengths:
            display.show(f"sequences of {length:,} tokens")
            growth.append(measure_growth(length, tokens))
        self._add(growth=growth)

    def write_page(self) -> None:
        from lightconv.demo.page import make_page

        replace_file(self.report, make_page(self.task, self.plan, self.results).encode())


def run_command(*arguments: object) -> tuple[int, list[dict[str, Any]]]:
    """Runs lightconv in a process that ends with this one: exit code, JSON lines of `evaluate`."""
    lines = arguments[0] == "evaluate"
    form = ["--format", "jsonl"] if lines else []
    process = subprocess.Popen(
        [sys.executable, "-m", "lightconv", *map(str, arguments), *form],
        env={**os.environ, PARENT: str(os.getpid())},
        stdout=subprocess.PIPE if lines else None,
        text=True,
        start_new_session=True,
    )
    while True:
        try:
            out, _ = process.communicate()
        except KeyboardInterrupt:  # the process ends as it would alone
            process.send_signal(signal.SIGINT)
        else:
            return process.returncode, [json.loads(line) for line in (out or "").splitlines()]


def find_data(plan: Plan, folder: Path, display: Display, corpus: str | None = None) -> Prepared:
    """The prepared folder, made if it does not exist.

    corpus  text to use; by default the plan's, or the synthetic one where that cannot be fetched
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


def configure(corpus: Corpus, plan: Plan) -> PrepareConfig:
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
