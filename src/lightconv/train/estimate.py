"""Estimate of a run's memory from shapes alone, and rows of tables about a run."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from lightconv.console import show_duration
from lightconv.models.config import LanguageModelConfig, ModelConfig
from lightconv.train.allocator import SETTING
from lightconv.train.config import NesterovConfig, TrainConfig

if TYPE_CHECKING:
    from lightconv.train.run import Outcome

# Positions in a sentence of the batch that is estimated.
LENGTH = 32
FLOAT = 4
Rows = Sequence[tuple[str, str]]
# Work of a run beside its updates, by the names of the loop.
OVERHEAD = ("loading", "logging", "checkpoints")


class MemoryEstimate(NamedTuple):
    """Bytes of a training process.

    optimizer    state of the optimiser and moving average
    activations  tensors kept for the backward pass
    workspace    temporary tensors: a third of the activations, as measured with three models
    """

    parameters: int
    gradients: int
    optimizer: int
    activations: int
    workspace: int

    @property
    def total(self) -> int:
        return sum(self)


def estimate(model: ModelConfig, train: TrainConfig) -> MemoryEstimate:
    """The memory of one process with batches of `train.max_tokens` positions."""
    import torch

    from lightconv.models.folder import build_empty
    from lightconv.ops.vocabulary import chunk_of

    built = build_empty(model).train()
    weights = sum(p.numel() for p in built.parameters()) * FLOAT
    copies = 1 if isinstance(train.optimizer, NesterovConfig) else 2
    copies += train.ema > 0.0
    rows = max(1, train.max_tokens // LENGTH)
    tokens = torch.empty(rows, min(LENGTH, train.max_tokens), dtype=torch.int64, device="meta")
    inputs = (tokens,) if isinstance(model, LanguageModelConfig) else (tokens, tokens)
    known = {p.untyped_storage()._cdata for p in built.parameters()}
    saved: dict[int, torch.UntypedStorage] = {}  # alive, or an address would be used again

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in known:
            saved.setdefault(storage._cdata, storage)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        built.features(*inputs)
    vocab = model.vocab if isinstance(model, LanguageModelConfig) else model.target_vocab
    if model.adaptive is not None:
        vocab = model.adaptive.cutoffs[0]
    activations = sum(each.nbytes() for each in saved.values()) // (
        1 if train.precision == "fp32" else 2
    )
    # The loss: one chunk of logits and their gradient, and the gradients of what it reads.
    chunk = min(chunk_of(vocab), tokens.numel())
    loss = (2 * chunk * vocab + vocab * model.dim + tokens.numel() * model.dim) * FLOAT
    activations += loss
    return MemoryEstimate(weights, weights, copies * weights, activations, activations // 3)


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
    """The table before a run.

    recipe_tokens  tokens per update of the recipe before --set
    effective      mean target tokens and batches of an update with this data
    kept           bytes up to which a process keeps freed memory
    """
    devices = "device" if processes == 1 else "devices"
    rows = [
        ("parameters", f"{parameters:,}"),
        ("device", f"{device}, {config.precision}" + (", compiled" if config.compile else "")),
        ("steps", f"{config.max_steps:,}"),
        ("batch", f"at most {config.max_tokens:,} positions on {processes} {devices}"),
        ("effective batch", _effective(config, recipe_tokens, effective)),
    ]
    if kept:
        rows.append(("freed memory", f"is kept up to {kept >> 20:,} MB ({SETTING})"))
    return rows


def _effective(
    config: TrainConfig, recipe_tokens: int, effective: tuple[float, float] | None
) -> str:
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


def memory_rows(memory: MemoryEstimate) -> Rows:
    """Rows of an estimate."""
    parts = [(name, getattr(memory, name)) for name in (*memory._fields, "total")]
    return [(f"memory: {name}", f"{size / 1e6:,.0f} MB") for name, size in parts]


def summary_rows(outcome: "Outcome", model: Path) -> Rows:
    """The table after a run."""
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
    total = max(sum(seconds.values()), 1e-9)
    ranked = sorted(seconds.items(), key=lambda item: -item[1])
    return ", ".join(f"{name} {spent / total:.1%}" for name, spent in ranked)


def _overhead(seconds: dict[str, float]) -> str:
    parts = {name: seconds.get(name, 0.0) for name in OVERHEAD}
    total = max(sum(parts.values()) + seconds.get("updates", 0.0), 1e-9)
    listed = ", ".join(f"{name} {spent / total:.2%}" for name, spent in parts.items())
    return f"{sum(parts.values()) / total:.2%} beside updates ({listed})"


def _show(value: float | None) -> str:
    return "not finite" if value is None else f"{value:.4g}"
