"""Estimate of a run's memory from shapes alone."""

from typing import NamedTuple

from lightconv.models.config import LanguageModelConfig, ModelConfig
from lightconv.train.config import NesterovConfig, TrainConfig

# Positions in a sentence of the batch that is estimated.
LENGTH = 32
FLOAT = 4


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
    halved = 1 if train.precision == "fp32" else 2
    activations = sum(each.nbytes() for each in saved.values()) // halved
    # The loss: one chunk of logits and their gradient, and the gradients of what it reads.
    chunk = min(chunk_of(vocab), tokens.numel())
    activations += (2 * chunk * vocab + vocab * model.dim + tokens.numel() * model.dim) * FLOAT
    return MemoryEstimate(weights, weights, copies * weights, activations, activations // 3)
