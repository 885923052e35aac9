"""Token batches; nothing here knows a model."""

from lightconv.data.synthetic import BOS, EOS, PAD, SPECIALS, TASKS, UNK, Batch, Synthetic

__all__ = ["BOS", "EOS", "PAD", "SPECIALS", "TASKS", "UNK", "Batch", "Synthetic"]
