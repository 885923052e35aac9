"""The two forms in which texts are scored: as words, and as people write them."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple, Self

from lightconv.data.pipeline import Pipeline
from lightconv.data.prepared import Prepared
from lightconv.data.words import Steps
from lightconv.evaluate.bleu import TokenizedBLEU


class Forms(NamedTuple):
    """The same texts twice.

    words  without subwords, a space between words: what tokenised BLEU reads
    plain  detokenised
    """

    words: list[str]
    plain: list[str]

    def for_metric(self, metric: object) -> list[str]:
        """The form that a metric reads."""
        return self.words if isinstance(metric, TokenizedBLEU) else self.plain

    def first(self, count: int | None) -> Self:
        """Some of them."""
        return self._replace(words=self.words[:count], plain=self.plain[:count])


def of_ids(pipeline: Pipeline, outputs: Iterable[Sequence[int]]) -> Forms:
    """The forms of a model's outputs: subwords are joined in both."""
    side = len(pipeline.config.sides) - 1
    found = list(outputs)
    return Forms(
        [pipeline.decode_words(side, ids) for ids in found],
        [_one_line(pipeline.decode(side, ids)) for ids in found],
    )


def of_references(prepared: Prepared, split: str) -> Forms:
    """The forms of what should be said."""
    return of_texts(prepared, prepared.references(split), tokenized=prepared.tokenized)


def of_texts(prepared: Prepared, texts: Sequence[str], *, tokenized: bool = False) -> Forms:
    """The forms of texts of the target side, plain ones or such that are words already.

    Where a model says everything in lower case, references in other cases would punish it for what
    it was told to do: they are lowered too, as `case_field` says in the signature.
    """
    config = prepared.pipeline.config.sides[-1]
    steps = Steps(config)
    words = list(texts) if tokenized else [steps.apply(text) for text in texts]
    plain = [steps.undo(text) for text in texts] if tokenized else list(texts)
    if config.lowercase:
        words, plain = ([text.lower() for text in each] for each in (words, plain))
    return Forms(words, plain)


def case_field(prepared: Prepared) -> dict[str, str]:
    """What a signature says of references that were lowered."""
    return {"refs": "lowered"} if prepared.pipeline.config.sides[-1].lowercase else {}


def _one_line(text: str) -> str:
    return text.replace("\n", " ")
