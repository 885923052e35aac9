"""Words and their ids: a text file with one token per line, in the order of the ids.

The first four are special, in the order of the original implementation, so that its models keep
their ids. Nothing here needs torch.
"""

import io
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from lightconv.data.text import Notes, lines_of
from lightconv.files import inside

BOS, PAD, EOS, UNK = range(4)
SPECIAL_TOKENS = ("<s>", "<pad>", "</s>", "<unk>")
SPECIALS = len(SPECIAL_TOKENS)

# The files of a model folder: one for both languages, or one each.
SHARED_FILE = "vocab.txt"
PAIR_FILES = ("vocab.source.txt", "vocab.target.txt")

# A word that stands twice in the original's dictionary must say that this is meant.
OVERWRITE = "#fairseq:overwrite"


class Vocabulary:
    """Tokens by id and ids by token; a token listed twice is read as the last of its ids."""

    def __init__(self, tokens: Iterable[str]) -> None:
        self.tokens = tuple(tokens)
        for place, (found, special) in enumerate(zip(self.tokens, SPECIAL_TOKENS, strict=False)):
            if found != special:
                raise ValueError(f"token {place} must be {special!r}, got {found!r}")
        if len(self.tokens) < SPECIALS:
            raise ValueError(
                f"a vocabulary begins with {' '.join(SPECIAL_TOKENS)}, got {len(self)} tokens"
            )
        for place, token in enumerate(self.tokens):
            if not token or "\n" in token:
                raise ValueError(f"token {place} must be one line of text, got {token!r}")
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

    def __repr__(self) -> str:
        return f"Vocabulary({len(self)} tokens)"

    def encode(self, tokens: Iterable[str]) -> list[int]:
        """The id of each token; `UNK` for one that is not known."""
        return [self._ids.get(token, UNK) for token in tokens]

    def decode(self, ids: Iterable[int]) -> list[str]:
        """The token of each id, special ones included."""
        found = []
        for place in ids:
            if not 0 <= place < len(self.tokens):
                raise ValueError(f"id {place} must be from 0 to {len(self.tokens) - 1}")
            found.append(self.tokens[place])
        return found

    def to_text(self) -> str:
        """What `save` writes."""
        return "".join(f"{token}\n" for token in self.tokens)

    def sizes(self) -> tuple[int, int]:
        """How many ids source and target have, when both read this vocabulary."""
        return len(self), len(self)

    def files(self) -> dict[str, bytes]:
        """What a model folder holds of it: names and contents."""
        return {SHARED_FILE: self.to_text().encode()}

    def save(self, path: str | Path) -> None:
        """Writes one token per line, UTF-8."""
        Path(path).write_bytes(self.to_text().encode())

    @classmethod
    def load(cls, path: str | Path) -> "Vocabulary":
        """Reads what `save` wrote."""
        lines = _lines(Path(path))
        for number, token in enumerate(lines, 1):
            if not token:
                raise ValueError(f"{path}, line {number}: empty, expected one token per line")
        try:
            return cls(lines)
        except ValueError as error:
            raise ValueError(
                f"{path} is no vocabulary: {error}. A dictionary of fairseq is read by "
                "`lightconv import fairseq`"
            ) from None

    @classmethod
    def from_fairseq(cls, path: str | Path) -> "Vocabulary":
        """Reads a dictionary of the original: `symbol count` per line, no special tokens."""
        lines = _lines(Path(path))
        known = set(SPECIAL_TOKENS)
        symbols = []
        carriage_returns = 0
        for number, line in enumerate(lines, 1):
            carriage_returns += line.endswith("\r")
            symbol, overwrite = _parse_fairseq(line.rstrip(), f"{path}, line {number}")
            if symbol in known and not overwrite:
                raise ValueError(
                    f"{path}, line {number}: {symbol!r} for the second time, expected every symbol "
                    f"once. If both were in the model, add {OVERWRITE} to the end of the line"
                )
            known.add(symbol)
            symbols.append(symbol)
        if carriage_returns:
            warnings.warn(f"{path}: dropped the CR of {carriage_returns} lines", stacklevel=2)
        return cls.of(symbols)


class Vocabularies(NamedTuple):
    """The source's and the target's; one object twice when they share it."""

    source: Vocabulary
    target: Vocabulary

    def sizes(self) -> tuple[int, int]:
        """How many ids source and target have."""
        return len(self.source), len(self.target)

    def files(self) -> dict[str, bytes]:
        """What a model folder holds of them: names and contents."""
        if self.source is self.target:
            return self.source.files()
        return {name: side.to_text().encode() for name, side in zip(PAIR_FILES, self, strict=True)}


def load_vocabularies(folder: str | Path) -> Vocabularies:
    """Source and target of a model folder."""
    folder = Path(folder)
    if (folder / SHARED_FILE).exists():
        shared = Vocabulary.load(inside(folder, SHARED_FILE))
        return Vocabularies(shared, shared)
    missing = [name for name in PAIR_FILES if not (folder / name).exists()]
    if missing:
        raise ValueError(
            f"{folder} has no vocabulary: {' and '.join(missing)} missing, expected {SHARED_FILE} "
            f"or {' and '.join(PAIR_FILES)}"
        )
    return Vocabularies(*(Vocabulary.load(inside(folder, name)) for name in PAIR_FILES))


def _parse_fairseq(line: str, where: str) -> tuple[str, bool]:
    """A symbol, which may hold spaces, and whether it may stand there for the second time."""
    overwrite = line.endswith(f" {OVERWRITE}")
    symbol, _, count = line.removesuffix(f" {OVERWRITE}").rpartition(" ")
    if not symbol or not (count.isascii() and count.removeprefix("-").isdecimal()):
        raise ValueError(f"{where}: {line[:80]!r}, expected a symbol, a space and its count")
    return symbol, overwrite


def _lines(path: Path) -> list[str]:
    """The lines of a UTF-8 file, cut at newlines and nowhere else."""
    if not path.is_file():
        kind = "is no file" if path.exists() else "does not exist"
        raise ValueError(f"{path} {kind}, expected a vocabulary")
    notes = Notes()
    lines = list(lines_of(io.BytesIO(path.read_bytes()), path, notes))
    if notes.marks:
        warnings.warn(f"{path}: dropped its byte order mark", stacklevel=3)
    return lines
