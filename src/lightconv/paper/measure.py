"""Measurement of a trained run: size, length of training, scores and decoding speed."""

import math
import platform
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

from lightconv.config import read
from lightconv.data.prepared import Prepared
from lightconv.decode.options import TextOptions, read_settings
from lightconv.decode.text import load
from lightconv.device import count_cores, processor_name
from lightconv.evaluate.report import check_kind
from lightconv.evaluate.signature import Score
from lightconv.evaluate.system import evaluate_pairs, evaluate_texts, find_metrics
from lightconv.models import LanguageModel
from lightconv.paper.results import Measurement, Speed, SplitScore, Training
from lightconv.recipe import Recipe, count_parameters
from lightconv.train.checkpoints import FOLDER, Checkpoints
from lightconv.train.folder import CONFIG_FILE
from lightconv.train.group import Group
from lightconv.train.runner import describe_machine


def measure(
    run: Path,
    data: Path,
    splits: Sequence[str],
    *,
    device: torch.device,
    limit: int | None = None,
    one_by_one: bool = False,
    ended: bool = True,
) -> Measurement:
    """Decodes and scores the splits.

    one_by_one  decode sentences alone, not in batches
    ended       False for a training that diverged, which has no model to score
    """
    machine = {name: str(value) for name, value in describe_machine(device, Group()).items()}
    found = Measurement(
        machine={**describe_processor(), **machine},
        parameters=count_parameters(read(run / CONFIG_FILE, Recipe).model),
        training=read_training(run),
    )
    if not ended:
        return found
    settings, prepared = read_settings(run), Prepared.open(data)
    check_kind(settings, prepared)
    model = load(settings.folder, device)
    options = TextOptions(max_sentences=1) if one_by_one else TextOptions()
    scores: dict[str, tuple[SplitScore, ...]] = {}
    speed = None
    for split in splits:
        if isinstance(model, LanguageModel):
            scores[split] = (keep(evaluate_texts(model, prepared, split, most=limit)),)
            continue
        metrics = find_metrics(prepared)
        outputs, _, of_split = evaluate_pairs(
            model, prepared, split, settings.decode, metrics, most=limit, options=options
        )
        scores[split] = tuple(map(keep, of_split))
        speed = Speed(
            split=split,
            lines=len(outputs.hypotheses),
            seconds=outputs.seconds,
            tokens=outputs.tokens,
            engine=outputs.engine,
            sentences=options.max_sentences,
        )
    return replace(found, scores=scores, speed=speed)


def keep(score: Score) -> SplitScore:
    """A score for a file; an infinite value becomes the largest number."""
    finite = {name: _finite(part) for name, part in score.parts.items()}
    signature = score.signature
    return SplitScore(
        metric=signature.name, value=_finite(score.value), parts=finite, signature=str(signature)
    )


def read_training(run: Path) -> Training | None:
    """Steps, tokens and seconds of the last checkpoint, all resumptions together."""
    found = Checkpoints(run / FOLDER, writer=False).latest()
    if found is None:
        return None
    progress = found.values["progress"]
    return Training(steps=found.step, tokens=progress["tokens"], seconds=progress["seconds"])


def describe_processor() -> dict[str, str]:
    """Processor and Python; never the name of a machine."""
    return {
        "processor": processor_name(),
        "processors": str(count_cores()),
        "python": platform.python_version(),
    }


def _finite(value: float) -> float:
    return float(value) if math.isfinite(value) else math.copysign(1e308, value)
