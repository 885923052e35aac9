"""The demo's folder: text, a run and results. Stages that are done are not repeated."""

import hashlib
import json
import os
import platform
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from functools import cached_property
from pathlib import Path
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
from lightconv.models.config import Seq2SeqConfig
from lightconv.processes import PARENT
from lightconv.recipe import Recipe
from lightconv.train.log import LOG_FILE, read_log

RESULTS_FILE = "results.json"
# Changes with what is measured or written.
VERSION = 2
SPLIT = "test"
# Texts that are shown, and the words of their sources.
SHOWN = 6
FEWEST_WORDS = 6
MOST_WORDS = {"translation": 18, "lm": 24, "summary": 60}
# A language model continues so many words with at most so many tokens.
PROMPT = 4
CONTINUES = 30
# Tokens of the text whose kernels are drawn.
FEWEST_TOKENS, MOST_TOKENS = 12, 24


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
        if self.prepared.task.kind != self.plan.kind:
            raise ValueError(
                f"--corpus {self.corpus} is for {self.prepared.task.kind}, expected one for "
                f"{self.plan.kind}. `lightconv prepare --list` shows them; choose another folder "
                "with --out"
            )

    @cached_property
    def recipe(self) -> Recipe:
        """The plan's recipe for the prepared data."""
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

    def add(self, **results: Any) -> None:
        """Adds to the results and writes their file."""
        self.results.update(results)
        text = json.dumps(self.results, ensure_ascii=False)
        replace_file(self.out / RESULTS_FILE, text.encode())

    @property
    def trained(self) -> bool:
        """The run of this recipe has ended."""
        return (self.run / "model" / "config.json").is_file() and self._is_same_run()

    @property
    def done(self) -> bool:
        """Nothing is left to do."""
        whole = {"scores", "growth"} <= self.results.keys()
        return whole and self.report.is_file() and self.trained

    def _is_same_run(self) -> bool:
        try:
            return read(self.run / "config.json", Recipe) == self.recipe
        except (ConfigError, OSError):
            return False

    def train(self) -> int:
        """Trains or resumes the run by `lightconv train`; its exit code."""
        path = self.out / "recipe.toml"
        path.write_text(to_toml(self.recipe), encoding="utf-8")
        # The run may be that of another version or size.
        other = (self.run / "config.json").is_file() and not self._is_same_run()
        options: list[object] = ["--data", self.prepared.folder, "--out", self.run]
        code, _ = run_command("train", path, *options, "--device", "cpu", *["--overwrite"] * other)
        return code

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
        contents = self.prepared.contents.splits
        self.add(
            data={
                "corpus": self.prepared.task.corpus,
                "invented": self.prepared.task.corpus.startswith("synthetic-"),
                "lead": self.prepared.pipeline.config.sides[0].truncate,
                "examples": {name: each.examples for name, each in contents.items()},
                "scored": min(self.plan.limit or sys.maxsize, contents[SPLIT].examples),
            },
            training=self._describe_run(sum(p.numel() for p in model.parameters())),
            scores=scores,
            examples=examples,
            kernels=self._find_kernels(model, examples),
            machine={
                "processor": processor_name(),
                "processors": str(count_cores()),
                "python": platform.python_version(),
            },
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
        references = self.prepared.references(SPLIT)
        rows = choose(sources, MOST_WORDS[self.task])
        texts = [sources[row] for row in rows]
        if self.task == "lm":
            texts = [" ".join(text.split()[:PROMPT]) for text in texts]
            options = {"temperature": 0.8, "top_k": 40, "seed": 1, "max_len_plus": CONTINUES}
            outputs = model.generate(texts, sample=True, **options)
        else:
            say = model.summarize if self.task == "summary" else model.translate
            outputs = say(texts, **to_dict(self.plan.decode))
        found = zip(texts, outputs, (references[row] for row in rows), strict=True)
        return [{"source": a, "output": b, "reference": c} for a, b, c in found]

    def _describe_run(self, parameters: int) -> dict[str, Any]:
        log = read_log(self.run / LOG_FILE)
        last = next((entry for entry in reversed(log) if entry["kind"] == "train"), {})
        model = self.recipe.model
        layers = (
            f"{len(model.encoder)} + {len(model.decoder)}"
            if isinstance(model, Seq2SeqConfig)
            else f"{len(model.layers)}"
        )
        return {
            "parameters": parameters,
            "layers": f"{layers} layers of width {model.dim}",
            "steps": self.recipe.train.max_steps,
            "tokens": last.get("tokens", 0),
            "seconds": last.get("seconds", 0.0),
            "log": [{name: entry.get(name) for name in ("kind", "step", "nll")} for entry in log],
        }

    def _find_kernels(self, model: Any, examples: Sequence[Mapping[str, str]]) -> dict[str, Any]:
        """Kernels of all LightConv layers, and of the DynamicConv layers for one text."""
        from lightconv.demo.measure import dynamic_kernels, learned_kernels

        pipeline, pairs = self.prepared.pipeline, len(self.prepared.sides) == 2
        texts = [example["source" if pairs else "reference"] for example in examples]
        encoded = pipeline.encode(0, texts)
        fitting = [ids for ids in encoded if FEWEST_TOKENS <= len(ids) < MOST_TOKENS]
        ids = (fitting or [min(encoded, key=len)])[0][: MOST_TOKENS - 1]
        tokens = pipeline.vocabularies()[0].tokens
        labels = [pipeline.decode(0, [token]).strip() or tokens[token] for token in ids]
        # A source ends with EOS, a text of a language model begins with it.
        ids, labels = (
            ([*ids, EOS], [*labels, "</s>"]) if pairs else ([EOS, *ids], ["</s>", *labels])
        )
        learned, dynamic = learned_kernels(model), dynamic_kernels(model, ids)
        return {"text": labels, "learned": learned, "dynamic": dynamic}

    def measure_operator(self, display: Display) -> None:
        """Time and memory of the operator against attention."""
        display.show("loading the operators")
        from lightconv.demo.measure import measure_growth

        growth = []
        for length in self.plan.lengths:
            display.show(f"sequences of {length:,} tokens")
            growth.append(measure_growth(length, self.plan.length_tokens))
        display.end()
        self.add(growth=growth)

    def write_page(self) -> None:
        """Writes the report."""
        from lightconv.demo.page import make_page

        replace_file(self.report, make_page(self.task, self.results).encode())


def run_command(*arguments: object) -> tuple[int, list[dict[str, Any]]]:
    """Runs lightconv in a process that ends with this one: exit code, JSON lines of `evaluate`.

    Ctrl-C is passed on, and the process ends as it would alone.
    """
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
        except KeyboardInterrupt:
            process.send_signal(signal.SIGINT)
        else:
            return process.returncode, [json.loads(line) for line in (out or "").splitlines()]


def find_data(plan: Plan, folder: Path, display: Display, corpus: str | None = None) -> Prepared:
    """The prepared folder, made if it does not exist.

    corpus  text to use; by default the plan's, or the synthetic one where that cannot be fetched
    """
    real, synthetic = plan.corpora
    if is_prepared(folder):
        found = Prepared.open(folder)
        known = (corpus,) if corpus else plan.corpora
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
    """First words of every source, as many as a validation summary has on average.

    The first sentence where that is shorter.
    """
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
