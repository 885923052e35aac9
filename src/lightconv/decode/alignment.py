"""Alignments: the source token to which a decoder layer attends most, for each target token.

The outputs are read once more, whole, in PyTorch: they do not depend on the backend that found
them, and are the same with alignments and without.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from lightconv.data.vocabulary import EOS
from lightconv.decode.search import Rows, batch_by_length, pad_right
from lightconv.models import Seq2Seq

# Pairs of (source token, target token), counted from 0, in the order of the targets.
Alignment = list[tuple[int, int]]

# Bounds of a batch: target tokens have scores of all words.
MAX_TOKENS = 1024
MAX_SENTENCES = 64


def align(
    models: Sequence[Seq2Seq], sources: Rows, targets: Rows, layer: int = -1
) -> list[Alignment]:
    """For each pair of ids without EOS, the source token of each target token.

    models  the mean of their attention decides
    layer   of their decoders
    """
    found: list[Alignment] = [[] for _ in sources]
    for rows in batch_by_length([sources, targets], MAX_TOKENS, MAX_SENTENCES):
        batch = [sources[row] for row in rows], [targets[row] for row in rows]
        attention = torch.stack([_attention(model, *batch, layer) for model in models]).mean(0)
        for row, looks in zip(rows, attention, strict=True):
            # EOS of the source is left out: no word comes from it.
            S, T = len(sources[row]), len(targets[row])
            best = looks[:T, :S].argmax(1).tolist() if S else []
            found[row] = [(s, t) for t, s in enumerate(best)]
    return found


def _attention(model: Seq2Seq, sources: Rows, targets: Rows, layer: int) -> Tensor:
    """[B, T, S] on the CPU: attention before each target token and EOS."""
    device = next(model.parameters()).device
    longest = max(map(len, targets)) + 1
    with torch.inference_mode():
        source = pad_right([[*ids, EOS] for ids in sources], device)
        # Tokens behind the end of a target change nothing before it.
        read = [[EOS, *ids, *[EOS] * (longest - 1 - len(ids))] for ids in targets]
        state = model.start(model.encode(source), longest)
        _, _, attention = model.step_attending(torch.tensor(read, device=device), state, layer)
    return attention.float().cpu()
