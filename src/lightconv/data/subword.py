"""Subwords: whole words, BPE of words, BPE of bytes; and files of BPE codes.

Words lose runs of white space, and tokens outside the vocabulary; bytes restore every text.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any, Literal

from lightconv.data.text import find_files, lines_of

# A token with this end is continued by the next one.
CONTINUES = "@@"
# Marks the end of a word: a suffix of its last letter (0.2), or a symbol after it (0.1).
END = "</w>"
# Files of a model folder: one for both languages, or one each.
SHARED_CODES = "codes.txt"
PAIR_CODES = ("codes.source.txt", "codes.target.txt")
# A hundred times the paper's largest.
LARGEST_CODES = 64 << 20

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
        if path.stat().st_size > LARGEST_CODES:
            raise ValueError(f"{path} is longer than {LARGEST_CODES >> 20} MB: not a file of codes")
        lines = [line.strip("\r ") for line in lines_of(BytesIO(path.read_bytes()), path)]
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


def codes_files(codes: Sequence[Codes]) -> dict[str, bytes]:
    names = PAIR_CODES if len(codes) == 2 else (SHARED_CODES,)
    return {name: each.to_text().encode() for name, each in zip(names, codes, strict=False)}


def load_codes(folder: Path) -> list[Codes]:
    return list(map(Codes.load, find_files(folder, "codes", SHARED_CODES, PAIR_CODES)))


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
