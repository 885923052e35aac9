"""What a trained run is worth: its size, what training took, its scores, how fast it decodes."""

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

from lightconv.data.prepared import Prepared
from lightconv.decode.options import TextOptions
from lightconv.evaluate.signature import Score
from lightconv.evaluate.system import (
    Outputs,
    evaluate_pairs,
    evaluate_texts,
    find_metrics,
    open_model,
)
from lightconv.models import LanguageModel
from lightconv.paper.machine import describe_processor
from lightconv.paper.params import total
from lightconv.paper.results import Measured, Scored, Speed, Training
from lightconv.train.group import Group
from lightconv.train.run import Run, describe_machine


def measure(
    run: Path,
    data: Path,
    splits: Sequence[str],
    *,
    device: torch.device,
    limit: int | None = None,
    one_by_one: bool = False,
    ended: bool = True,
) -> Measured:
    """Decodes and scores the splits.

    one_by_one  sentences are decoded alone, not in batches
    ended       False for a training that diverged, which has no model to score
    """
    machine = {name: str(value) for name, value in describe_machine(device, Group()).items()}
    found = Measured(
        machine={**describe_processor(), **machine},
        parameters=total(Run.open(run).model_config),
        training=read_training(run),
    )
    if not ended:
        return found
    prepared = Prepared.open(data)
    folder, decode = open_model(run, prepared)
    model = folder.load(device)
    scores: dict[str, tuple[Scored, ...]] = {}
    speed = None
    options = TextOptions(max_sentences=1) if one_by_one else TextOptions()
    for split in splits:
        if isinstance(model, LanguageModel):
            scores[split] = (keep(evaluate_texts(model, prepared, split, most=limit)),)
            continue
        metrics = find_metrics(prepared)
        outputs, _, of_split = evaluate_pairs(
            model, prepared, split, decode, metrics, most=limit, options=options
        )
        scores[split] = tuple(map(keep, of_split))
        speed = read_speed(split, outputs, options)
    return replace(found, scores=scores, speed=speed)


def keep(score: Score) -> Scored:
    """A score as a file has it; what is not finite becomes the largest number."""
    finite = {name: _finite(part) for name, part in score.parts.items()}
    return Scored(
        metric=score.signature.name,
        value=_finite(score.value),
        parts=finite,
        signature=str(score.signature),
    )


def read_training(run: Path) -> Training | None:
    """What the last checkpoint says of time and tokens, all resumptions together."""
    found = Run.open(run).checkpoints().latest()
    if found is None:
        return None
    progress = found.values["progress"]
    return Training(steps=found.step, tokens=progress["tokens"], seconds=progress["seconds"])


def read_speed(split: str, outputs: Outputs, options: TextOptions) -> Speed:
    """How fast these outputs were made."""
    return Speed(
        split=split,
        lines=len(outputs.hypotheses),
        seconds=outputs.seconds,
        tokens=outputs.tokens,
        engine=outputs.engine,
        sentences=options.max_sentences,
    )


def _finite(value: float) -> float:
    return float(value) if math.isfinite(value) else math.copysign(1e308, value)
