"""Codes and vocabularies, learned from the counts of words: the text is read once, never kept."""

import itertools
import json
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

from lightconv.data.config import BPEConfig, BytesConfig, PipelineConfig, WordsConfig
from lightconv.data.corpus import Example, Reader
from lightconv.data.subword import BYTE_LETTERS, END, UNIT, Codes, WordPieces, to_letters
from lightconv.data.vocabulary import SPECIAL_TOKENS, SPECIALS, Vocabularies, Vocabulary
from lightconv.data.words import Steps
from lightconv.processes import chunked, spread

# Examples per work item of a process.
CHUNK = 1000
# A pair that occurs once in the whole text is not merged, as in subword-nmt.
RAREST_PAIR = 2
# Codes are learned from the most frequent words only: rarer ones hardly change the merges, and the
# learner takes half a kilobyte for each.
MOST_WORDS = 1 << 19
# Copies of a word in one line given to the learner, which counts words itself.
COPIES = 1000
# Characters that our files cannot hold: such words are unknown.
UNWRITABLE = re.compile(r"[\0\ud800-\udfff]")

Counts = list[Counter[str]]


class Learned(NamedTuple):
    """Codes, shared or one for each side, and the vocabularies."""

    codes: tuple[Codes, ...]
    vocabularies: Vocabularies


def learn(
    config: PipelineConfig,
    read: Reader,
    *,
    processes: int = 1,
    progress: Callable[[str, int], None] = lambda step, done: None,
    given: Codes | None = None,
) -> Learned:
    """Codes and vocabularies of the examples that `read` yields.

    progress  called with ("words", examples so far), then with ("codes", 0)
    given     codes of all sides, instead of learned ones
    """
    counts: Counts = [Counter() for _ in config.sides]
    done = 0
    for size, found in spread(partial(_count, config), chunked(read(), CHUNK), processes):
        for total, count in zip(counts, found, strict=True):
            total.update(count)
        done += size
        progress("words", done)
    if not any(counts):
        raise ValueError("there is no text to learn from, expected at least one word")
    progress("codes", 0)
    if isinstance(config.subword, WordsConfig):
        most, min_count = config.subword.most, config.subword.min_count
        return Learned((), _pair([frequent(each, most, min_count) for each in counts]))
    if isinstance(config.subword, BytesConfig):
        return _learn_bytes(config.subword, counts)
    return _learn_bpe(config.subword, counts, given)


def _count(config: PipelineConfig, examples: list[Example]) -> tuple[int, Counts]:
    """Counts of the units (words; with bytes, pieces of text) of each side."""
    split = UNIT.findall if isinstance(config.subword, BytesConfig) else str.split
    counts: Counts = [Counter() for _ in config.sides]
    sides = [(Steps(side), count) for side, count in zip(config.sides, counts, strict=True)]
    for example in examples:
        if len(example) != len(sides):
            raise ValueError(f"an example has {len(example)} texts, expected {len(sides)}")
        for text, (steps, count) in zip(example, sides, strict=True):
            count.update(split(steps.apply(text)))
    return len(examples), counts


def learn_codes(counts: Counter[str], merges: int, end: str = "") -> Codes:
    """Codes with at most `merges` merges, each the most frequent pair of symbols at its time.

    end  suffix of the last letter of a word
    """
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    rarest = _rarest(counts)
    words = {
        word: count
        for word, count in counts.items()
        if count >= rarest and not UNWRITABLE.search(word)
    }
    symbols = sorted({letter for word in words for letter in word} | {w[-1] + end for w in words})
    if not merges or not symbols:
        return Codes(())
    learner = Tokenizer(models.BPE())
    learner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    options: dict[str, Any] = {"end_of_word_suffix": end} if end else {}
    trainer = trainers.BpeTrainer(
        # A lower bound of the merges: some make a symbol that another one has made.
        vocab_size=len(symbols) + merges,
        min_frequency=RAREST_PAIR,
        # Ties are broken by the order of known symbols, else that of a hash table.
        special_tokens=symbols,
        show_progress=False,
        **options,
    )
    with _one_thread():
        learner.train_from_iterator(_copies(words), trainer)
    found = json.loads(learner.to_str())["model"]["merges"]
    return Codes(tuple((left, right) for left, right in found[:merges]))


def frequent(counts: Counter[str], most: int | None = None, min_count: int = 1) -> Vocabulary:
    """Vocabulary of these tokens, the most frequent first, ties in the order of the strings."""
    words = sorted(
        (-count, token)
        for token, count in counts.items()
        if count >= min_count and token not in SPECIAL_TOKENS and not UNWRITABLE.search(token)
    )
    return Vocabulary.of(token for _, token in words[:most])


def _learn_bpe(config: BPEConfig, counts: Counts, given: Codes | None) -> Learned:
    codes: tuple[Codes, ...] = () if given is None else (given,)
    if not codes:
        grouped = _grouped(counts, config.joint)
        codes = tuple(learn_codes(each, config.merges, END) for each in grouped)
    tokens: Counts = [Counter() for _ in counts]
    for place, (found, units) in enumerate(zip(tokens, counts, strict=True)):
        segment = WordPieces(codes[min(place, len(codes) - 1)]).segment
        for unit, count in units.items():
            for token in segment(unit):
                found[token] += count
    grouped = _grouped(tokens, config.share_vocab)
    return Learned(codes, _pair([frequent(each, config.most) for each in grouped]))


def _learn_bytes(config: BytesConfig, counts: Counts) -> Learned:
    letters: Counts = [Counter() for _ in counts[: 1 if config.joint else None]]
    for place, units in enumerate(counts):
        found = letters[min(place, len(letters) - 1)]
        # Removed one by one: everything twice would not fit into memory.
        for unit in list(units):
            found[to_letters(unit)] += units.pop(unit)
    merges = config.vocab - SPECIALS - len(BYTE_LETTERS)
    codes = tuple(learn_codes(each, merges) for each in letters)
    return Learned(codes, _pair(list(map(_byte_vocabulary, codes))))


def _byte_vocabulary(codes: Codes) -> Vocabulary:
    """All bytes, then the result of each merge."""
    made = (left + right for left, right in codes.merges)
    return Vocabulary.of(dict.fromkeys((*BYTE_LETTERS, *made)))


def _rarest(counts: Counter[str]) -> int:
    """The least count of a word that codes are learned from."""
    words = 0
    for times, number in sorted(Counter(counts.values()).items(), reverse=True):
        words += number
        if words > MOST_WORDS:
            return times + 1
    return 1


def _grouped(counts: Counts, joint: bool) -> Counts:
    return [sum(counts[1:], counts[0])] if joint else counts


def _pair(vocabularies: list[Vocabulary]) -> Vocabularies:
    return Vocabularies(vocabularies[0], vocabularies[-1])


def _copies(counts: dict[str, int]) -> Iterator[str]:
    """Each word as often as it was counted, many to a line."""
    for word, count in counts.items():
        many, rest = divmod(count, COPIES)
        if many:
            yield from itertools.repeat(f"{word} " * COPIES, many)
        yield f"{word} " * rest


@contextmanager
def _one_thread() -> Iterator[None]:
    """Limits tokenizers to one thread: more are slower, and make it warn at every later fork."""
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
