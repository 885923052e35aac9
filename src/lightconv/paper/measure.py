"""Measurement of a trained run: size, length of training, scores and decoding speed."""

import math
import platform
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

from lightconv.data.prepared import Prepared
from lightconv.decode.options import TextOptions
from lightconv.device import count_cores, processor_name
from lightconv.evaluate.metrics import Score
from lightconv.evaluate.system import Examples, find_metrics, open_model
from lightconv.models import LanguageModel
from lightconv.paper.results import Measurement, Speed, SplitScore, Training
from lightconv.recipe import count_parameters
from lightconv.train.distributed import Group
from lightconv.train.loop import describe_machine
from lightconv.train.run import Run


def measure(
    path: Path,
    data: Path,
    splits: Sequence[str],
    *,
    device: torch.device,
    limit: int | None = None,
    one_by_one: bool = False,
    ended: bool = True,
) -> Measurement:
    """Decodes and scores splits with the model of a run.

    one_by_one  decode sentences alone, not in batches
    ended       False for a training that diverged, which has no model to score
    """
    run = Run.open(path)
    machine = {**describe_processor(), **describe_machine(device, Group())}
    found = Measurement(
        machine={name: str(value) for name, value in machine.items()},
        parameters=count_parameters(run.model_config),
    )
    if (last := run.checkpoints().latest()) is not None:
        spent = {name: last.values["progress"][name] for name in ("tokens", "seconds")}
        found = replace(found, training=Training(steps=last.step, **spent))
    if not ended:
        return found
    prepared = Prepared.open(data)
    folder, decode = open_model(path, prepared)
    model = folder.load(device)
    options = TextOptions(max_sentences=1) if one_by_one else TextOptions()
    for split in splits:
        examples = Examples(prepared, split, limit)
        if isinstance(model, LanguageModel):
            scores, speed = [examples.evaluate_texts(model)], None
        else:
            metrics = find_metrics(prepared)
            outputs, _, scores = examples.evaluate(model, decode, metrics, options=options)
            speed = Speed(
                split=split,
                lines=len(outputs.hypotheses),
                seconds=outputs.seconds,
                tokens=outputs.tokens,
                engine=outputs.engine,
                sentences=options.max_sentences,
            )
        kept = {**found.scores, split: tuple(map(keep, scores))}
        found = replace(found, scores=kept, speed=speed)
    return found


def keep(score: Score) -> SplitScore:
    """A score for a file; an infinite value becomes the largest number."""
    finite = {name: _finite(part) for name, part in score.parts.items()}
    return SplitScore(**{**score.plain(), "value": _finite(score.value), "parts": finite})


def describe_processor() -> dict[str, str]:
    """Processor and Python; never the name of a machine."""
    cores, python = str(count_cores()), platform.python_version()
    return {"processor": processor_name(), "processors": cores, "python": python}


def _finite(value: float) -> float:
    return float(value) if math.isfinite(value) else math.copysign(1e308, value)
