"""Codes and vocabularies, learned from the counts of words: the text is read once, never kept."""

import json
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import chain, repeat
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from lightconv.console import Display
from lightconv.data.config import BPEConfig, BytesConfig, WordsConfig
from lightconv.data.subword import BYTE_LETTERS, END, UNIT, Codes, WordPieces, to_letters
from lightconv.data.vocabulary import SPECIAL_TOKENS, SPECIALS, Vocabularies, Vocabulary
from lightconv.processes import spread

# A work item of a process has at most so many rows, and about so many characters or bytes.
MOST_ROWS = 1000
MOST_CHARACTERS = 1 << 20
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
Row = TypeVar("Row", tuple[str, ...], tuple[bytes, ...])


class Learned(NamedTuple):
    """Codes, shared or one for each side, and the vocabularies."""

    codes: tuple[Codes, ...]
    vocabularies: Vocabularies


def learn(
    config: BytesConfig | BPEConfig | WordsConfig,
    blocks: Iterable[tuple[bytes, ...]],
    *,
    processes: int = 1,
    display: Display,
    total: int | None = None,
    given: Codes | None = None,
) -> Learned:
    """Codes and vocabularies of blocks of lines of words, a block for each side.

    given  codes for all sides, instead of learned ones
    """
    counts: Counts = []
    done = 0
    for lines, found in spread(partial(_count, config.kind), blocks, processes):
        counts = counts or [Counter() for _ in found]
        for sum_, part in zip(counts, found, strict=True):
            sum_.update(part)
        done += lines
        display.show("counting words", done, total)
    if not any(counts):
        raise ValueError("there is no text to learn from, expected at least one word")
    display.show("learning the vocabulary")
    codes: tuple[Codes, ...] = ()
    if isinstance(config, WordsConfig):
        vocabularies = [frequent(each, config.most, config.min_count) for each in counts]
    elif isinstance(config, BytesConfig):
        codes, vocabularies = _learn_bytes(config, counts)
    else:
        codes, vocabularies = _learn_bpe(config, counts, given)
    display.end()
    return Learned(codes, Vocabularies(vocabularies[0], vocabularies[-1]))


def _count(kind: str, block: tuple[bytes, ...]) -> tuple[int, Counts]:
    counts = []
    for side in block:
        text = side.decode()
        lines = map(UNIT.findall, text.split("\n")) if kind == "bytes" else [text.split()]
        counts.append(Counter(chain.from_iterable(lines)))
    return block[0].count(b"\n"), counts


def read_blocks(paths: Sequence[Path]) -> Iterator[tuple[bytes, ...]]:
    """Work items: the same lines of each file."""
    with ExitStack() as stack:
        files = [stack.enter_context(path.open("rb")) for path in paths]
        for piece in pieces(zip(*files, strict=True)):
            yield tuple(map(b"".join, zip(*piece, strict=True)))


def pieces(rows: Iterable[Row]) -> Iterator[list[Row]]:
    """Rows in lists that one process should have in memory at a time."""
    piece: list[Row] = []
    size = 0
    for row in rows:
        piece.append(row)
        size += sum(map(len, row))
        if len(piece) >= MOST_ROWS or size >= MOST_CHARACTERS:
            yield piece
            piece, size = [], 0
    if piece:
        yield piece


def learn_codes(counts: Counter[str], merges: int, end: str = "") -> Codes:
    """At most `merges` merges of the most frequent pair; `end` is added to the end of words."""
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    rarer = sorted(counts.values(), reverse=True)[MOST_WORDS : MOST_WORDS + 1]
    rarest = rarer[0] + 1 if rarer else 1
    words = {w: n for w, n in counts.items() if n >= rarest and not UNWRITABLE.search(w)}
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
    # One thread: more are slower, and make tokenizers warn at every later fork.
    name = "TOKENIZERS_PARALLELISM"
    before = {name: os.environ.pop(name)} if name in os.environ else {}
    os.environ[name] = "false"
    try:
        learner.train_from_iterator(_copies(words), trainer)
    finally:
        del os.environ[name]
        os.environ.update(before)
    found = json.loads(learner.to_str())["model"]["merges"]
    return Codes(tuple((left, right) for left, right in found[:merges]))


def frequent(counts: Counter[str], most: int | None = None, min_count: int = 1) -> Vocabulary:
    """The vocabulary of tokens, the most frequent first, ties in the order of the strings."""
    words = sorted(
        (-count, token)
        for token, count in counts.items()
        if count >= min_count and token not in SPECIAL_TOKENS and not UNWRITABLE.search(token)
    )
    return Vocabulary.of(token for _, token in words[:most])


def _learn_bpe(
    config: BPEConfig, counts: Counts, given: Codes | None
) -> tuple[tuple[Codes, ...], list[Vocabulary]]:
    learned = (learn_codes(each, config.merges, END) for each in _grouped(counts, config.joint))
    codes = tuple(learned) if given is None else (given,)
    tokens: Counts = [Counter() for _ in counts]
    for place, (found, units) in enumerate(zip(tokens, counts, strict=True)):
        segment = WordPieces(codes[min(place, len(codes) - 1)]).segment
        for unit, count in units.items():
            for token in segment(unit):
                found[token] += count
    return codes, [frequent(each, config.most) for each in _grouped(tokens, config.share_vocab)]


def _learn_bytes(config: BytesConfig, counts: Counts) -> tuple[tuple[Codes, ...], list[Vocabulary]]:
    letters: Counts = [Counter() for _ in counts[: 1 if config.joint else None]]
    for place, units in enumerate(counts):
        found = letters[min(place, len(letters) - 1)]
        # Removed one by one: everything twice would not fit into memory.
        for unit in list(units):
            found[to_letters(unit)] += units.pop(unit)
    merges = config.vocab - SPECIALS - len(BYTE_LETTERS)
    codes = tuple(learn_codes(each, merges) for each in letters)
    # All bytes, then the result of each merge.
    tokens = [dict.fromkeys((*BYTE_LETTERS, *map("".join, each.merges))) for each in codes]
    return codes, list(map(Vocabulary.of, tokens))


def _grouped(counts: Counts, joint: bool) -> Counts:
    return [sum(counts[1:], counts[0])] if joint else counts


def _copies(counts: dict[str, int]) -> Iterator[str]:
    for word, count in counts.items():
        many, rest = divmod(count, COPIES)
        if many:
            yield from repeat(f"{word} " * COPIES, many)
        yield f"{word} " * rest
