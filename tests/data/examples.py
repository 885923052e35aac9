"""Made-up text, small corpora to prepare, and the contents of a prepared folder."""

import random
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from lightconv.console import Display
from lightconv.data.config import (
    BPEConfig,
    BytesConfig,
    PipelineConfig,
    SideConfig,
    TaskConfig,
    WordsConfig,
)
from lightconv.data.store import Store
from lightconv.data.subword import Learned, learn
from lightconv.data.text import Corpus, Example

Subword = BPEConfig | BytesConfig | WordsConfig

TASK = TaskConfig(kind="translation", corpus="own", source_lang="de", target_lang="en", metric="x")
LM_TASK = TaskConfig(kind="language_model", corpus="own", metric="perplexity")
SIDES = (SideConfig(lang="de"), SideConfig(lang="en"))
WORDS = PipelineConfig(sides=SIDES, subword=WordsConfig())
BYTES = PipelineConfig(sides=SIDES, subword=BytesConfig(vocab=300))
SYLLABLES = "ba be bi bo da de du en er fa ge he ich in ka ko la len ma mi ne no pa ra re sa so ten"
ODD = ("ß", "漢字", "é", "-", "</w>", "@@x", "😀")


def make_words(count: int, seed: int = 0) -> list[str]:
    """Different words of one to five syllables, some with odd characters."""
    draw = random.Random(seed)
    syllables = SYLLABLES.split()
    words: dict[str, None] = {}
    while len(words) < count:
        word = "".join(draw.choice(syllables) for _ in range(draw.randint(1, 5)))
        if draw.random() < 0.05:
            place = draw.randrange(len(word) + 1)
            word = word[:place] + draw.choice(ODD) + word[place:]
        words[word] = None
    return list(words)


def make_lines(count: int, words: list[str], seed: int = 0) -> list[str]:
    """Sentences of these words, the first ones frequent, the last ones rare."""
    draw = random.Random(seed)
    weights = [1 / (place + 1) for place in range(len(words))]
    total = draw.choices(words, weights, k=count * 10)
    return [" ".join(total[10 * i : 10 * i + draw.randint(1, 10)]) for i in range(count)]


def corpus(
    train: Sequence[Example],
    valid: Sequence[Example] = (("a b", "x"),),
    pipeline: PipelineConfig = WORDS,
    **fields: Any,
) -> Corpus:
    given: dict[str, Any] = {
        "task": TASK if len(pipeline.sides) == 2 else LM_TASK,
        "pipeline": pipeline,
        "splits": {"train": partial(iter, train), "valid": partial(iter, valid)},
    }
    return Corpus(**given | fields)


def sentences(count: int, seed: int = 0) -> list[Example]:
    words = make_words(200, seed)
    sides = (make_lines(count, words, each) for each in (seed, seed + 1))
    return list(zip(*sides, strict=True))


def learn_lines(config: Subword, *sides: Sequence[str]) -> Learned:
    block = tuple("".join(f"{line}\n" for line in lines).encode() for lines in sides)
    return learn(config, [block], display=Display(quiet=True))


def ids(store: Store) -> list[tuple[list[int], ...]]:
    return [tuple(side.tolist() for side in store[i]) for i in range(len(store))]


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


class Notes:
    """A display that remembers."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.shown: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)

    def show(self, what: str, done: int = 0, total: int | None = None) -> None:
        self.shown.append(what)

    def end(self) -> None:
        pass
