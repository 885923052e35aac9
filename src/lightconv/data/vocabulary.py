"""Vocabularies: a text file with one token per line, in the order of the ids; free of torch."""

import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from lightconv.data.text import Notes, find_files, read_list

# In the order of the original implementation, so that its models keep their ids.
BOS, PAD, EOS, UNK = range(4)
SPECIAL_TOKENS = ("<s>", "<pad>", "</s>", "<unk>")
SPECIALS = len(SPECIAL_TOKENS)

# Files of a model folder: one for both languages, or one each.
SHARED_FILE = "vocab.txt"
PAIR_FILES = ("vocab.source.txt", "vocab.target.txt")

# Marks a symbol that stands twice in a dictionary of fairseq on purpose.
OVERWRITE = "#fairseq:overwrite"

MOST_TOKENS = 1 << 21


class Vocabulary:
    """Tokens by id and ids by token; a token listed twice has the last of its ids."""

    def __init__(self, tokens: Iterable[str]) -> None:
        self.tokens = tuple(tokens)
        if self.tokens[:SPECIALS] != SPECIAL_TOKENS:
            got, expected = " ".join(self.tokens[:SPECIALS])[:80], " ".join(SPECIAL_TOKENS)
            raise ValueError(f"the first tokens must be {expected}, got {got!r}")
        for place, token in enumerate(self.tokens):
            if not token or "\n" in token:
                raise ValueError(f"token {place} must be a line that is not empty, got {token!r}")
        self._ids = {token: place for place, token in enumerate(self.tokens)}

    @classmethod
    def of(cls, words: Iterable[str]) -> "Vocabulary":
        """The special tokens, then `words` in their order."""
        return cls((*SPECIAL_TOKENS, *words))

    def __len__(self) -> int:
        return len(self.tokens)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Vocabulary) and self.tokens == other.tokens

    def __hash__(self) -> int:
        return hash(self.tokens)

    def encode(self, tokens: Iterable[str]) -> list[int]:
        """The id of each token; `UNK` for an unknown one."""
        return [self._ids.get(token, UNK) for token in tokens]

    def decode(self, ids: Iterable[int]) -> list[str]:
        found = []
        for place in ids:
            if not 0 <= place < len(self.tokens):
                raise ValueError(f"id {place} must be from 0 to {len(self.tokens) - 1}")
            found.append(self.tokens[place])
        return found

    def sizes(self) -> tuple[int, int]:
        return len(self), len(self)

    def files(self) -> dict[str, bytes]:
        return {SHARED_FILE: self._to_bytes()}

    def save(self, path: str | Path) -> None:
        Path(path).write_bytes(self._to_bytes())

    @classmethod
    def load(cls, path: str | Path) -> "Vocabulary":
        lines = _read(Path(path))
        try:
            return cls(lines)
        except ValueError as error:
            raise ValueError(
                f"{path} is not a vocabulary: {error}. A dictionary of fairseq is read by "
                "`lightconv import fairseq`"
            ) from None

    @classmethod
    def from_fairseq(cls, path: str | Path) -> "Vocabulary":
        """Reads a dictionary of the original: `symbol count` per line, no special tokens."""
        known = dict.fromkeys(SPECIAL_TOKENS)
        symbols = []
        carriage_returns = 0
        for number, raw in enumerate(_read(Path(path)), 1):
            carriage_returns += raw.endswith("\r")
            line = raw.rstrip()
            # A symbol may hold spaces.
            symbol, _, count = line.removesuffix(f" {OVERWRITE}").rpartition(" ")
            if not symbol or not (count.isascii() and count.removeprefix("-").isdecimal()):
                got = f"{path}, line {number}: {line[:80]!r}"
                raise ValueError(f"{got}, expected a symbol, a space and its count")
            if symbol in known and not line.endswith(f" {OVERWRITE}"):
                raise ValueError(
                    f"{path}, line {number}: {symbol!r} for the second time, expected every symbol "
                    f"once. If both were in the model, add {OVERWRITE} to the end of the line"
                )
            known[symbol] = None
            symbols.append(symbol)
        if carriage_returns:
            warnings.warn(f"{path}: dropped the CR of {carriage_returns} lines", stacklevel=2)
        return cls.of(symbols)

    def _to_bytes(self) -> bytes:
        return "".join(f"{token}\n" for token in self.tokens).encode()


class Vocabularies(NamedTuple):
    """Those of source and target; the same object twice if they are shared."""

    source: Vocabulary
    target: Vocabulary

    def sizes(self) -> tuple[int, int]:
        return len(self.source), len(self.target)

    def files(self) -> dict[str, bytes]:
        if self.source is self.target:
            return self.source.files()
        return {name: each._to_bytes() for name, each in zip(PAIR_FILES, self, strict=True)}


def load_vocabularies(folder: str | Path) -> Vocabularies:
    """Source and target of a model folder."""
    paths = find_files(Path(folder), "vocabulary", SHARED_FILE, PAIR_FILES)
    found = list(map(Vocabulary.load, paths))
    return Vocabularies(found[0], found[-1])


def _read(path: Path) -> list[str]:
    if not path.is_file():
        kind = "is not a file" if path.exists() else "does not exist"
        raise ValueError(f"{path} {kind}, expected a vocabulary")
    notes = Notes()
    lines = read_list(path, MOST_TOKENS, notes)
    if notes.marks:
        warnings.warn(f"{path}: dropped its byte order mark", stacklevel=3)
    return lines
