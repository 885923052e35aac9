"""A measure of outputs while a model is trained: a slice of validation data, decoded and scored."""

import sys
from collections.abc import Callable
from pathlib import Path

from lightconv.data.prepared import Prepared
from lightconv.decode import DecodeConfig
from lightconv.evaluate.bleu import CorpusBLEU
from lightconv.evaluate.forms import of_ids, of_references
from lightconv.evaluate.metrics import METRICS, Metric, find_metric
from lightconv.evaluate.system import search_split
from lightconv.models import LanguageModel, Seq2Seq

# So many lines are decoded each time.
LINES = 200
# What people call it.
BLEU = "bleu"

# The model in evaluation mode, whether to hurry -> the measure.
Compute = Callable[[Seq2Seq | LanguageModel, Callable[[], bool]], float]


def validation_metric(
    data: str | Path,
    config: DecodeConfig,
    name: str = BLEU,
    *,
    split: str = "valid",
    lines: int = LINES,
    tell: Callable[[str], None] | None = None,
) -> tuple[str, Compute]:
    """The name of a measure and what computes it on the first lines of a split; more is better.

    name  a measure of `METRICS`, or "bleu": that of the task if it is a BLEU, else sacreBLEU
    tell  called at the first time with what decodes; by default it is a note on stderr
    """
    prepared = Prepared.open(data)
    if len(prepared.sides) != 2:
        raise ValueError(
            f"--metric {name} is for pairs of source and target, but {data} holds texts. Their "
            "perplexity is measured anyway"
        )
    metric = _find(prepared, name)
    references = of_references(prepared, split).first(lines).for_metric(metric)

    pending = [tell or _note]

    def compute(model: Seq2Seq | LanguageModel, hurry: Callable[[], bool]) -> float:
        assert isinstance(model, Seq2Seq)
        found = search_split(model, prepared, split, config, most=lines, hurry=hurry)
        if pending:
            pending.pop()(f"{metric.name} of {len(references)} lines: {found.decoder}")
        texts = of_ids(prepared.pipeline, found.best).for_metric(metric)
        return metric.score(texts, references).value

    return metric.name, compute


def _note(text: str) -> None:
    print(f"note: {text}", file=sys.stderr, flush=True)


def _find(prepared: Prepared, name: str) -> Metric:
    task = prepared.task
    if name == BLEU:
        own = METRICS.get(task.metric)
        name = task.metric if isinstance(own, CorpusBLEU) else "sacrebleu"
    return find_metric(name, task.target_lang)
