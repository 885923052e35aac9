"""Which source token a target token comes from: where a decoder layer looks most.

The outputs are read once more, whole, in torch: so whatever found them (the engine, in 8 bits, an
ensemble, by chance), they stay the same with alignments and without.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from lightconv.data.batches import BatchPlan
from lightconv.data.vocabulary import EOS
from lightconv.decode.search import Ids, device_of, pad_right
from lightconv.models import Seq2Seq

# Pairs of (source token, target token), counted from 0, in the order of the targets.
Alignment = list[tuple[int, int]]

# Target tokens that are read at once: they have scores of all words.
_TOKENS = 1024


def align(
    models: Sequence[Seq2Seq],
    sources: Sequence[Ids],
    targets: Sequence[Ids],
    layer: int = -1,
) -> list[Alignment]:
    """For each pair of ids without EOS, the source token of each target token.

    models  the mean of their attention counts
    layer   of their decoders
    """
    found: list[Alignment] = [[] for _ in sources]
    if not sources:
        return found
    lengths = [np.array([len(ids) + 1 for ids in side]) for side in (sources, targets)]
    order = BatchPlan(lengths, max_tokens=_TOKENS, max_sentences=64, too_long="alone").by_length()
    for index in range(len(order)):
        rows = [int(row) for row in order[index]]
        some = [sources[row] for row in rows], [targets[row] for row in rows]
        attention = torch.stack([_attention(model, *some, layer) for model in models]).mean(0)
        for row, looks in zip(rows, attention, strict=True):
            # The end of the source says nothing of where a word comes from.
            S, T = len(sources[row]), len(targets[row])
            best = looks[:T, :S].argmax(1).tolist() if S else []
            found[row] = [(s, t) for t, s in enumerate(best)]
    return found


def _attention(
    model: Seq2Seq, sources: Sequence[Ids], targets: Sequence[Ids], layer: int
) -> Tensor:
    """[B, T, S] on the CPU: where the model looks before each target token, EOS after each row."""
    device = device_of(model)
    longest = max(map(len, targets)) + 1
    with torch.inference_mode():
        source = pad_right([[*ids, EOS] for ids in sources], device)
        # What stands behind the end of a target changes nothing before it.
        read = [[EOS, *ids, *[EOS] * (longest - 1 - len(ids))] for ids in targets]
        state = model.start(model.encode(source), longest)
        _, _, attention = model.step_attending(torch.tensor(read, device=device), state, layer)
    return attention.float().cpu()
