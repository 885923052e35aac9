"""A model on a split of prepared data: outputs, their texts, and signed scores.

Sources are the ids of the preparation; the search is that of the model folder; outputs lose their
subwords and are scored as words or as plain text, depending on the measure.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from lightconv.config import to_dict
from lightconv.console import tell
from lightconv.data.pipeline import PIPELINE_FILES, Pipeline
from lightconv.data.prepared import Prepared
from lightconv.data.words import Steps
from lightconv.decode import DecodeConfig, Hypothesis
from lightconv.decode.backend import choose_backend
from lightconv.decode.options import Options, TextOptions, find_model, read_decode
from lightconv.decode.score import score_ids
from lightconv.decode.search import ModelSearch, search_batches
from lightconv.decode.shortlist import Shortlist
from lightconv.evaluate.bootstrap import Comparison
from lightconv.evaluate.metrics import (
    METRICS,
    CorpusBLEU,
    Metric,
    Score,
    TokenizedBLEU,
    compute_perplexity,
    digest_lines,
    find_metric,
)
from lightconv.models import LanguageModel, Seq2Seq
from lightconv.models.folder import ModelFolder

# Lines decoded at each validation of a training.
VALIDATION_LINES = 200

Show = Callable[[int], None]
Signed = TypeVar("Signed", Score, Comparison)
# The model in evaluation mode, whether to hurry -> the measure.
Compute = Callable[[Seq2Seq | LanguageModel, Callable[[], bool]], float]


class Forms(NamedTuple):
    """The same texts in two forms.

    words  without subwords, a space between words: read by tokenised BLEU
    plain  detokenised
    """

    words: list[str]
    plain: list[str]

    def for_metric(self, metric: object) -> list[str]:
        return self.words if isinstance(metric, TokenizedBLEU) else self.plain


def of_ids(pipeline: Pipeline, outputs: Iterable[Sequence[int]]) -> Forms:
    """Forms of a model's outputs; subwords are joined in both."""
    side = len(pipeline.config.sides) - 1
    found = list(outputs)
    return Forms(
        [pipeline.decode_words(side, ids) for ids in found],
        [pipeline.decode(side, ids).replace("\n", " ") for ids in found],
    )


def of_texts(prepared: Prepared, texts: Sequence[str], *, tokenized: bool = False) -> Forms:
    """Forms of texts of the target side, plain or tokenised.

    They are lowered if the model's outputs are, and signatures then say `refs:lowered`.
    """
    config = prepared.pipeline.config.sides[-1]
    steps = Steps(config)
    words = list(texts) if tokenized else [steps.apply(text) for text in texts]
    plain = [steps.undo(text) for text in texts] if tokenized else list(texts)
    if config.lowercase:
        words, plain = ([text.lower() for text in each] for each in (words, plain))
    return Forms(words, plain)


@dataclass(frozen=True)
class Outputs:
    """All hypotheses of a model for the first examples of a split, best first.

    engine  "native", the C++ engine, or "torch"; `reason` says why not the engine
    """

    hypotheses: list[list[Hypothesis]]
    seconds: float
    engine: str = "torch"
    reason: str = ""

    @property
    def best(self) -> list[list[int]]:
        return [each[0].tokens for each in self.hypotheses]

    @property
    def decoder(self) -> str:
        if self.engine == "native":
            return "decoding in the C++ engine"
        return self.reason or "decoding in torch"

    @property
    def tokens(self) -> int:
        return sum(map(len, self.best))


def open_model(path: Path, prepared: Prepared) -> tuple[ModelFolder, DecodeConfig]:
    """The folder of a model of this data, and its search."""
    folder = find_model(path)
    check_data(folder.path, prepared, pairs=folder.pairs)
    return folder, read_decode(folder.path, folder.tables, folder.config)


def check_data(model: Path, prepared: Prepared, *, pairs: bool) -> None:
    """Raises ValueError unless a model or run folder fits the data: its kind and vocabulary.

    Vocabularies must be equal; an imported model may lack pipeline and codes.
    """
    kinds = ("texts", "pairs of source and target")
    found = len(prepared.sides) == 2
    if pairs != found:
        raise ValueError(
            f"{prepared.folder} holds {kinds[found]}, expected {kinds[pairs]} by {model}. Give the "
            "data that it was trained on"
        )
    wanted = prepared.files()
    for name in PIPELINE_FILES:
        path = model / name
        if path.exists() or name.startswith("vocab"):
            own = path.read_bytes() if path.exists() else None
            if own != (wanted[name].read_bytes() if name in wanted else None):
                raise ValueError(
                    f"prepared data ({prepared.folder}): its {name} is not the one of {model}, "
                    "expected the same. Give the data that it was trained on"
                )


class Examples:
    """The first `most` examples of a split of prepared data; None: all of them.

    ValueError if a byte of the split is not as it was written.
    """

    def __init__(self, prepared: Prepared, name: str, most: int | None = None) -> None:
        self.prepared = prepared
        self.name = name
        self.store = prepared.store(name)
        prepared.verify(name)
        self.count = len(self.store) if most is None else min(most, len(self.store))

    @cached_property
    def references(self) -> Forms:
        texts = self.prepared.references(self.name)[: self.count]
        return of_texts(self.prepared, texts, tokenized=self.prepared.tokenized)

    @cached_property
    def digest(self) -> str:
        """Digest of what is read and scored: ids of the sources, references in both forms."""
        return digest_lines(self.sources(), *self.references)

    @cached_property
    def _ids(self) -> list[NDArray[Any]]:
        """A copy, read once: later changes of the file change neither outputs nor digest."""
        tokens, sizes = self.store.column(self.store.sides[0]).take(np.arange(self.count))
        return np.split(tokens, np.cumsum(sizes))[:-1]

    def sources(self) -> Iterator[list[int]]:
        """Ids of the sources, or of the texts, without EOS."""
        return (ids.tolist() for ids in self._ids)

    def search(
        self,
        model: Seq2Seq,
        config: DecodeConfig,
        *,
        others: Sequence[Seq2Seq] = (),
        options: TextOptions | None = None,
        shortlist: Shortlist | None = None,
        show: Show = lambda done: None,
        hurry: Callable[[], bool] = lambda: False,
    ) -> Outputs:
        """Decodes the sources in batches of similar length.

        others     other models of an ensemble
        shortlist  of the words of outputs, for `options.shortlist`
        show       called with the number of sources done
        hurry      called after each source; once true, the remaining ones get an empty output
        """
        told: list[str] = []
        every = Options(decode=config, text=options or TextOptions())
        backend = choose_backend([model, *others], every, shortlist=shortlist, tell=told.append)
        search = ModelSearch(backend, every)
        found = [[Hypothesis([], 0.0, [])] for _ in range(self.count)]
        sources = list(self.sources())
        begin = time.perf_counter()
        for done, searched in enumerate(search_batches(search, sources, every.text), 1):
            found[searched.row] = searched.hypotheses
            show(done)
            if hurry():
                break
        seconds = time.perf_counter() - begin
        return Outputs(found, seconds, backend.name, told[0] if told else "")

    def score(
        self, outputs: Forms, metrics: Iterable[Metric], search: Mapping[str, object]
    ) -> list[Score]:
        """Scores of outputs; their signatures name split, data and search."""
        texts = [(m, outputs.for_metric(m), self.references.for_metric(m)) for m in metrics]
        return [self.sign(metric.score(*each), search) for metric, *each in texts]

    def sign(self, found: Signed, search: Mapping[str, object]) -> Signed:
        """A copy signed with split, search, `data` (digest of all ids), `texts` (of those read)."""
        lowered = self.prepared.pipeline.config.sides[-1].lowercase
        data = self.prepared.contents.splits[self.name].digest[:8]
        fields = {"split": self.name, "data": data, "texts": self.digest, **search}
        signature = found.signature.extend({"refs": "lowered"} | fields if lowered else fields)
        return replace(found, signature=signature)

    def evaluate(
        self, model: Seq2Seq, config: DecodeConfig, metrics: Iterable[Metric], **how: Any
    ) -> tuple[Outputs, Forms, list[Score]]:
        """Outputs, their texts and their scores; `how` are options of `search`."""
        outputs = self.search(model, config, **how)
        forms = of_ids(self.prepared.pipeline, outputs.best)
        search = describe_search(config)
        quantize = (how.get("options") or TextOptions()).quantize
        if quantize != "none":
            search["quantize"] = quantize
        if how.get("shortlist") is not None:
            search["shortlist"] = 1
        if how.get("others"):
            search["ensemble"] = 1 + len(how["others"])
        return outputs, forms, self.score(forms, metrics, search)

    def evaluate_texts(self, model: LanguageModel, show: Show = lambda done: None) -> Score:
        """Perplexity per word."""
        options, sources = TextOptions(), self.sources()
        total, done = 0.0, 0
        while texts := [(ids,) for ids in islice(sources, options.window)]:
            for values in score_ids(model, texts, options):
                total += sum(values)
            done += len(texts)
            show(done)
        return self.perplexity(total)

    def perplexity(self, log_prob: float) -> Score:
        """Perplexity from the log-probability of all texts."""
        column = self.store.column(self.store.sides[-1])
        subwords = int(column.lengths()[: self.count].sum())
        words = sum(len(text.split()) for text in self.references.words)
        score = compute_perplexity(log_prob, lines=self.count, subwords=subwords, words=words)
        return self.sign(score, {})


def find_metrics(prepared: Prepared, names: Iterable[str] = ()) -> list[Metric]:
    """The measures of those names, else that of the task and, of plain text, the usual ones."""
    task = prepared.task
    wanted = list(names)
    if not wanted:
        known = [task.metric] if task.metric in METRICS else []
        plain = not prepared.tokenized or prepared.pipeline.config.sides[-1].tokenize != "none"
        wanted = [*known, *(("sacrebleu", "chrf") if task.kind == "translation" and plain else ())]
    found = [find_metric(name, task.target_lang) for name in wanted]
    return list({metric.name: metric for metric in found}.values())


def describe_search(config: DecodeConfig) -> dict[str, object]:
    """Fields of a signature: beam, length penalty, and every value that is not the default."""
    usual = to_dict(DecodeConfig())
    found: dict[str, object] = {
        "beam": config.beam,
        "penalty": config.length_penalty,
        "alpha": f"{config.alpha:g}",
    }
    for name, value in to_dict(config).items():
        if name not in ("beam", "length_penalty", "alpha") and value != usual[name]:
            found[name] = f"{value:g}" if isinstance(value, float) else str(value).lower()
    return found


def validation_metric(
    data: str | Path, config: DecodeConfig, name: str = "bleu"
) -> tuple[str, Compute]:
    """Name of a measure and a function that computes it on validation data during training.

    name  a measure of `METRICS`, or "bleu": that of the task if it is a BLEU, else sacreBLEU
    """
    prepared = Prepared.open(data)
    if len(prepared.sides) != 2:
        raise ValueError(
            f"--metric {name} is for pairs of source and target, but {data} holds texts. Their "
            "perplexity is measured anyway"
        )
    task = prepared.task
    if name == "bleu":
        own = METRICS.get(task.metric)
        name = task.metric if isinstance(own, CorpusBLEU) else "sacrebleu"
    metric = find_metric(name, task.target_lang)
    examples = Examples(prepared, "valid", VALIDATION_LINES)
    references = examples.references.for_metric(metric)
    notes = [f"note: {metric.name} of {len(references)} lines, texts:{examples.digest}"]

    def compute(model: Seq2Seq | LanguageModel, hurry: Callable[[], bool]) -> float:
        assert isinstance(model, Seq2Seq)
        found = examples.search(model, config, hurry=hurry)
        if notes:
            tell(f"{notes.pop()}: {found.decoder}")
        texts = of_ids(prepared.pipeline, found.best).for_metric(metric)
        return metric.score(texts, references).value

    return metric.name, compute
