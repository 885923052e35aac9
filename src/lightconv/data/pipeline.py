"""From text to ids and back: what is learned once, travels with the model and does both.

    pipeline = Pipeline.learn(config, read)
    ids = pipeline.encode(0, ["Guten Morgen ."])        # no end of sentence: batches add it
    pipeline.decode(1, model_output)                    # plain text
    pipeline.save(folder); pipeline = Pipeline.load(folder)

With `kind="bytes"` and no word steps any text comes back as it was. What else is lost, and where:
`words` for the steps from text to words, `subword` for tokens.
"""

import functools
import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Self

from lightconv.config import ConfigError, from_dict, to_dict
from lightconv.config.text import read_plain
from lightconv.data.codes import PAIR_CODES, SHARED_CODES, Codes
from lightconv.data.config import PipelineConfig
from lightconv.data.corpus import Example, Reader
from lightconv.data.encode import Coder
from lightconv.data.learn import Progress, learn
from lightconv.data.subword import BYTE_LETTERS, BytePieces, Segmenter, WholeWords, WordPieces
from lightconv.data.vocabulary import (
    PAIR_FILES,
    SHARED_FILE,
    SPECIALS,
    Vocabularies,
    load_vocabularies,
)
from lightconv.files import inside, write_file

FORMAT = "lightconv-pipeline"
VERSION = 1
PIPELINE_FILE = "pipeline.json"

SEGMENTERS: dict[str, Callable[[Codes], Segmenter]] = {"bpe": WordPieces, "bytes": BytePieces}


class Pipeline:
    """Source and target, or one side alone, each with its steps, subwords and vocabulary.

    It is picklable, and quick to load in a process that encodes.
    """

    def __init__(
        self, config: PipelineConfig, codes: Sequence[Codes], vocabularies: Vocabularies
    ) -> None:
        _check(config, codes, vocabularies)
        self.config = config
        self.codes = tuple(codes)
        self._vocabularies = vocabularies
        self._coders = [
            Coder(side, _segmenter(config, codes, place), vocabularies[place])
            for place, side in enumerate(config.sides)
        ]

    def __reduce__(self) -> tuple[type["Pipeline"], tuple[Any, ...]]:
        return Pipeline, (self.config, self.codes, self._vocabularies)

    @classmethod
    def learn(
        cls,
        config: PipelineConfig,
        read: Reader,
        *,
        processes: int = 1,
        progress: Progress | None = None,
    ) -> Self:
        """Learns codes and vocabularies from the examples of `read`, which is called once.

        processes  how many tokenise; more than one needs `if __name__ == "__main__":` in a script
        progress   called with ("words", examples so far), then ("codes", 0)
        """
        learned = learn(config, read, processes=processes, progress=progress)
        return cls(config, learned.codes, learned.vocabularies)

    def words(self, side: int, text: str) -> str:
        """The words of a text as tokenised BLEU sees them: before subwords."""
        return self._coders[side].words(text)

    def tokens(self, side: int, texts: Iterable[str]) -> list[list[str]]:
        """The subwords of each text."""
        return [self._coders[side].tokens(text) for text in texts]

    def encode(self, side: int, texts: Iterable[str]) -> list[list[int]]:
        """The ids of each text, without an end of sentence."""
        return [self._coders[side].encode(text) for text in texts]

    def decode(self, side: int, ids: Iterable[int]) -> str:
        """Plain text: no special tokens, no subwords, detokenised; <unk> for what is unknown."""
        return self._coders[side].decode(ids)

    def decode_words(self, side: int, ids: Iterable[int]) -> str:
        """The words that ids stand for, as `words` gives them for a text: for tokenised BLEU."""
        return self._coders[side].decode_words(ids)

    def vocabularies(self) -> Vocabularies:
        """The source's and the target's; one object twice when they share it."""
        return self._vocabularies

    def files(self) -> dict[str, bytes]:
        """What a folder holds besides the vocabularies: names and contents."""
        table = {"format": FORMAT, "version": VERSION, "pipeline": to_dict(self.config)}
        text = json.dumps(table, indent=2, ensure_ascii=False, allow_nan=False)
        names = PAIR_CODES if len(self.codes) == 2 else (SHARED_CODES,)
        codes = zip(names, self.codes, strict=False)
        return {
            PIPELINE_FILE: f"{text}\n".encode(),
            **{name: each.to_text().encode() for name, each in codes},
        }

    def save(self, folder: str | Path) -> None:
        """Writes its files and the vocabularies into a folder that has none of them yet."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        files = self.files() | self._vocabularies.files()
        taken = [name for name in files if (folder / name).exists()]
        if taken:
            raise ValueError(f"{folder / taken[0]} exists. Choose another folder, or remove it")
        for name, data in files.items():
            write_file(folder / name, data)

    @classmethod
    def load(cls, folder: str | Path, config: PipelineConfig | None = None) -> Self:
        """Reads what `save` wrote, or with `config` a folder that has codes and vocabularies only.

        The folder may come from a stranger: ValueError says what is wrong with it.
        """
        folder = Path(folder)
        if not folder.is_dir():
            raise ValueError(f"there is no folder {folder}, expected one with {PIPELINE_FILE}")
        if config is None:
            config = _read_config(folder)
        codes = [] if config.subword.kind == "words" else _read_codes(folder)
        vocabularies = load_vocabularies(folder)
        try:
            return cls(config, codes, vocabularies)
        except ValueError as error:
            raise ValueError(f"{folder}: {error}") from None


def encode_examples(folder: str, examples: Sequence[Example]) -> list[tuple[list[int], ...]]:
    """The ids of each side of each example; in a process of its own, it loads the folder once."""
    pipeline = _loaded(folder)
    sides = range(len(pipeline.config.sides))
    columns = [pipeline.encode(side, [example[side] for example in examples]) for side in sides]
    return list(zip(*columns, strict=True))


@functools.lru_cache(maxsize=2)
def _loaded(folder: str) -> Pipeline:
    return Pipeline.load(folder)


def _segmenter(config: PipelineConfig, codes: Sequence[Codes], place: int) -> Segmenter:
    if not codes:
        return WholeWords()
    return SEGMENTERS[config.subword.kind](codes[min(place, len(codes) - 1)])


def _check(config: PipelineConfig, codes: Sequence[Codes], vocabularies: Vocabularies) -> None:
    """Raises ValueError if the parts do not belong together."""
    kind, sides = config.subword.kind, len(config.sides)
    if bool(codes) != (kind != "words") or len(codes) > sides:
        raise ValueError(f"{len(codes)} files of codes, but {sides} sides with kind='{kind}'")
    if sides == 1 and vocabularies.source is not vocabularies.target:
        raise ValueError(
            f"{' and '.join(PAIR_FILES)} are there, expected {SHARED_FILE} for the one side"
        )
    if kind != "bytes":
        return
    for place, vocabulary in enumerate(vocabularies):
        code = codes[min(place, len(codes) - 1)]
        made = {left + right for left, right in code.merges}
        found = set(vocabulary.tokens[SPECIALS:])
        if not found >= made | set(BYTE_LETTERS):
            raise ValueError("the vocabulary lacks bytes, or tokens that the codes make")
        if not set("".join(found)) <= set(BYTE_LETTERS):
            raise ValueError("the vocabulary has tokens that are not made of bytes")


def _read_config(folder: Path) -> PipelineConfig:
    path = inside(folder, PIPELINE_FILE)
    table = read_plain(path)
    try:
        if not isinstance(table, dict) or table.get("format") != FORMAT:
            raise ConfigError(f'not a pipeline of lightconv, expected "format": "{FORMAT}"')
        if table.get("version") != VERSION or isinstance(table["version"], bool):
            raise ConfigError(
                f"version {str(table.get('version'))[:20]}, expected {VERSION}. A newer lightconv "
                "may read it"
            )
        return from_dict(PipelineConfig, table.get("pipeline"), "pipeline")
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None


def _read_codes(folder: Path) -> list[Codes]:
    if (folder / SHARED_CODES).exists():
        return [Codes.load(inside(folder, SHARED_CODES))]
    if not any((folder / name).exists() for name in PAIR_CODES):
        raise ValueError(
            f"{folder} has no codes, expected {SHARED_CODES} or {' and '.join(PAIR_CODES)}"
        )
    return [Codes.load(inside(folder, name)) for name in PAIR_CODES]
