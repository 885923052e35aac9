"""What a pipeline learns from training text: codes and vocabularies.

Everything is learned from how often each word stands in the text, so the text is read once and
never kept.
"""

import itertools
import json
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple, Protocol

from lightconv.data.codes import END, Codes
from lightconv.data.config import BPEConfig, BytesConfig, PipelineConfig, WordsConfig
from lightconv.data.corpus import Example, Reader
from lightconv.data.subword import (
    BYTE_LETTERS,
    BytePieces,
    WordPieces,
    to_letters,
)
from lightconv.data.vocabulary import SPECIAL_TOKENS, SPECIALS, Vocabularies, Vocabulary
from lightconv.data.words import Steps
from lightconv.processes import chunked, spread

# Examples that a process gets at once.
CHUNK = 1000
# A pair that stands once in all the text is not merged, as in subword-nmt.
RAREST_PAIR = 2
# Codes are learned from so many words at most, the most frequent: rarer ones hardly change what is
# merged, and the learner takes half a kilobyte for each.
MOST_WORDS = 1 << 19
# Copies of a word in one line given to the learner, which counts words by itself.
COPIES = 1000

# What no file of ours can hold: such words are unknown.
UNWRITABLE = re.compile(r"[\0\ud800-\udfff]")


class Progress(Protocol):
    """Told how many examples have been read so far, and then that codes are learned."""

    def __call__(self, step: str, done: int) -> None:
        """`step` is "words" or "codes"."""


class Learned(NamedTuple):
    """One code for each side that has its own, and the vocabularies."""

    codes: tuple[Codes, ...]
    vocabularies: Vocabularies


def learn(
    config: PipelineConfig,
    read: Reader,
    *,
    processes: int,
    progress: Progress | None,
    given: Codes | None = None,
) -> Learned:
    """Codes and vocabularies of the examples that `read` yields.

    given  codes for all sides, in place of codes that are learned
    """
    counts = count_units(config, read, processes=processes, progress=progress)
    if not any(counts):
        raise ValueError("there is no text to learn from, expected at least one word")
    if progress is not None:
        progress("codes", 0)
    if given is not None and isinstance(config.subword, BPEConfig):
        return _with_tokens(config.subword, (given,), counts)
    return LEARNERS[config.subword.kind](config.subword, counts)


def count_units(
    config: PipelineConfig, read: Reader, *, processes: int = 1, progress: Progress | None = None
) -> list[Counter[str]]:
    """How often each unit (a word, with bytes a piece of text) stands in the text of each side."""
    totals: list[Counter[str]] = [Counter() for _ in config.sides]
    done = 0
    for size, counts in spread(partial(_count, config), chunked(read(), CHUNK), processes):
        for total, count in zip(totals, counts, strict=True):
            total.update(count)
        done += size
        if progress is not None:
            progress("words", done)
    return totals


def _count(config: PipelineConfig, examples: list[Example]) -> tuple[int, list[Counter[str]]]:
    split = BytePieces(Codes([])).split if isinstance(config.subword, BytesConfig) else str.split
    counts: list[Counter[str]] = [Counter() for _ in config.sides]
    sides = [(Steps(side), count) for side, count in zip(config.sides, counts, strict=True)]
    for example in examples:
        if len(example) != len(sides):
            raise ValueError(f"an example has {len(example)} texts, expected {len(sides)}")
        for text, (steps, count) in zip(example, sides, strict=True):
            count.update(split(steps.apply(text)))
    return len(examples), counts


def learn_codes(counts: Counter[str], merges: int, end: str = "") -> Codes:
    """Codes of at most that many merges; `end` marks the last letter of a word.

    The most frequent pair of symbols is merged, then the most frequent of what there is now, ...
    """
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    rarest = _rarest(counts)
    words = {
        word: count
        for word, count in counts.items()
        if count >= rarest and not UNWRITABLE.search(word)
    }
    letters = {letter for word in words for letter in word}
    ends = {word[-1] + end for word in words}
    symbols = sorted(letters | ends)
    if not merges or not symbols:
        return Codes([])
    learner = Tokenizer(models.BPE())
    learner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    options: dict[str, Any] = {"end_of_word_suffix": end} if end else {}
    trainer = trainers.BpeTrainer(
        # Some merges make what another one has made, so the size says only how many there are at
        # least.
        vocab_size=len(symbols) + merges,
        min_frequency=RAREST_PAIR,
        # It breaks ties by the order in which symbols become known to it, which would be that of a
        # hash table.
        special_tokens=symbols,
        show_progress=False,
        **options,
    )
    with _one_thread():
        learner.train_from_iterator(_copies(words), trainer)
    found = json.loads(learner.to_str())["model"]["merges"]
    return Codes((left, right) for left, right in found[:merges])


def frequent(counts: Counter[str], most: int | None = None, min_count: int = 1) -> Vocabulary:
    """The vocabulary of these tokens, the most frequent first, ties in the order of the strings."""
    words = sorted(
        (-count, token)
        for token, count in counts.items()
        if count >= min_count and token not in SPECIAL_TOKENS and not UNWRITABLE.search(token)
    )
    return Vocabulary.of(token for _, token in words[:most])


def byte_vocabulary(codes: Codes) -> Vocabulary:
    """All bytes, then what each merge makes, in order."""
    made = (left + right for left, right in codes.merges)
    return Vocabulary.of(dict.fromkeys((*BYTE_LETTERS, *made)))


def _learn_words(config: WordsConfig, counts: list[Counter[str]]) -> Learned:
    return Learned((), _pair([frequent(each, config.most, config.min_count) for each in counts]))


def _learn_bpe(config: BPEConfig, counts: list[Counter[str]]) -> Learned:
    codes = tuple(learn_codes(each, config.merges, END) for each in _grouped(counts, config.joint))
    return _with_tokens(config, codes, counts)


def _with_tokens(
    config: BPEConfig, codes: tuple[Codes, ...], counts: list[Counter[str]]
) -> Learned:
    """Codes, and vocabularies of what they make of the words."""
    tokens: list[Counter[str]] = [Counter() for _ in counts]
    for place, (found, units) in enumerate(zip(tokens, counts, strict=True)):
        segment = WordPieces(codes[min(place, len(codes) - 1)]).segment
        for unit, count in units.items():
            for token in segment(unit):
                found[token] += count
    grouped = _grouped(tokens, config.share_vocab)
    return Learned(codes, _pair([frequent(each, config.most) for each in grouped]))


def _learn_bytes(config: BytesConfig, counts: list[Counter[str]]) -> Learned:
    letters: list[Counter[str]] = [Counter() for _ in counts[: 1 if config.joint else None]]
    for place, units in enumerate(counts):
        found = letters[min(place, len(letters) - 1)]
        # Taken out one by one: there is no room for everything twice.
        for unit in list(units):
            found[to_letters(unit)] += units.pop(unit)
    merges = config.vocab - SPECIALS - len(BYTE_LETTERS)
    codes = tuple(learn_codes(each, merges) for each in letters)
    return Learned(codes, _pair([byte_vocabulary(each) for each in codes]))


def _rarest(counts: Counter[str]) -> int:
    """How often a word must stand in the text for codes to be learned from it."""
    if len(counts) <= MOST_WORDS:
        return 1
    words = 0
    for times, number in sorted(Counter(counts.values()).items(), reverse=True):
        words += number
        if words > MOST_WORDS:
            return times + 1
    return 1


def _grouped(counts: list[Counter[str]], joint: bool) -> list[Counter[str]]:
    """One for all sides, or one for each."""
    return [sum(counts[1:], counts[0])] if joint else counts


def _pair(vocabularies: list[Vocabulary]) -> Vocabularies:
    return Vocabularies(vocabularies[0], vocabularies[-1])


LEARNERS: dict[str, Callable[[Any, list[Counter[str]]], Learned]] = {
    "words": _learn_words,
    "bpe": _learn_bpe,
    "bytes": _learn_bytes,
}


def _copies(counts: dict[str, int]) -> Iterator[str]:
    """Each word as often as it was counted, many to a line."""
    for word, count in counts.items():
        many, rest = divmod(count, COPIES)
        if many:
            line = f"{word} " * COPIES
            yield from itertools.repeat(line, many)
        yield f"{word} " * rest


@contextmanager
def _one_thread() -> Iterator[None]:
    """The learner with one thread: more take longer, and let it complain of every later fork."""
    name = "TOKENIZERS_PARALLELISM"
    before = os.environ.get(name)
    os.environ[name] = "false"
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before
