"""A model on a prepared split, scored as its set-up is: nothing to forget.

Sources are the ids that the preparation made; the search is that of the model's folder; outputs
lose their subwords, and are scored as words and as plain text.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lightconv.config import to_dict
from lightconv.data.prepared import PIPELINE_FILES, Prepared
from lightconv.decode.beam import Hypothesis
from lightconv.decode.config import DecodeConfig
from lightconv.decode.engine import Engine
from lightconv.decode.ensemble import Ensemble
from lightconv.decode.options import TextOptions
from lightconv.decode.runner import choose_runners
from lightconv.decode.score.scorer import score_ids
from lightconv.decode.search import Finder, PairSearch, Search, search_batches
from lightconv.evaluate.forms import Forms, case_field, of_ids, of_references
from lightconv.evaluate.metrics import METRICS, Metric, find_metric
from lightconv.evaluate.perplexity import compute_perplexity
from lightconv.evaluate.signature import Score, Signature
from lightconv.models import LanguageModel, Seq2Seq

# What is scored besides what the paper scores, by task.
BESIDES = {"translation": ("sacrebleu", "chrf"), "summarization": ()}

Show = Callable[[int], None]


@dataclass(frozen=True)
class Outputs:
    """What a model said for the first examples of a split, all hypotheses of each."""

    hypotheses: list[list[Hypothesis]]
    seconds: float
    # What stepped the model: "native", the C++ engine, or "torch", and why not the engine.
    engine: str = "torch"
    reason: str = ""

    @property
    def best(self) -> list[list[int]]:
        """The ids of the best ones."""
        return [each[0].tokens for each in self.hypotheses]

    @property
    def decoder(self) -> str:
        """What stepped the model, for people."""
        if self.engine == "native":
            return "decoding in the C++ engine"
        return self.reason or "decoding in torch"

    @property
    def tokens(self) -> int:
        """How many the best ones have, EOS included."""
        return sum(map(len, self.best))


def check_vocabulary(model: Path, prepared: Prepared) -> None:
    """Raises ValueError unless the model reads the ids that this data has.

    Vocabularies must be the same; an imported model may lack the steps and codes before them.
    """
    wanted = prepared.files()
    for name in PIPELINE_FILES:
        path, is_vocabulary = model / name, name.startswith("vocab")
        if not path.exists() and not is_vocabulary:
            continue
        if path.exists() != (name in wanted):
            lacking = model if name in wanted else prepared.folder
            raise ValueError(
                f"prepared data ({prepared.folder}): {lacking} has no {name}, expected the files "
                "of the model. Give the data that it was trained on"
            )
        if name in wanted and path.read_bytes() != wanted[name].read_bytes():
            raise ValueError(
                f"prepared data ({prepared.folder}): its {name} is not the one of {model}, "
                "expected the same. Give the data that it was trained on"
            )


def search_split(
    model: Seq2Seq,
    prepared: Prepared,
    split: str,
    config: DecodeConfig,
    *,
    others: Sequence[Seq2Seq] = (),
    options: TextOptions | None = None,
    most: int | None = None,
    show: Show = lambda done: None,
    hurry: Callable[[], bool] = lambda: False,
) -> Outputs:
    """All hypotheses for the first `most` sources of a split, which are searched by length.

    others the other models of an ensemble
    hurry  asked after each source; once it is true, those that are left get an empty output
    """
    store = prepared.store(split)
    count = len(store) if most is None else min(most, len(store))
    sources = [store[row][0].tolist() for row in range(count)]
    options = options or TextOptions()
    told: list[str] = []
    runner = choose_runners([model, *others], options, config, tell=told.append)
    search = PairSearch(model, Finder(config), runner)
    found = run_search(search, sources, options, show, hurry)
    each = runner.runners if isinstance(runner, Ensemble) else (runner,)
    engine = "native" if all(isinstance(one, Engine) for one in each) else "torch"
    return replace(found, engine=engine, reason=told[0] if told else "")


def run_search(
    search: Search,
    sources: list[list[int]],
    options: TextOptions,
    show: Show,
    hurry: Callable[[], bool],
) -> Outputs:
    """The hypotheses of each source, in their order."""
    found: list[list[Hypothesis]] = [[Hypothesis([], 0.0, [])] for _ in sources]
    begin = time.perf_counter()
    for done, searched in enumerate(search_batches(search, sources, options), 1):
        found[searched.row] = searched.hypotheses
        show(done)
        if hurry():
            break
    return Outputs(found, time.perf_counter() - begin)


def find_metrics(prepared: Prepared, names: Iterable[str] = ()) -> list[Metric]:
    """The measures asked for, else the one of the task and the usual ones."""
    task = prepared.task
    wanted = list(names)
    if not wanted:
        known = [task.metric] if task.metric in METRICS else []
        wanted = [*known, *BESIDES.get(task.kind, ())]
    found = [find_metric(name, task.target_lang) for name in wanted]
    return list({metric.name: metric for metric in found}.values())


def score_forms(
    prepared: Prepared,
    split: str,
    hypotheses: Forms,
    metrics: Iterable[Metric],
    search: Mapping[str, object],
    references: Forms | None = None,
) -> list[Score]:
    """The scores of outputs; their signatures say which split of which data, and which search."""
    references = references or of_references(prepared, split)
    found = []
    for metric in metrics:
        texts = hypotheses.for_metric(metric)
        score = metric.score(texts, references.for_metric(metric)[: len(texts)])
        found.append(sign(score, prepared, split, search))
    return found


def sign(score: Score, prepared: Prepared, split: str, search: Mapping[str, object]) -> Score:
    """The score with where it comes from in its signature."""
    return Score(score.value, score.parts, extend(score.signature, prepared, split, search))


def extend(
    signature: Signature, prepared: Prepared, split: str, search: Mapping[str, object]
) -> Signature:
    """A signature with split, data and search; `data` is the digest of the split's ids."""
    digest = prepared.contents.splits[split].digest[:8]
    return signature.extend({**case_field(prepared), "split": split, "data": digest} | dict(search))


def describe_search(config: DecodeConfig) -> dict[str, object]:
    """What of a search is in signatures: beam and length penalty, and all that is not usual."""
    found: dict[str, object] = {
        "beam": config.beam,
        "penalty": config.length_penalty,
        "alpha": f"{config.alpha:g}",
    }
    plain = to_dict(config)
    usual = to_dict(DecodeConfig())
    shown = ("beam", "length_penalty", "alpha")
    return found | {
        name: f"{value:g}" if isinstance(value, float) else str(value).lower()
        for name, value in plain.items()
        if name not in shown and value != usual[name]
    }


def evaluate_pairs(
    model: Seq2Seq,
    prepared: Prepared,
    split: str,
    config: DecodeConfig,
    metrics: Iterable[Metric],
    **how: Any,
) -> tuple[Outputs, Forms, list[Score]]:
    """Outputs, their forms and their scores; `how` are options of `search_split`."""
    outputs = search_split(model, prepared, split, config, **how)
    forms = of_ids(prepared.pipeline, outputs.best)
    options: TextOptions = how.get("options") or TextOptions()
    how_found: dict[str, object] = describe_search(config)
    if options.quantize != "none":
        how_found["quantize"] = options.quantize
    if how.get("others"):
        how_found["ensemble"] = 1 + len(how["others"])
    scores = score_forms(prepared, split, forms, metrics, how_found)
    return outputs, forms, scores


def evaluate_texts(
    model: LanguageModel,
    prepared: Prepared,
    split: str,
    *,
    options: TextOptions | None = None,
    most: int | None = None,
    show: Show = lambda done: None,
) -> Score:
    """Perplexity per word of the texts of a split."""
    store = prepared.store(split)
    count = len(store) if most is None else min(most, len(store))
    options = options or TextOptions()
    total = 0.0
    for start in range(0, count, options.window):
        rows = range(start, min(start + options.window, count))
        for values in score_ids(model, [(store[row][0].tolist(),) for row in rows], options):
            total += sum(values)
        show(rows.stop)
    return sign_perplexity(prepared, split, total, count)


def sign_perplexity(prepared: Prepared, split: str, log_prob: float, count: int) -> Score:
    """The perplexity of the first `count` lines of a split, which have that log-probability."""
    store = prepared.store(split)
    subwords = int(store.column(store.sides[-1]).lengths()[:count].sum())
    words = sum(map(len, map(str.split, of_references(prepared, split).words[:count])))
    score = compute_perplexity(log_prob, lines=count, subwords=subwords, words=words)
    return sign(score, prepared, split, {})
