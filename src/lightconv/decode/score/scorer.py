"""Log-probabilities of given texts, or of targets given their sources: no search.

scorer = Scorer(model, pipeline)
scorer.score(["a text"])                        # a language model
scorer.score(["ein Satz"], ["a sentence"])      # a model of pairs: source, target
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from lightconv.data.batches import BatchPlan
from lightconv.data.pipeline import Pipeline
from lightconv.data.vocabulary import EOS, PAD
from lightconv.decode.config import DecodeConfig
from lightconv.decode.options import TextOptions
from lightconv.decode.search import Ids, device_of, normalize, pad_right
from lightconv.decode.stream import windows
from lightconv.models import LanguageModel, Seq2Seq

# Positions whose words are looked at together: logits exist for these only.
CHUNK = 1024

Example = tuple[Ids, ...]
# One text, or source and target.
Texts = tuple[str, ...]


class Scored(NamedTuple):
    """One text: its tokens, EOS at the end, and the log-probability of each.

    score  what `translate` would say of it: the sum over what its length makes of it
    words  how many words it has, EOS not among them
    """

    line: int
    text: str
    ids: list[int]
    tokens: list[str]
    logprobs: list[float]
    score: float
    words: int

    @property
    def logprob(self) -> float:
        """Of the whole text."""
        return sum(self.logprobs)

    def plain(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "line": self.line,
            "text": self.text,
            "logprob": self.logprob,
            "score": self.score,
            "words": self.words,
            "tokens": self.tokens,
            "logprobs": self.logprobs,
        }


class Scorer:
    """A model and the pipeline around it; `config` has the length penalty of scores."""

    def __init__(
        self,
        model: Seq2Seq | LanguageModel,
        pipeline: Pipeline,
        config: DecodeConfig | None = None,
        options: TextOptions | None = None,
    ) -> None:
        self.model = model
        self.pipeline = pipeline
        self.config = config or DecodeConfig()
        self.options = options or TextOptions()
        self._target = len(pipeline.config.sides) - 1
        self._tokens = pipeline.vocabularies().target

    def score(self, *sides: Iterable[str]) -> list[Scored]:
        """The texts, or the targets, in their order."""
        return list(self.stream(zip(*sides, strict=True)))

    def stream(self, examples: Iterable[Texts]) -> Iterator[Scored]:
        """One text, or source and target, after the other; a window of them is in memory."""
        return self.score_windows(windows(examples, self.options.window, size=_characters))

    def score_windows(self, stream: Iterable[Sequence[Texts]]) -> Iterator[Scored]:
        """The same for windows, each of which is scored before the next one is asked for."""
        done = 0
        for window in stream:
            self._check(window, done + 1)
            columns = [list(side) for side in zip(*window, strict=True)]
            yield from self._score(columns, done + 1)
            done += len(window)

    def _check(self, window: Sequence[Texts], first: int) -> None:
        count = self._target + 1
        for number, texts in enumerate(window, first):
            if len(texts) != count:
                raise ValueError(
                    f"line {number}: {len(texts)} texts, expected "
                    f"{'source and target' if count == 2 else 'one'}"
                )

    def _score(self, columns: Sequence[list[str]], first: int) -> Iterator[Scored]:
        encoded = [self._encode(side, texts, first) for side, texts in enumerate(columns)]
        examples: list[Example] = list(zip(*encoded, strict=True))
        for place, values in enumerate(score_ids(self.model, examples, self.options)):
            text = columns[-1][place]
            ids = [*examples[place][-1], EOS]
            yield Scored(
                line=first + place,
                text=text,
                ids=ids,
                tokens=self._tokens.decode(ids),
                logprobs=values,
                score=normalize(sum(values), len(values), self.config),
                words=len(self.pipeline.words(self._target, text).split()),
            )

    def _encode(self, side: int, texts: list[str], first: int) -> list[list[int]]:
        found = []
        for number, text in enumerate(texts, first):
            try:
                found += self.pipeline.encode(side, [text])
            except ValueError as error:
                raise ValueError(f"line {number}: {error}") from None
        return found


def score_ids(
    model: Seq2Seq | LanguageModel, examples: Sequence[Example], options: TextOptions
) -> list[list[float]]:
    """For each example, (source, target) or (text,) without EOS, the log-probabilities.

    One for each token of the target or the text, and one for its EOS.
    """
    if not examples:
        return []
    found: list[list[float]] = [[] for _ in examples]
    device = device_of(model)
    order = BatchPlan(
        [np.array([len(ids) + 1 for ids in side]) for side in zip(*examples, strict=True)],
        max_tokens=options.max_tokens,
        max_sentences=options.max_sentences,
        too_long="alone",
    ).by_length()
    for index in range(len(order)):
        rows = [int(row) for row in order[index]]
        *sources, targets = zip(*(examples[row] for row in rows), strict=True)
        inputs = [pad_right([[*ids, EOS] for ids in side], device) for side in sources]
        inputs.append(pad_right([[EOS, *ids] for ids in targets], device))
        target = pad_right([[*ids, EOS] for ids in targets], device)
        values = token_logprobs(model, inputs, target).tolist()
        for row, ids, line in zip(rows, targets, values, strict=True):
            found[row] = line[: len(ids) + 1]
    return found


def token_logprobs(
    model: Seq2Seq | LanguageModel, inputs: Sequence[Tensor], target: Tensor
) -> Tensor:
    """The log-probability of each target token, in evaluation mode.

    inputs  the arguments of the model: (source [B, S], target_in [B, T]) or (tokens [B, T],)
    target  [B, T] int64, padded on the right
    returns [B, T] float64; zero at padding
    """
    with torch.inference_mode():
        x = model.features(*inputs).flatten(0, 1)
        flat = target.flatten()
        rows = (flat != PAD).nonzero()[:, 0]
        found = torch.zeros(len(flat), dtype=torch.float64, device=target.device)
        for part in rows.split(CHUNK):
            found[part] = -model.output.nll(x[part], flat[part]).double()
        return found.view(target.shape)


def _characters(texts: Texts) -> int:
    return sum(map(len, texts))
