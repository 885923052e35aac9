"""Given outputs, read whole by a model without a search: log-probabilities and alignments.

Alignments are read in PyTorch, whatever the backend that found the outputs.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lightconv.data.pipeline import Pipeline
from lightconv.data.vocabulary import EOS, PAD
from lightconv.decode.answer import Alignment
from lightconv.decode.backend import Model
from lightconv.decode.options import DecodeConfig, TextOptions
from lightconv.decode.search import Ids, Rows, batch_by_length, normalize, pad_right
from lightconv.decode.translator import check_texts, encode_line, windows
from lightconv.models import Seq2Seq
from lightconv.ops.products import choose, using

# Positions per chunk: logits exist for these only.
CHUNK = 1024
# Bounds of a batch to align: target tokens have scores of all words.
MAX_TOKENS = 1024
MAX_SENTENCES = 64


class ScoredText(NamedTuple):
    """One text: its tokens, EOS at the end, and the log-probability of each."""

    line: int
    text: str
    ids: list[int]
    tokens: list[str]
    logprobs: list[float]
    score: float  # the sum divided by the length penalty, as `translate` scores
    words: int  # EOS not counted

    @property
    def logprob(self) -> float:
        return sum(self.logprobs)

    def plain(self) -> dict[str, Any]:
        names = ("line", "text", "logprob", "score", "words", "tokens", "logprobs")
        return {name: getattr(self, name) for name in names}


@dataclass(eq=False)
class Scorer:
    """A model and the pipeline around it; `config` has the length penalty of scores."""

    model: Model
    pipeline: Pipeline
    config: DecodeConfig = field(default_factory=DecodeConfig)
    options: TextOptions = field(default_factory=TextOptions)

    def score(self, *sides: Iterable[str]) -> list[ScoredText]:
        """The texts, or the targets of sources and targets, in their order."""
        texts = [list(check_texts(side)) for side in sides]
        if len({len(side) for side in texts}) > 1:
            raise ValueError(
                f"{len(texts[0])} sources and {len(texts[1])} targets, expected the same number"
            )
        examples = zip(*texts, strict=True)
        stream = windows(examples, self.options.window, size=lambda texts: sum(map(len, texts)))
        return list(self.score_windows(stream))

    def score_windows(self, stream: Iterable[Sequence[tuple[str, ...]]]) -> Iterator[ScoredText]:
        """The same for windows of (text,) or (source, target), one in memory at a time."""
        target, tokens = len(self.pipeline.config.sides) - 1, self.pipeline.vocabularies().target
        encode = partial(encode_line, self.pipeline)
        first = 1
        for window in stream:
            for line, given in enumerate(window, first):
                if len(given) != target + 1:
                    wanted = "source and target" if target else "one"
                    raise ValueError(f"line {line}: {len(given)} texts, expected {wanted}")
            sides = [
                [encode(side, text, line) for line, text in enumerate(texts, first)]
                for side, texts in enumerate(zip(*window, strict=True))
            ]
            examples = list(zip(*sides, strict=True))
            for place, values in enumerate(score_ids(self.model, examples, self.options)):
                text = window[place][-1]
                ids = [*examples[place][-1], EOS]
                yield ScoredText(
                    line=first + place,
                    text=text,
                    ids=ids,
                    tokens=tokens.decode(ids),
                    logprobs=values,
                    score=normalize(sum(values), len(values), self.config),
                    words=len(self.pipeline.words(target, text).split()),
                )
            first += len(window)


def score_ids(
    model: Model, examples: Sequence[tuple[Ids, ...]], options: TextOptions
) -> list[list[float]]:
    """Log-probabilities of each token of the target and of its EOS, for each example.

    examples  (source, target) or (text,), ids without EOS
    """
    found: list[list[float]] = [[] for _ in examples]
    sides = list(zip(*examples, strict=True))
    device = next(model.parameters()).device
    for rows in batch_by_length(sides, options.max_tokens, options.max_sentences):
        *sources, targets = ([side[row] for row in rows] for side in sides)
        inputs = [pad_right([[*ids, EOS] for ids in side], device) for side in sources]
        inputs.append(pad_right([[EOS, *ids] for ids in targets], device))
        target = pad_right([[*ids, EOS] for ids in targets], device)
        values = token_logprobs(model, inputs, target).tolist()
        for row, ids, line in zip(rows, targets, values, strict=True):
            found[row] = line[: len(ids) + 1]
    return found


def token_logprobs(model: Model, inputs: Sequence[Tensor], target: Tensor) -> Tensor:
    """The log-probability of each target token, in evaluation mode.

    inputs  the arguments of the model: (source [B, S], target_in [B, T]) or (tokens [B, T],)
    target  [B, T] int64, padded on the right
    returns [B, T] float64; zero at padding
    """
    with torch.inference_mode(), using(choose() if target.is_cpu else "default"):
        x = model.features(*inputs).flatten(0, 1)
        flat = target.flatten()
        rows = (flat != PAD).nonzero()[:, 0]
        found = torch.zeros(len(flat), dtype=torch.float64, device=target.device)
        for part in rows.split(CHUNK):
            found[part] = -model.output.nll(x[part], flat[part]).double()
        return found.view(target.shape)


def align(models: Sequence[Seq2Seq], sources: Rows, targets: Rows) -> list[Alignment]:
    """For each pair of ids without EOS, the source token of each target token.

    That is the one to which the last decoder layers attend most, in the mean of the models.
    """
    found: list[Alignment] = [[] for _ in sources]
    for rows in batch_by_length([sources, targets], MAX_TOKENS, MAX_SENTENCES):
        batch = [sources[row] for row in rows], [targets[row] for row in rows]
        attention = torch.stack([_attention(model, *batch) for model in models]).mean(0)
        for row, looks in zip(rows, attention, strict=True):
            # EOS of the source is left out: no word comes from it.
            S, T = len(sources[row]), len(targets[row])
            best = looks[:T, :S].argmax(1).tolist() if S else []
            found[row] = [(s, t) for t, s in enumerate(best)]
    return found


def _attention(model: Seq2Seq, sources: Rows, targets: Rows) -> Tensor:
    """[B, T, S] on the CPU: attention before each target token and EOS."""
    device = next(model.parameters()).device
    source = pad_right([[*ids, EOS] for ids in sources], device)
    # Padding behind the end of a target changes nothing before it.
    read = pad_right([[EOS, *ids] for ids in targets], device)
    with torch.inference_mode():
        state = model.start(model.encode(source), read.shape[1])
        _, _, attention = model.step_attending(read, state)
    return attention.float().cpu()
