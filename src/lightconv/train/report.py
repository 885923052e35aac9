"""What a run is before it begins, and what it was when it has ended: rows for a table."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from lightconv.train.allocator import SETTING
from lightconv.train.config import TrainConfig

if TYPE_CHECKING:
    from lightconv.train.estimate import Memory
    from lightconv.train.runner import Outcome

Rows = Sequence[tuple[str, str]]
# What a run does beside its updates, by the names of the loop.
OVERHEAD = ("loading", "logging", "checkpoints")


def plan_rows(
    config: TrainConfig,
    *,
    parameters: int,
    device: str,
    recipe_tokens: int,
    effective: tuple[float, float] | None = None,
    processes: int = 1,
    kept: int = 0,
) -> Rows:
    """What will be done.

    recipe_tokens  tokens per update of the recipe before anything in it was set
    effective      what the data makes of it: mean target tokens and batches of an update
    kept           bytes up to which a process keeps freed memory
    """
    rows = [
        ("parameters", f"{parameters:,}"),
        ("device", f"{device}, {config.precision}" + (", compiled" if config.compile else "")),
        ("steps", f"{config.max_steps:,}"),
        ("batch", f"at most {config.max_tokens:,} positions on {_count(processes, 'device')}"),
        ("effective batch", _effective(config, recipe_tokens, effective)),
    ]
    if kept:
        rows.append(("freed memory", f"is kept up to {kept >> 20:,} MB ({SETTING})"))
    return rows


def _effective(
    config: TrainConfig, recipe_tokens: int, effective: tuple[float, float] | None
) -> str:
    """Target tokens of an update, against the recipe's."""
    if effective is None:
        tokens: float = config.tokens_per_update
        text = f"{tokens:,} target tokens by accumulation"
    else:
        tokens, batches = effective
        text = f"{tokens:,.0f} target tokens in {batches:,.1f} batches on average"
        asked = config.tokens_per_update
        if tokens > 1.25 * asked and batches < 1.5:
            text += (
                f", as one batch has more than train.tokens_per_update={asked}: lower "
                f"train.max_tokens={config.max_tokens}"
            )
    text += f"; the recipe has {recipe_tokens:,}"
    share = tokens / recipe_tokens
    if not 0.8 <= share <= 1.25:
        text += f" ({share:.2g} times): consider another learning rate"
    return text


def memory_rows(memory: "Memory") -> Rows:
    """The estimate, part by part."""
    parts = [(name, getattr(memory, name)) for name in (*memory._fields, "total")]
    return [(f"memory: {name}", f"{size / 1e6:,.0f} MB") for name, size in parts]


def summary_rows(outcome: "Outcome", model: Path) -> Rows:
    """What came out."""
    from lightconv.train.live import show_duration

    progress = outcome.progress
    seconds = sum(progress.seconds.values())
    rows = [
        ("steps", f"{outcome.step:,}"),
        ("target tokens", f"{progress.tokens:,}"),
        ("time", f"{show_duration(seconds)} ({_shares(progress.seconds)})"),
        ("overhead", _overhead(progress.seconds)),
        ("tokens/s", f"{progress.tokens / max(seconds, 1e-9):,.0f}"),
    ]
    if outcome.skipped:
        rows.append(("updates left out", f"{outcome.skipped} with a gradient that is not finite"))
    train = [entry for entry in outcome.entries if entry.get("kind") == "train"]
    if train:
        rows.append(("last loss", _show(train[-1]["loss"])))
    valid = {entry["step"]: entry for entry in outcome.entries if entry.get("kind") == "valid"}
    for name, step in (("last validation", outcome.step), ("best validation", progress.best_step)):
        if step in valid:
            entry = valid[step]
            metrics = "".join(f", {k} {_show(v)}" for k, v in entry.get("metric", {}).items())
            text = f"loss {_show(entry['loss'])}, perplexity {_show(entry['perplexity'])}{metrics}"
            rows.append((name, f"{text} (step {step:,})"))
    if len(outcome.averaged) > 1:
        rows.append(("averaged", f"steps {', '.join(map(str, outcome.averaged))}"))
    return [*rows, ("model", str(model))]


def _shares(seconds: dict[str, float]) -> str:
    """Where time went, the most first."""
    total = max(sum(seconds.values()), 1e-9)
    ranked = sorted(seconds.items(), key=lambda item: -item[1])
    return ", ".join(f"{name} {spent / total:.1%}" for name, spent in ranked)


def _overhead(seconds: dict[str, float]) -> str:
    """What loading, logging and checkpoints cost beside the updates; validation is work."""
    parts = {name: seconds.get(name, 0.0) for name in OVERHEAD}
    total = max(sum(parts.values()) + seconds.get("updates", 0.0), 1e-9)
    listed = ", ".join(f"{name} {spent / total:.2%}" for name, spent in parts.items())
    return f"{sum(parts.values()) / total:.2%} beside updates ({listed})"


def _show(value: float | None) -> str:
    return "not finite" if value is None else f"{value:.4g}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
