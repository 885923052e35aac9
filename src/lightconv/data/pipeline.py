"""From text to ids and back; bytes without word steps restore any text."""

import json
from collections.abc import Iterable, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, Self

from lightconv.config import from_dict, read_plain, to_dict
from lightconv.data.config import PipelineConfig
from lightconv.data.subword import (
    BYTE_LETTERS,
    PAIR_CODES,
    SHARED_CODES,
    BytePieces,
    Codes,
    WholeWords,
    WordPieces,
)
from lightconv.data.text import find_files
from lightconv.data.vocabulary import (
    BOS,
    EOS,
    PAD,
    PAIR_FILES,
    SHARED_FILE,
    SPECIALS,
    UNK,
    Vocabularies,
    Vocabulary,
    load_vocabularies,
)
from lightconv.data.words import Steps
from lightconv.files import inside, named

FORMAT = "lightconv-pipeline"
VERSION = 1
PIPELINE_FILE = "pipeline.json"
# Steps, codes and vocabularies: copied into every model folder.
PIPELINE_FILES = (PIPELINE_FILE, SHARED_CODES, *PAIR_CODES, SHARED_FILE, *PAIR_FILES)
# Units kept with their ids, about 40 MB.
MOST_CACHED = 1 << 18
LONGEST_CACHED = 64


class Pipeline:
    """Steps, subwords and vocabularies; side 0 is the source or the only text, 1 the target."""

    def __init__(
        self, config: PipelineConfig, codes: Sequence[Codes], vocabularies: Vocabularies
    ) -> None:
        _check(config, codes, vocabularies)
        self.config = config
        self.codes = tuple(codes)
        self._vocabularies = vocabularies
        self._steps = list(map(Steps, config.sides))
        kind = BytePieces if config.subword.kind == "bytes" else WordPieces
        pieces = list(map(kind, codes)) or [WholeWords()]
        pairs = ((pieces[0], vocabularies[0]), (pieces[-1], vocabularies[-1]))
        self._ids = [_Ids(*pair) for pair in pairs[: len(config.sides)]]

    def __reduce__(self) -> tuple[type["Pipeline"], tuple[Any, ...]]:
        return Pipeline, (self.config, self.codes, self._vocabularies)

    def words(self, side: int, text: str) -> str:
        """The words of a text, before subwords, as tokenised BLEU sees them."""
        return self._steps[side].apply(text)

    def encode(self, side: int, texts: Iterable[str]) -> list[list[int]]:
        """The ids of each text, without an end of sentence."""
        apply, split = self._steps[side].apply, self._ids[side].segmenter.split
        ids = self._ids[side].__getitem__
        return [list(chain.from_iterable(map(ids, split(apply(text))))) for text in texts]

    def decode(self, side: int, ids: Iterable[int]) -> str:
        """Plain text, detokenised, without special tokens; unknown words are <unk>."""
        return self._steps[side].undo(self.decode_words(side, ids))

    def decode_words(self, side: int, ids: Iterable[int]) -> str:
        """The words of ids, as `words` gives them for a text."""
        shown = [place for place in ids if place not in (BOS, PAD, EOS)]
        return self._ids[side].segmenter.join(self._vocabularies[side].decode(shown))

    def vocabularies(self) -> Vocabularies:
        return self._vocabularies

    def files(self) -> dict[str, bytes]:
        """Names and contents of its files, vocabularies included."""
        table = {"format": FORMAT, "version": VERSION, "pipeline": to_dict(self.config)}
        text = json.dumps(table, indent=2, ensure_ascii=False, allow_nan=False)
        names = PAIR_CODES if len(self.codes) == 2 else (SHARED_CODES,)
        codes = (each.to_text().encode() for each in self.codes)
        files = {PIPELINE_FILE: f"{text}\n".encode(), **dict(zip(names, codes, strict=False))}
        return files | self._vocabularies.files()

    @classmethod
    def load(cls, folder: str | Path, config: PipelineConfig | None = None) -> Self:
        """Reads an untrusted folder; with `config` one that has codes and vocabularies only."""
        folder = Path(folder)
        if not folder.is_dir():
            raise ValueError(f"there is no folder {folder}, expected one with {PIPELINE_FILE}")
        if config is None:
            config = _read_config(inside(folder, PIPELINE_FILE))
        words = config.subword.kind == "words"
        codes = [] if words else find_files(folder, "codes", SHARED_CODES, PAIR_CODES)
        parts = list(map(Codes.load, codes)), load_vocabularies(folder)
        with named(folder):
            return cls(config, *parts)


class _Ids(dict[str, list[int]]):
    """Ids by unit, found when first asked for."""

    def __init__(self, segmenter: WholeWords, vocabulary: Vocabulary) -> None:
        super().__init__()
        self.segmenter = segmenter
        self._vocabulary = vocabulary

    def __missing__(self, unit: str) -> list[int]:
        ids = self._vocabulary.encode(self.segmenter.segment(unit))
        # A word that looks like a special token is unknown.
        ids = [place if place >= SPECIALS else UNK for place in ids]
        if len(unit) <= LONGEST_CACHED:
            if len(self) >= MOST_CACHED:
                self.clear()
            self[unit] = ids
        return ids


def _check(config: PipelineConfig, codes: Sequence[Codes], vocabularies: Vocabularies) -> None:
    kind, sides = config.subword.kind, len(config.sides)
    if bool(codes) != (kind != "words") or len(codes) > sides:
        raise ValueError(f"{len(codes)} files of codes, but {sides} sides with kind='{kind}'")
    if sides == 1 and vocabularies.source is not vocabularies.target:
        raise ValueError("vocabularies of source and target, expected one for the only side")
    if kind != "bytes":
        return
    for code, vocabulary in zip((codes[0], codes[-1]), vocabularies, strict=True):
        made = {left + right for left, right in code.merges}
        found = set(vocabulary.tokens[SPECIALS:])
        if not found >= made | set(BYTE_LETTERS):
            raise ValueError("the vocabulary lacks bytes, or tokens that the codes make")
        if not set("".join(found)) <= set(BYTE_LETTERS):
            raise ValueError("the vocabulary has tokens that are not made of bytes")


def without_format(table: Any, kind: str, version: int) -> dict[str, Any]:
    """The table of a JSON file without its format and version, which must be these."""
    if not isinstance(table, dict) or table.pop("format", None) != kind:
        raise ValueError(f'not written by lightconv, expected "format": "{kind}"')
    found = table.pop("version", None)
    if found != version or isinstance(found, bool):
        raise ValueError(f"version {str(found)[:20]} of the format, expected {version}")
    return table


def _read_config(path: Path) -> PipelineConfig:
    table = read_plain(path)
    with named(path):
        table = without_format(table, FORMAT, VERSION)
        return from_dict(PipelineConfig, table.get("pipeline"), "pipeline")
