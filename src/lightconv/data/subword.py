"""How words become tokens and tokens words: whole words, BPE of words, BPE of bytes.

Each kind cuts a text into units, a unit into tokens, and joins tokens again. Only bytes give every
text back as it was: words lose runs of white space, and what is not in the vocabulary is unknown.
"""

import re
from collections.abc import Sequence
from typing import Protocol

from lightconv.data.codes import END, Codes

# Where a word goes on in the next token.
CONTINUES = "@@"


class Segmenter(Protocol):
    """One kind of subwords."""

    def split(self, text: str) -> list[str]:
        """The units of a text, of which each is segmented by itself."""

    def segment(self, unit: str) -> Sequence[str]:
        """The tokens of a unit."""

    def join(self, tokens: Sequence[str]) -> str:
        """The text of tokens."""


class WholeWords:
    """Each word is a token."""

    def split(self, text: str) -> list[str]:
        """Words are what white space parts."""
        return text.split()

    def segment(self, unit: str) -> Sequence[str]:
        """The word itself."""
        return (unit,)

    def join(self, tokens: Sequence[str]) -> str:
        """One space between words."""
        return " ".join(tokens)


class WordPieces:
    """BPE of words, with subword-nmt's results: `un@@ believ@@ able`.

    A word that itself ends with @@ does not come back.
    """

    def __init__(self, codes: Codes) -> None:
        self.codes = codes

    def split(self, text: str) -> list[str]:
        """Words are what white space parts."""
        return text.split()

    def segment(self, unit: str) -> Sequence[str]:
        """Pieces of a word, all but the last with @@ behind them."""
        if self.codes.version == "0.1":
            symbols = self.codes.merge([*unit, END])
        else:
            symbols = self.codes.merge([*unit[:-1], unit[-1] + END])
        last = symbols.pop().removesuffix(END)
        # In version 0.1 the end may be a symbol by itself.
        last = last or symbols.pop()
        return [*(symbol + CONTINUES for symbol in symbols), last]

    def join(self, tokens: Sequence[str]) -> str:
        """Pieces are put together, and one space between words."""
        text = "".join(f"{token} " for token in tokens).replace(f"{CONTINUES} ", "")
        return text.removesuffix(" ")


def _byte_letters() -> str:
    """One visible character for each byte, as byte-level BPE has had them since GPT-2.

    A printable character of Latin-1 stands for its own byte; the others get those from U+0100 on.
    """
    plain = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return "".join(chr(byte if byte in plain else next(others)) for byte in range(0x100))


BYTE_LETTERS = _byte_letters()
_LETTER_OF = dict(enumerate(BYTE_LETTERS))
_BYTE_OF = {ord(letter): byte for byte, letter in enumerate(BYTE_LETTERS)}

# Punctuation, with digits: ASCII, general, of Chinese and Japanese, and their wide forms.
_MARKS = r"\x00-@\[-`{-\x7f\u2010-\u205e\u3001-\u3020\uff01-\uff20"
# A word, a number or punctuation, each with the space before it, or other white space: so that no
# token reaches from one word into the next. Bounded, so that each unit costs little.
UNIT = re.compile(
    rf" ?'?[^\s{_MARKS}]{{1,64}}"
    r"| ?[0-9]{1,16}"
    rf"| ?(?:(?![0-9\s])[{_MARKS}]){{1,16}}"
    r"|\s{1,16}(?= )|\s{1,16}"
)


class BytePieces:
    """BPE of UTF-8 bytes: any text comes back as it was."""

    def __init__(self, codes: Codes) -> None:
        self.codes = codes

    def split(self, text: str) -> list[str]:
        """Words with the space before them."""
        return UNIT.findall(text)

    def segment(self, unit: str) -> Sequence[str]:
        """Pieces of a unit, with a letter for each byte."""
        return self.codes.merge(list(to_letters(unit)))

    def join(self, tokens: Sequence[str]) -> str:
        """The text of the bytes; what is no UTF-8 becomes U+FFFD."""
        return "".join(tokens).translate(_BYTE_OF).encode("latin-1").decode(errors="replace")


def to_letters(text: str) -> str:
    """The letters that stand for the UTF-8 bytes of a text."""
    try:
        data = text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(
            f"character {text[error.start]!r} cannot be written as UTF-8, expected text without "
            "lone surrogates"
        ) from None
    return data.decode("latin-1").translate(_LETTER_OF)
