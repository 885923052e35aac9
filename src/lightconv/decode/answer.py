"""Answers of a text: the best outputs, as text and as tokens; texts cut into parts that fit."""

import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from lightconv.data.text import SENTENCE_BREAK

# Behind the end of a sentence, in scripts with spaces and without.
_SENTENCE_END = re.compile(r"(?:[.!?…]+[\"'”’»)\]]*(?=\s)|[。！？]+[」』”’）]*)")
_SPACE = re.compile(r"\s+")
# Pairs of (source token, target token), counted from 0, in the order of the targets.
Alignment = list[tuple[int, int]]


class Output(NamedTuple):
    """One hypothesis: its text, its score, its tokens and the log-probability of each."""

    text: str
    score: float
    ids: list[int]
    tokens: list[str]  # with EOS, once for each part of a text that was too long
    logprobs: list[float]
    alignment: Alignment | None = None  # tokens of `Answer.read` and of `tokens`

    def plain(self) -> dict[str, Any]:
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
    """The answer of one text."""

    line: int  # its number, from 1
    source: str
    outputs: list[Output]  # best first; none if the text was empty
    parts: int = 1  # number of parts it was answered in
    seconds: float = 0.0  # time of its batch, or its batches
    sentences: int = 0  # texts, or parts, in its batch; the most of several batches
    read: tuple[str, ...] = ()  # tokens of the text without EOS: alignments refer to them
    error: str = ""  # the reason why a text of a stream has no outputs

    @property
    def text(self) -> str:
        return self.outputs[0].text if self.outputs else ""

    def plain(self) -> dict[str, Any]:
        """For JSON: the best output, all of them if there are several, and the time."""
        found: dict[str, Any] = {"line": self.line, "source": self.source, "text": ""}
        if self.outputs:
            found |= self.outputs[0].plain()
        if self.error:
            found["error"] = self.error
        if len(self.outputs) > 1:
            found["outputs"] = [output.plain() for output in self.outputs]
        if self.outputs and self.outputs[0].alignment is not None:
            found["source_tokens"] = list(self.read)
        return found | {"parts": self.parts, "seconds": self.seconds, "batch": self.sentences}


def join_outputs(
    parts: Sequence[Sequence[Output]], between: str, lengths: Sequence[int]
) -> list[Output]:
    """Outputs of a text from those of its parts, which have `lengths` source tokens.

    The first outputs are joined, then the second ones, and so on; a part that has fewer repeats its
    last one. The score is the mean of the parts' scores.
    """
    joined = []
    for rank in range(max(map(len, parts))):
        chosen = [part[min(rank, len(part) - 1)] for part in parts]
        alignment: Alignment = []
        source = target = 0
        for output, length in zip(chosen, lengths, strict=True):
            alignment += [(source + s, target + t) for s, t in output.alignment or ()]
            source, target = source + length, target + len(output.tokens)
        joined.append(
            Output(
                text=between.join(each.text for each in chosen if each.text),
                score=sum(each.score for each in chosen) / len(chosen),
                ids=[token for each in chosen for token in each.ids],
                tokens=[token for each in chosen for token in each.tokens],
                logprobs=[value for each in chosen for value in each.logprobs],
                alignment=None if chosen[0].alignment is None else alignment,
            )
        )
    return joined


def join_sentences(summary: str) -> str:
    """A summary without the marks between its sentences."""
    return " ".join(word for word in summary.split(" ") if word != SENTENCE_BREAK)


def cut(text: str, fits: Callable[[str], bool]) -> list[str]:
    """Parts in order, each of which `fits`: halves of halves, cut at the ends of sentences.

    Without a sentence end near the middle, a part ends at white space, and without that anywhere.
    One character is never cut.
    """
    text = text.strip()
    if len(text) < 2 or fits(text):
        return [text] if text else []
    middle = len(text) / 2
    place = len(text) // 2
    for kind in (_SENTENCE_END, _SPACE):
        ends = [found.end() for found in kind.finditer(text)]
        near = [end for end in ends if abs(end - middle) <= middle / 2 and 0 < end < len(text)]
        if near:
            place = min(near, key=lambda end: abs(end - middle))
            break
    return [*cut(text[:place], fits), *cut(text[place:], fits)]
