"""Subwords: whole words, BPE of words, BPE of bytes; files of codes; codes that are learned.

Words lose runs of white space, and tokens outside the vocabulary; bytes restore every text. Codes
and vocabularies are learned from the counts of words: the text is read once, never kept.
"""

import re
from bisect import insort
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from heapq import heappop, heappush
from itertools import chain, islice, pairwise
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar

from lightconv.console import Display
from lightconv.data.config import BPEConfig, BytesConfig, WordsConfig
from lightconv.data.text import read_list
from lightconv.data.vocabulary import SPECIAL_TOKENS, SPECIALS, Vocabularies, Vocabulary
from lightconv.processes import spread

# A token with this end is continued by the next one.
CONTINUES = "@@"
# Marks the end of a word: a suffix of its last letter (0.2), or a symbol after it (0.1).
END = "</w>"
# Files of a model folder: one for both languages, or one each.
SHARED_CODES = "codes.txt"
PAIR_CODES = ("codes.source.txt", "codes.target.txt")
# Ten times the paper's largest.
MOST_CODES = 1 << 19

_PAIR = re.compile(r"([^ ]+) ([^ ]+)")
_FASTBPE = re.compile(r"([^ ]+) ([^ ]+) [0-9]+")
_HEADER = re.compile(r"#version: *(0\.[12])(\.0)* *")
_SURROGATE = re.compile(r"[\ud800-\udfff]")


@dataclass(frozen=True)
class Codes:
    """Merges of byte pair encoding, the most important first, as subword-nmt writes them.

    Its version 0.1 and the three columns of fastBPE are read too.
    """

    merges: tuple[tuple[str, str], ...]
    version: Literal["0.1", "0.2"] = "0.2"

    def to_text(self) -> str:
        pairs = "".join(f"{left} {right}\n" for left, right in self.merges)
        return f"#version: {self.version}\n{pairs}"

    @classmethod
    def load(cls, path: Path) -> "Codes":
        """Reads an untrusted file of codes."""
        lines = [line.strip("\r ") for line in read_list(path, MOST_CODES)]
        if header := _HEADER.fullmatch(lines[0]):
            version, pattern, first = header[1], _PAIR, 1
        elif lines[0].startswith("#version:"):
            raise ValueError(f"{path}: {lines[0][:40]!r}, expected #version: 0.2 or 0.1")
        elif _FASTBPE.fullmatch(lines[0]):
            version, pattern, first = "0.2", _FASTBPE, 0
        else:
            version, pattern, first = "0.1", _PAIR, 0
        merges = []
        for number, line in enumerate(lines[first:], first + 1):
            pair = pattern.fullmatch(line)
            if pair is None:
                raise ValueError(
                    f"{path}, line {number}: {line[:80]!r}, expected two symbols of BPE codes"
                )
            merges.append((pair[1], pair[2]))
        return cls(tuple(merges), "0.1" if version == "0.1" else "0.2")


class WholeWords:
    """Each word is a token: `split` gives the units of a text, `segment` the tokens of a unit."""

    def split(self, text: str) -> list[str]:
        return text.split()

    def segment(self, unit: str) -> list[str]:
        return [unit]

    def join(self, tokens: Sequence[str]) -> str:
        return " ".join(tokens)


class WordPieces(WholeWords):
    """BPE of words: `un@@ believ@@ able`; a word that itself ends with @@ is not restored."""

    def __init__(self, codes: Codes) -> None:
        # The last symbol is the last letter and END in 0.2; in 0.1 a further letter makes it END.
        self._last = END[0] if codes.version == "0.1" else ""
        self._model = _bpe_model(codes, END.removeprefix(self._last))

    def segment(self, unit: str) -> list[str]:
        *pieces, last = _cut(self._model, unit, self._last)
        return [*(piece + CONTINUES for piece in pieces), last]

    def join(self, tokens: Sequence[str]) -> str:
        text = "".join(f"{token} " for token in tokens).replace(f"{CONTINUES} ", "")
        return text.removesuffix(" ")


# As in GPT-2: a printable character of Latin-1 stands for its own byte, the others get those from
# U+0100 on.
_PRINTABLE = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
_OTHERS = iter(range(0x100, 0x200))
BYTE_LETTERS = "".join(chr(b if b in _PRINTABLE else next(_OTHERS)) for b in range(0x100))
_LETTER_OF = dict(enumerate(BYTE_LETTERS))
_BYTE_OF = {ord(letter): byte for byte, letter in enumerate(BYTE_LETTERS)}

# Punctuation, with digits: ASCII, general, of Chinese and Japanese, and their wide forms.
_MARKS = r"\x00-@\[-`{-\x7f\u2010-\u205e\u3001-\u3020\uff01-\uff20"
# A word, a number or punctuation, each with the space before it, or other white space: no token
# reaches from one word into the next. Bounded, so that each unit costs little.
UNIT = re.compile(
    rf" ?'?[^\s{_MARKS}]{{1,64}}"
    r"| ?[0-9]{1,16}"
    rf"| ?(?:(?![0-9\s])[{_MARKS}]){{1,16}}"
    r"|\s{1,16}(?= )|\s{1,16}"
)


class BytePieces(WholeWords):
    """BPE of UTF-8 bytes: restores any text."""

    def __init__(self, codes: Codes) -> None:
        self._model = _bpe_model(codes)

    def split(self, text: str) -> list[str]:
        return UNIT.findall(text)

    def segment(self, unit: str) -> list[str]:
        return _cut(self._model, to_letters(unit))

    def join(self, tokens: Sequence[str]) -> str:
        """The text of the bytes; invalid UTF-8 becomes U+FFFD."""
        return "".join(tokens).translate(_BYTE_OF).encode("latin-1").decode(errors="replace")


def to_letters(text: str) -> str:
    """The letters of `BYTE_LETTERS` for the UTF-8 bytes of a text."""
    try:
        data = text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(
            f"character {text[error.start]!r} cannot be written as UTF-8, expected text without "
            "lone surrogates"
        ) from None
    return data.decode("latin-1").translate(_LETTER_OF)


def _bpe_model(codes: Codes, end: str = "") -> Any:
    """A model of tokenizers. It merges place by place, subword-nmt all places of a pair at once:
    the same unless a merge stands before those that make its parts, as no learner writes it.
    """
    from tokenizers.models import BPE

    merges = list(dict.fromkeys(codes.merges))  # of a merge listed twice the first counts
    symbols = dict.fromkeys(part for left, right in merges for part in (left, right, left + right))
    # No symbol holds a space: unknown letters stay apart and are never merged.
    vocab = {symbol: place for place, symbol in enumerate((" ", *symbols))}
    options = {"end_of_word_suffix": end} if end else {}
    return BPE(vocab, merges, unk_token=" ", cache_capacity=0, **options)


def _cut(model: Any, text: str, last: str = "") -> list[str]:
    """Pieces of a text, by the offsets of its tokens; `last` is a letter added for the model."""
    data = text.encode(errors="surrogatepass")
    # tokenizers takes no lone surrogates: another character of three bytes stands for each.
    tokens = model.tokenize(_SURROGATE.sub("\uffff", text) + last)
    pieces = [data[slice(*token.offsets)].decode(errors="surrogatepass") for token in tokens]
    return pieces if pieces[-1] else pieces[:-1]


# A work item of a process has at most so many rows, and about so many characters or bytes.
MOST_ROWS, MOST_CHARACTERS = 1000, 1 << 20
# A pair that occurs once in the whole text is not merged, as in subword-nmt.
RAREST_PAIR = 2
# Codes are learned from the most frequent words only: rarer ones hardly change the merges, and the
# learner takes half a kilobyte for each.
MOST_WORDS = 1 << 19
# Characters that our files cannot hold: such words are unknown.
UNWRITABLE = re.compile(r"[\0\ud800-\udfff]")

Counts = list[Counter[str]]
Pair = tuple[str, str]
Places = defaultdict[str, list[int]]
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
    rarer = sorted(counts.values(), reverse=True)[MOST_WORDS : MOST_WORDS + 1]
    rarest = rarer[0] + 1 if rarer else 1
    words = (
        ([*word[:-1], word[-1] + end], count)
        for word, count in counts.items()
        if count >= rarest and not UNWRITABLE.search(word)
    )
    return Codes(tuple(islice(_merge_pairs(words, len(end)), merges)))


class _Queue:
    """Pairs with their counts: the most frequent first, of equals the larger one."""

    def __init__(self) -> None:
        self._levels: list[int] = []  # counts, negative: a heap
        self._pairs: dict[int, list[Pair]] = {}  # those of each count
        self._sorted = 0  # the count whose pairs are sorted

    def put(self, pair: Pair, count: int) -> None:
        if count == self._sorted:
            insort(self._pairs[count], pair)
        elif count in self._pairs:
            self._pairs[count].append(pair)
        elif count >= RAREST_PAIR:
            self._pairs[count] = [pair]
            heappush(self._levels, -count)

    def pop(self) -> tuple[Pair, int] | None:
        while self._levels:
            count = -self._levels[0]
            pairs = self._pairs[count]
            if count != self._sorted:
                pairs.sort()
                self._sorted = count
            if pairs:
                return pairs.pop(), count
            self._sorted = 0
            del self._pairs[-heappop(self._levels)]
        return None


def _merge_pairs(words: Iterable[tuple[list[str], int]], gap: int) -> Iterator[Pair]:
    """Merges pairs of symbols, the most frequent first; of equals the larger one, as subword-nmt.

    All words stand in one list, where a symbol takes as many places as it has letters: the first
    and the last of them hold it, and no place holds a symbol that is part of a larger one there.

    words  symbols, and how often the word occurs
    gap    letters by which the last symbol is longer than one
    """
    text, weights, space = [""], [0], [""] * (gap + 1)
    shared: dict[str, str] = {}
    places: defaultdict[Pair, list[int]] = defaultdict(list)  # where a pair begins, or began
    for letters, weight in words:
        symbols = list(map(shared.setdefault, letters, letters))
        for place, pair in enumerate(pairwise(symbols), len(text)):
            places[pair].append(place)
        text += symbols
        text += space
        weights += [weight] * (len(symbols) + len(space))
    weight = weights.__getitem__
    counts = {pair: sum(map(weight, at)) for pair, at in places.items()}
    queue = _Queue()
    for pair, count in counts.items():
        queue.put(pair, count)

    def change(old: Pair, new: Pair, at: list[int]) -> None:
        count = sum(map(weight, at))
        counts[old] -= count
        if new in counts:
            count += counts[new]
            at += places[new]
        counts[new] = count
        places[new] = at
        queue.put(new, count)

    while entry := queue.pop():
        pair, count = entry
        if counts[pair] != count:
            queue.put(pair, counts[pair])
            continue
        yield pair
        left, right = pair
        merged, second = left + right, len(left)
        before: Places = defaultdict(list)
        after: Places = defaultdict(list)
        for place in sorted(places.pop(pair)):
            if text[place] == left and text[place + second] == right:
                text[place + second] = ""
                stop = place + len(merged)
                text[place] = text[stop - 1] = merged
                before[text[place - 1]].append(place)
                after[text[stop]].append(place)
        # Those after first: one that has then been merged itself is counted there.
        for symbol, at in after.items():
            if symbol:
                change((right, symbol), (merged, symbol), at)
        for symbol, at in before.items():
            if symbol:
                change((symbol, left), (symbol, merged), [place - len(symbol) for place in at])
        counts[pair] = 0


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
    for found, units, each in zip(tokens, counts, (codes[0], codes[-1]), strict=False):
        segment = WordPieces(each).segment
        for unit, count in units.items():
            for token in segment(unit):
                found[token] += count
    return codes, [frequent(each, config.most) for each in _grouped(tokens, config.share_vocab)]


def _learn_bytes(config: BytesConfig, counts: Counts) -> tuple[tuple[Codes, ...], list[Vocabulary]]:
    letters: Counts = [Counter() for _ in counts[: 1 if config.joint else None]]
    for found, units in zip((letters[0], letters[-1]), counts, strict=False):
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
