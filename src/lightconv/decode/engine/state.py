"""What the engine remembers: encoded sources, and the past of every hypothesis.

A history keeps what the rows of each time wrote, where they wrote it. A hypothesis is a row of a
small table that says which row it was at each time; reordering, repeating and leaving out
hypotheses changes that table and copies nothing else.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from lightconv.decode.engine.builder import Program
from lightconv.ops.memory import POOL


class Source(NamedTuple):
    """Encoded sentences, laid end to end.

    offsets     [B + 1] int64: sentence b is rows offsets[b] .. offsets[b + 1]
    keys_values per decoder layer [rows, 2D], each sentence's as [heads, 2, its rows, D / heads];
                float32; or beside int8 weights int8, each sentence's behind the bytes of its
                scales [heads, 2, its rows]
    longest     rows of the longest sentence
    """

    offsets: Tensor
    keys_values: tuple[Tensor, ...]
    longest: int


class EngineState:
    """N hypotheses after `position` tokens; belongs to one search and one thread.

    ancestors [N, span] int32: the row each was at time t, in column t % span
    sentences [N] int64: the source sentence of each
    histories per memory [ring, slots, width]: time t at t % ring
    """

    def __init__(self, decoder: Program, source: Source | None, batch: int, max_len: int) -> None:
        self.decoder = decoder
        self.source = source
        self.max_len = max_len
        self.position = 0
        self.rings = torch.tensor(
            [max_len if memory.ring is None else memory.ring for memory in decoder.memories]
        )
        self.span = max([1, *self.rings.tolist()])
        self.is_bounded = any(memory.ring is None for memory in decoder.memories)
        self.sentences = torch.arange(batch)
        self.ancestors = torch.zeros(batch, self.span, dtype=torch.int32)
        self.slots = 0
        self.histories: list[Tensor] = []
        self.workspace = torch.empty(0)

    def make_room(self) -> None:
        """Workspace and histories for as many rows as there are now."""
        rows = len(self.sentences)
        if self.workspace.numel() < rows * self.decoder.columns:
            self.workspace = torch.empty(rows * self.decoder.columns)
        if rows <= self.slots:
            return
        grown = []
        for place, (memory, ring) in enumerate(
            zip(self.decoder.memories, self.rings.tolist(), strict=True)
        ):
            new = POOL.empty(torch.Size([ring, rows, memory.width]), torch.float32)
            if self.position:
                filled = min(self.position, ring)
                new[:filled, : self.slots] = self.histories[place][:filled]
            grown.append(new)
        self.histories, self.slots = grown, rows

    def reorder(self, rows: Tensor) -> None:
        """Hypothesis i becomes what hypothesis rows[i] was; rows [N'] int64."""
        self.ancestors = self.ancestors.index_select(0, rows)
        self.sentences = self.sentences.index_select(0, rows)

    def nbytes(self) -> int:
        """Memory of the hypotheses, without the source."""
        return self.ancestors.nbytes + sum(history.nbytes for history in self.histories)
