"""What is said for a text: the best outputs, as text and as tokens."""

from collections.abc import Sequence
from typing import Any, NamedTuple


class Output(NamedTuple):
    """One hypothesis: its text, its score, its tokens and the log-probability of each.

    The tokens end with EOS; those of a text that was answered in parts do so once for each part.
    alignment  pairs of (place in the source's tokens, place in `tokens`), if asked for
    """

    text: str
    score: float
    ids: list[int]
    tokens: list[str]
    logprobs: list[float]
    alignment: list[tuple[int, int]] | None = None

    def plain(self) -> dict[str, Any]:
        """For JSON."""
        found = {
            "text": self.text,
            "score": self.score,
            "logprob": sum(self.logprobs),
            "tokens": self.tokens,
            "logprobs": self.logprobs,
        }
        return found if self.alignment is None else found | {"alignment": self.alignment}

    def pairs(self) -> str:
        """The alignment as `0-0 1-2`: source, target."""
        return " ".join(f"{s}-{t}" for s, t in self.alignment or ())


class Answer(NamedTuple):
    """All about one text.

    line       its number, from 1
    outputs    best first; none if the text was empty
    parts      in how many parts it was answered
    seconds    how long its batch took, or its batches
    sentences  how many texts, or parts of such, were in its batch; the most of several
    read       the tokens of the text, parts end to end, without EOS: what alignments count
    """

    line: int
    source: str
    outputs: list[Output]
    parts: int = 1
    seconds: float = 0.0
    sentences: int = 0
    read: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """The best output."""
        return self.outputs[0].text if self.outputs else ""

    def plain(self) -> dict[str, Any]:
        """For JSON: the best output, all of them if there are several, and the time."""
        found: dict[str, Any] = {"line": self.line, "source": self.source, "text": ""}
        if self.outputs:
            found |= self.outputs[0].plain()
        if len(self.outputs) > 1:
            found["outputs"] = [output.plain() for output in self.outputs]
        if self.outputs and self.outputs[0].alignment is not None:
            found["source_tokens"] = list(self.read)
        return found | {"parts": self.parts, "seconds": self.seconds, "batch": self.sentences}


def join_outputs(
    parts: Sequence[Sequence[Output]], between: str, lengths: Sequence[int]
) -> list[Output]:
    """Outputs of the parts of a text as outputs of the text; `lengths` of the parts, in tokens.

    The best belongs to the best, the second to the second, and so on; where a part has fewer, its
    last one again. The score is the mean of the parts' scores.
    """
    count = max(map(len, parts))
    joined = []
    for rank in range(count):
        chosen = [part[min(rank, len(part) - 1)] for part in parts]
        joined.append(
            Output(
                text=between.join(each.text for each in chosen if each.text),
                score=sum(each.score for each in chosen) / len(chosen),
                ids=[place for each in chosen for place in each.ids],
                tokens=[token for each in chosen for token in each.tokens],
                logprobs=[value for each in chosen for value in each.logprobs],
                alignment=_join_alignments(chosen, lengths),
            )
        )
    return joined


def _join_alignments(
    chosen: Sequence[Output], lengths: Sequence[int]
) -> list[tuple[int, int]] | None:
    """Pairs that count the tokens of all parts."""
    joined = []
    before = after = 0
    for output, length in zip(chosen, lengths, strict=True):
        if output.alignment is None:
            return None
        joined += [(before + s, after + t) for s, t in output.alignment]
        before, after = before + length, after + len(output.tokens)
    return joined
