"""How much memory a run takes, from shapes alone: nothing is computed."""

from typing import NamedTuple

import torch
from torch import Tensor

from lightconv.models.config import LanguageModelConfig, ModelConfig
from lightconv.models.folder import build_empty
from lightconv.ops.vocabulary import chunk_of
from lightconv.train.config import NesterovConfig, TrainConfig

# Positions in a sentence of the batch that is looked at.
LENGTH = 32
FLOAT = 4


class Memory(NamedTuple):
    """Bytes: parameters, their gradients, the optimiser and the average, what backward needs.

    workspace  what operations hold for a moment, and the allocator afterwards: a third of the
               activations, as measured with models of three sizes
    """

    parameters: int
    gradients: int
    optimizer: int
    activations: int
    workspace: int

    @property
    def total(self) -> int:
        """All of it."""
        return sum(self)


def estimate(model: ModelConfig, train: TrainConfig) -> Memory:
    """The memory of one process with batches of `train.max_tokens` positions."""
    built = build_empty(model).train()
    weights = sum(p.numel() for p in built.parameters()) * FLOAT
    copies = 1 if isinstance(train.optimizer, NesterovConfig) else 2
    copies += train.ema > 0.0
    rows = max(1, train.max_tokens // LENGTH)
    tokens = torch.empty(rows, min(LENGTH, train.max_tokens), dtype=torch.int64, device="meta")
    inputs = (tokens,) if isinstance(model, LanguageModelConfig) else (tokens, tokens)
    saved = _Saved({p.untyped_storage()._cdata for p in built.parameters()})
    with torch.autograd.graph.saved_tensors_hooks(saved.pack, lambda tensor: tensor):
        kept = built.features(*inputs)
    vocab = model.vocab if isinstance(model, LanguageModelConfig) else model.target_vocab
    if model.adaptive is not None:
        vocab = model.adaptive.cutoffs[0]
    activations = saved.bytes // (1 if train.precision == "fp32" else 2)
    # The loss: one chunk of logits and their gradient, and the gradients of what it reads.
    chunk = min(chunk_of(vocab), tokens.numel())
    loss = (2 * chunk * vocab + vocab * model.dim + tokens.numel() * model.dim) * FLOAT
    del kept
    activations += loss
    return Memory(weights, weights, copies * weights, activations, activations // 3)


class _Saved:
    """Counts the storages that a forward pass keeps, each once, parameters not."""

    def __init__(self, known: set[int]) -> None:
        self._known = known
        self._alive: list[Tensor] = []
        self.bytes = 0

    def pack(self, tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in self._known:
            self._known.add(storage._cdata)
            self._alive.append(tensor)  # or its number is given to another one
            self.bytes += storage.nbytes()
        return tensor
