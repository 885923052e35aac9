"""`fit`: one's own text becomes a model folder in the time allowed.

Beside the folder OUT lies OUT.fit with the prepared text, the run and the figures. OUT holds the
best model so far from the first validation on, so a stop or a crash leaves one that can be used;
the same call resumes, and one with more time improves it.
"""

import json
import textwrap
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from lightconv.config import override, read, to_dict, to_toml
from lightconv.console import Display, read_duration, show_duration, tell
from lightconv.data import Prepared
from lightconv.data.config import TaskKind
from lightconv.data.prepare import prepare
from lightconv.data.prepared import is_prepared
from lightconv.device import choose_device
from lightconv.files import replace_file
from lightconv.fitting import plan
from lightconv.fitting.card import TASKS, make_card
from lightconv.fitting.texts import LEAD, Given, Own, read_own
from lightconv.models.folder import CARD_FILE, ModelFolder
from lightconv.processes import EXIT_STOPPED
from lightconv.recipe import Recipe, count_parameters
from lightconv.train.config import Precision, TrainConfig
from lightconv.train.launch import Stop
from lightconv.train.log import LOG_FILE, read_log
from lightconv.train.memory import measure_pace
from lightconv.train.run import Run

if TYPE_CHECKING:
    import torch

    from lightconv.decode.text import TextModel
    from lightconv.evaluate.system import Examples
    from lightconv.models import LanguageModel, Seq2Seq
    from lightconv.train.data import PreparedData

RECIPE_FILE, STATE_FILE = "recipe.toml", "state.json"
# Seconds kept for tuning, scores and the card: a share of the time, and at least so many.
RESERVE, LEAST_RESERVE = 0.07, 6.0
# Validation lines that are decoded each time; lines for tuning and scores, as time allows.
WATCHED, FEWEST_LINES, MOST_LINES = 100, 50, 2000
# Validations at least, and the longest pause between two of them in seconds.
VALIDATIONS, PAUSE = 4, 60.0
# Precisions that are tried; a faster one must be faster by more than this.
PRECISIONS: tuple[Precision, ...] = ("fp32", "bf16")
WORTH_IT = 1.1
# The end of training may be missed by this share of the time before the updates are counted anew.
TOLERATED = 0.03
# Parameters for each target token of the text, at most: a larger model learns it by heart.
MOST_PARAMETERS = 30
# Texts that are shown, and the words of their sources.
SHOWN, FEWEST_WORDS = 6, 4
MOST_WORDS = {"translation": 18, "language_model": 24, "summarization": 60}
# A language model continues so many words with at most so many tokens.
PROMPT, CONTINUES = 4, 30


class Decision(NamedTuple):
    """A choice that was made, and its reason."""

    what: str
    value: str
    reason: str


class _Pause(Stop):
    """A stop that the fit itself can ask for, to count the updates anew."""

    at: float | None = None

    @property
    def code(self) -> int:
        due = self.at is not None and time.monotonic() >= self.at
        return super().code or (EXIT_STOPPED if due else 0)


class Fit:
    """A model folder that is being fitted to text.

    seconds     all time that the model may take, that of earlier calls included
    size        a name of plan.SIZES; None: chosen
    settings    changes of the recipe, as for --set; train.max_steps replaces the time
    about       facts for the card: name, licence, files
    most_lines  lines of validation and test text that are decoded, at most
    """

    def __init__(
        self,
        out: Path,
        seconds: float,
        *,
        size: str | None = None,
        settings: Sequence[str] = (),
        about: Mapping[str, str] | None = None,
        device: str = "auto",
        report: Callable[[Decision], None] = lambda choice: None,
        most_lines: int = MOST_LINES,
    ) -> None:
        self._began = time.monotonic()
        self.out, self.seconds, self.size, self.settings = out, seconds, size, settings
        self.about, self._device, self._report = dict(about or {}), device, report
        self._most_lines = most_lines
        self.work = out.with_name(f"{out.name}.fit")
        self.data, self.run_path = self.work / "data", self.work / "run"
        if out.exists() and not self.work.exists():
            raise ValueError(f"{out} exists and has no {self.work.name}. Choose another --out")
        if size is not None and size not in plan.SIZES:
            raise ValueError(f"size {size[:40]!r}, expected one of {', '.join(plan.SIZES)}")
        self._fixed = any(setting.startswith("train.max_steps=") for setting in settings)

    # --- Time and state

    @cached_property
    def state(self) -> dict[str, Any]:
        """Seconds spent, scores and samples of this and earlier calls."""
        try:
            found = json.loads((self.work / STATE_FILE).read_bytes())
        except (OSError, ValueError, RecursionError):
            found = {}
        return {"seconds": 0.0, **(found if isinstance(found, dict) else {})}

    @property
    def spent(self) -> float:
        return float(self.state["seconds"]) + time.monotonic() - self._began

    def save(self, **values: Any) -> None:
        self.state.update(values)
        now = {**self.state, "seconds": self.spent}
        replace_file(self.work / STATE_FILE, json.dumps(now, ensure_ascii=False).encode())

    @property
    def left(self) -> float:
        """Seconds left for training."""
        return self.seconds - self.spent - max(LEAST_RESERVE, RESERVE * self.seconds)

    # --- Stages

    def prepare(self, texts: Own | None, display: Display) -> None:
        """Opens the prepared text, and makes it first if it is missing; None: it is there."""
        self.work.mkdir(parents=True, exist_ok=True)
        if is_prepared(self.data):
            self.prepared = Prepared.open(self.data)
            if texts is not None and texts.digests != self.prepared.origin.inputs:
                raise ValueError(f"{self.out} was begun with other text. Choose another --out")
        else:
            assert texts is not None
            corpus = texts.corpus(display.note, seconds=self.seconds)
            self.prepared = prepare(corpus, self.data, display=display)
        counts, sizes = self.prepared.counts(), {*self.prepared.vocab_sizes}
        kind = self.prepared.task.kind
        held = f"{counts['valid']:,} for validation, {counts.get('test', 0):,} for the test"
        unit = "texts" if kind == "language_model" else "pairs"
        self._report(Decision("text", f"{counts['train']:,} {unit}", f"besides {held}"))
        vocab = " and ".join(f"{size:,}" for size in sizes)
        amount = f"{counts['tokens']:,} tokens of training text: more text, more subwords"
        self._report(Decision("vocabulary", f"{vocab} subwords", amount))
        if kind == "summarization":
            lead = f"{self.prepared.pipeline.config.sides[0].truncate} words"
            amount = f"the first of a text: {LEAD} times those of a summary, more with more time"
            self._report(Decision("read", lead, amount))

    @cached_property
    def device(self) -> "torch.device":
        return choose_device(self._device)

    @cached_property
    def training_data(self) -> "PreparedData":
        from lightconv.train.data import PreparedData

        return PreparedData(self.data)

    def plan(self) -> None:
        """Chooses the recipe, or takes that of an earlier call with the updates time allows."""
        path = self.run_path / "config.json"
        if path.exists():
            self.recipe = read(path, Recipe)
            self._count_again()
        else:
            self.recipe = self._choose()
        self._write_recipe()

    def _write_recipe(self) -> None:
        replace_file(self.work / RECIPE_FILE, to_toml(self.recipe).encode())

    def _choose(self) -> Recipe:
        kind, counts = self.prepared.task.kind, self.prepared.counts()
        source, target = self.prepared.pipeline.vocabularies()
        how: dict[str, Any] = {"kind": kind, "vocab": self.prepared.vocab_sizes}
        how["shared"] = source is target
        text = counts["tokens"] + counts["train"]  # with the end of each
        size, speeds = self._choose_size(how, text)
        precision = max(speeds, key=speeds.__getitem__)
        if speeds[precision] < WORTH_IT * speeds[PRECISIONS[0]]:
            precision = PRECISIONS[0]
        speed = speeds[precision]
        whole = max(speed * self.left, 1000.0)
        tokens = plan.choose_tokens(whole) // (2 if kind == "summarization" else 1)
        dropout = plan.choose_dropout(whole / text)
        model = plan.make_model(size, **how, dropout=dropout)
        train = plan.make_training(size, kind, tokens=tokens, precision=precision)
        train = self._set_length(
            train, measure_pace(model, train, self.device, self.training_data)[0]
        )
        rates = ", ".join(f"{name} {rate:,.0f}" for name, rate in speeds.items())
        steps, parameters = train.max_steps, count_parameters(model)
        each = whole / parameters
        choices = [
            Decision(
                "model",
                f"{size}, width {model.dim}, {parameters / 1e6:.1f}M parameters",
                f"it can read {each:.1f} target tokens for each parameter in the time",
            ),
            Decision("precision", precision, f"target tokens/s on this machine: {rates}"),
            Decision(
                "training",
                f"{steps:,} updates of {tokens:,} tokens",
                f"{show_duration(max(self.left, 0))} at the measured speed",
            ),
            Decision("dropout", f"{dropout:g}", f"the text is read {whole / text:.1f} times"),
        ]
        for choice in choices:
            self._report(choice)
        paths = ("model", "train.precision", "train.max_steps", "model.dropout")
        sources = {p: f"fit: {c.reason}" for p, c in zip(paths, choices, strict=True)}
        recipe = Recipe(
            about=f"fit to {self.about.get('files', self.prepared.task.corpus)}",
            task=self.prepared.task,
            model=model,
            train=train,
            decode=plan.SEARCH[kind],
            sources=sources,
        )
        recipe = override(recipe, self.settings)
        return replace(recipe, train=plan.set_steps(recipe.train, recipe.train.max_steps))

    def _choose_size(self, how: Mapping[str, Any], text: int) -> tuple[str, dict[Precision, float]]:
        """The largest size for time and text, and target tokens per second by precision."""

        def measure(size: str) -> dict[Precision, float]:
            model = plan.make_model(size, **how)
            found: dict[Precision, float] = {}
            for precision in PRECISIONS:
                train = plan.make_training(size, how["kind"], precision=precision)
                seconds, tokens = measure_pace(model, train, self.device, self.training_data)
                found[precision] = tokens / seconds
            return found

        if self.size is not None or self._fixed:
            size = self.size or "tiny"
            return size, measure(size)
        counts = {name: count_parameters(plan.make_model(name, **how)) for name in plan.SIZES}

        def enough(size: str, speed: float) -> bool:
            return speed * self.left >= plan.TOKENS_PER_PARAMETER * counts[size]

        least, size, *larger = plan.SIZES
        speeds = measure(size)
        if not enough(size, max(speeds.values())):
            return least, measure(least)
        for name in larger:
            hoped = max(speeds.values()) * counts[size] / counts[name]
            if not enough(name, hoped) or counts[name] > MOST_PARAMETERS * text:
                break
            found = measure(name)
            if not enough(name, max(found.values())):
                break
            size, speeds = name, found
        return size, speeds

    def _set_length(self, train: TrainConfig, update: float) -> TrainConfig:
        """The training with as many updates of so many seconds as there is time for."""
        validations = max(VALIDATIONS, round(self.left / PAUSE))
        steps = max(20, int(0.96 * self.left / update) - 2 * validations)
        return replace(
            plan.set_steps(train, steps),
            validate_every=max(1, steps // validations),
            save_every=max(1, steps // plan.SAVES),
            log_every=max(1, steps // plan.LOGS),
        )

    def _count_steps(self) -> tuple[int, float] | None:
        """Updates that time allows and seconds of one, if those planned miss the end by far."""
        log = read_log(self.run_path / LOG_FILE) if (self.run_path / LOG_FILE).exists() else []
        entries = [entry for entry in log if entry["kind"] == "train"]
        if self._fixed or not entries:
            return None
        train, last = self.recipe.train, entries[-1]
        pace = last["seconds"] / last["step"]
        steps = last["step"] + int(self.left / pace)
        missed = abs(steps - train.max_steps) * pace
        within = missed <= max(TOLERATED * self.seconds, 2.0) or steps <= last["step"] + 5
        return None if within else (steps, pace)

    def _count_again(self) -> None:
        if counted := self._count_steps():
            steps, pace = counted
            self.recipe = replace(self.recipe, train=plan.set_steps(self.recipe.train, steps))
            reason = f"an update takes {pace * 1e3:,.0f} ms"
            self._report(Decision("training", f"{steps:,} updates", reason))

    def train(self) -> int:
        """Trains or resumes; 0 once the time is used, else the exit code of a stop."""
        from lightconv.train.loop import RunMetric

        _, metric = self._watched
        name = "perplexity" if metric is None else metric.name
        while True:
            run = Run.start(self.run_path, self.recipe, allow_changes=True)
            seconds = None if self._fixed else max(self.left, 1.0)
            with _Pause(seconds, hard=True) as self._stop:
                outcome = run.train(
                    self.training_data,
                    device=self.device,
                    stop=self._stop,
                    metric=RunMetric(name, self._watch, metric is not None),
                )
            if outcome.code and not self.out.exists():
                self.write(run.average([outcome.step]))
            self.save(step=outcome.step)
            used = outcome.code == EXIT_STOPPED and self.left <= 1.0 and not self._fixed
            if outcome.code == 0 or used:
                return 0
            if outcome.code != EXIT_STOPPED or self._stop.at is None:
                return outcome.code
            self._count_again()
            self._write_recipe()

    def _watch(self, model: "Seq2Seq | LanguageModel", hurry: Callable[[], bool]) -> float:
        """Score of validation lines; shows one of them, and keeps the best model so far."""
        from lightconv.decode.text import TextModel
        from lightconv.evaluate.system import of_ids
        from lightconv.models import LanguageModel

        examples, metric = self._watched
        began = time.monotonic()
        shown = self.state.get("shown", 0) % examples.count
        if isinstance(model, LanguageModel):
            value = examples.evaluate_texts(model).value
        else:
            outputs = examples.search(model, self.recipe.decode, hurry=hurry)
            forms = of_ids(self.prepared.pipeline, outputs.best)
            texts, references = (each.for_metric(metric) for each in (forms, examples.references))
            value = metric.score(texts, references).value
        each = (time.monotonic() - began) / examples.count
        if hurry():
            return value
        best = self.state.get("best")
        if best is None or (value < best if metric is None else value > best):
            self.write(model)
            self.state["best"] = value
        self.save(line_seconds=each, shown=shown + 1)
        source = list(self.prepared.texts("valid", self.prepared.sides[0]))[shown]
        if metric is not None:
            self._show(value, source, forms.plain[shown])
        else:
            prompt = " ".join(source.split()[:PROMPT])
            loaded = TextModel(ModelFolder(self.out), model)
            self._show(value, prompt, continue_texts(loaded, [prompt])[0])
        if self._count_steps():
            self._stop.at = time.monotonic() + 1.0
        return value

    @cached_property
    def _watched(self) -> "tuple[Examples, Any]":
        """Validation lines, and the measure of their outputs, None for perplexity."""
        from lightconv.evaluate.metrics import find_metric
        from lightconv.evaluate.system import Examples

        task, examples = self.prepared.task, Examples(self.prepared, "valid", WATCHED)
        if task.kind == "language_model":
            return examples, None
        return examples, find_metric(task.metric, task.target_lang)

    def _show(self, value: float, source: str, output: str) -> None:
        clock = show_duration(self.spent)
        name = TASKS[self.prepared.task.kind][3]
        tell(f"{clock}  {name} {value:.1f} on {self._watched[0].count} validation texts; now")
        for text in (source, output):
            tell(f"      {textwrap.shorten(text, 72, placeholder=' ...')}")

    def write(
        self,
        model: "Seq2Seq | LanguageModel",
        tables: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> ModelFolder:
        """Writes OUT; `tables` of its configuration besides those of the run."""
        run = Run.open(self.run_path)
        tables = {**run.recipe_tables, **(tables or {})}
        card = make_card(self.out.absolute().name, self.recipe, self.state, self.about)
        files: dict[str, Any] = {**run.files(), CARD_FILE: card.encode()}
        files[RECIPE_FILE] = to_toml(self.recipe).encode()
        return ModelFolder.write(
            self.out, model, files=files, tables=tables, overwrite=self.out.exists()
        )

    def finish(self) -> None:
        """Tunes, scores against baselines, shows samples and writes the card."""
        from lightconv.decode.text import load
        from lightconv.evaluate.comparison import Evaluation
        from lightconv.evaluate.tune import Tuner

        run, pairs = Run.open(self.run_path), len(self.prepared.sides) == 2
        lines = self._lines(0.45)
        counts = [count for count in (1, plan.AVERAGED) if count <= len(run.regular_steps())]
        if counts:
            tuner = Tuner(self.run_path, self.data, counts=counts, limit=lines)
            best = tuner.best(list(tuner.trials(self.device)))
            value, before = best.value, self.state.get("tuned")
            if before is None or before[1] != lines or value >= before[0]:
                decode = to_dict(best.config)
                steps = ", ".join(map(str, best.averaged))
                self.save(tuned=[value, lines], averaged=steps)
                self.write(run.average(best.averaged), {"decode": decode})
            else:
                tell("the model of the earlier call was better on validation text and stays")
        how: dict[str, Any] = {"baselines": True, "samples": 1, "limit": self._lines(0.6)}
        report = Evaluation(model=self.out, data=self.data, **how).run(self.device)
        scores = {name: [score.plain() for score in each] for name, each in report.scores.items()}
        loaded = load(self.out, self.device)
        self.save(
            scores=scores,
            examples=self._answer(loaded, pairs=pairs),
            signature=str(next(iter(report.scores.values()))[0]),
            scored=min(how["limit"], self.prepared.contents.splits["test"].examples),
            fitted=self.seconds,
        )
        card = make_card(self.out.absolute().name, self.recipe, self.state, self.about)
        replace_file(self.out / CARD_FILE, card.encode())
        self.save()

    def _lines(self, share: float) -> int:
        """Lines that can be decoded in a share of the time left."""
        each = max(self.state.get("line_seconds", 0.02), 1e-5)
        if self._fixed:
            return self._most_lines
        lines = int(share * (self.seconds - self.spent - 2.0) / 2 / each)
        return min(max(lines, FEWEST_LINES), self._most_lines)

    def _answer(self, model: "TextModel", *, pairs: bool) -> list[dict[str, str]]:
        """Answers of the model to texts of the test set."""
        kind = self.prepared.task.kind
        sources = list(self.prepared.texts("test", self.prepared.sides[0]))
        rows = choose_rows(sources, MOST_WORDS[kind])
        texts = [sources[row] for row in rows]
        if not pairs:
            texts = [" ".join(text.split()[:PROMPT]) for text in texts]
            outputs = continue_texts(model, texts)
        else:
            outputs = (model.summarize if kind == "summarization" else model.translate)(texts)
        references = self.prepared.references("test")
        found = zip(texts, outputs, rows, strict=True)
        return [{"source": a, "output": b, "reference": references[row]} for a, b, row in found]


def continue_texts(model: "TextModel", prompts: Sequence[str]) -> list[str]:
    options = {"temperature": 0.8, "top_k": 40, "seed": 1, "max_len_plus": CONTINUES}
    return model.generate(prompts, sample=True, **options)


def choose_rows(sources: Sequence[str], most: int) -> list[int]:
    """Evenly spaced rows among those whose source has a moderate number of words."""
    rows = [i for i, text in enumerate(sources) if FEWEST_WORDS <= len(text.split()) <= most]
    rows = rows or list(range(len(sources)))
    shown = min(SHOWN, len(rows))
    return [rows[place * len(rows) // shown] for place in range(shown)]


def fit(
    texts: Given,
    out: str | Path,
    *,
    time: str | float = "10m",
    kind: TaskKind | None = None,
    valid: Given | None = None,
    test: Given | None = None,
    source_lang: str | None = None,
    target_lang: str | None = None,
    columns: Sequence[str] = (),
    size: str | None = None,
    settings: Sequence[str] = (),
    licence: str = "",
    device: str = "auto",
    report: Callable[[Decision], None] = lambda choice: None,
) -> "TextModel":
    """Fits a model to texts in the time allowed; the model, which is also in the folder `out`.

    texts     pairs (source, target), texts, or files: two of lines, a table, a folder of tables
    time      as for the command, such as "10m", or seconds; that of earlier calls included
    kind      default: translation of pairs, a language model of texts
    settings  changes of the recipe, such as "train.max_steps=500", which replaces the time
    report    called with each choice that is made

    KeyboardInterrupt once training was stopped by Ctrl-C; the model can be used, the same call
    resumes.
    """
    from lightconv.decode.text import load

    seconds = read_duration(str(time))
    how: dict[str, Any] = {"size": size, "settings": settings, "device": device, "report": report}
    languages, held = (source_lang, target_lang), {"valid": valid, "test": test}
    own = read_own(texts, kind, languages=languages, columns=columns, **held)
    about = {"licence": licence, "files": own.name}
    fitting = Fit(Path(out), seconds, about=about, **how)
    if run_fit(fitting, own):
        raise KeyboardInterrupt
    return load(out, fitting.device)


def run_fit(fitting: Fit, texts: Own | None) -> int:
    """All stages that are not done; 0, or the exit code of a stop. No texts: they are prepared."""
    done = fitting.state.get("fitted", 0.0) >= 0.95 * fitting.seconds
    with Display(idle="preparing") as display:
        fitting.prepare(texts, display)
    if done:
        return 0
    try:
        with Display(idle="measuring the speed of this machine"):
            fitting.plan()
        code = fitting.train()
        if not code:
            with Display(idle="tuning and scoring"):
                fitting.finish()
    finally:
        fitting.save()
    return code
