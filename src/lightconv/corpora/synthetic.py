"""Generated corpora: the same on every machine, for tests and demos without a package mirror.

Only `Random.random()` is used, which is the same in every version of Python.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from lightconv.config import check_counts, check_from_zero
from lightconv.corpora import Progress
from lightconv.corpora.splits import split_of
from lightconv.data.config import BytesConfig, PipelineConfig, SideConfig, TaskConfig, WordsConfig
from lightconv.data.text import SPLITS, Corpus, Example

# Share of all possible texts for validation, and the same for test.
_HELD_OUT = 0.1
# So many texts of other splits in a row mean that there are too few texts.
_MAX_MISSES = 10_000


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Numbers of examples, seed, and the texts of copy and reversal."""

    train: int = 20_000
    valid: int = 500
    test: int = 500
    seed: int = 0
    # Copy and reversal: number of different words, and of words in a text.
    symbols: int = 50
    min_len: int = 3
    max_len: int = 15

    def __post_init__(self) -> None:
        check_counts(self, "train", "valid", "test", "symbols", "min_len", "max_len")
        check_from_zero(self, "seed")
        if self.min_len > self.max_len:
            raise ValueError(f"min_len={self.min_len} must not be above max_len={self.max_len}")


def generated(name: str, cache: Path, progress: Progress) -> Corpus:
    return make(name)


def make(name: str, settings: Settings | None = None) -> Corpus:
    """The corpus of that name; example i of a split depends only on the settings and i."""
    if settings is None:  # a document takes as long as twenty sentences
        settings = Settings(train=5000) if name == "synthetic-summary" else Settings()
    # Language codes that are reserved for local use.
    sides: tuple[SideConfig, ...] = (SideConfig(lang="qaa"), SideConfig(lang="qab"))
    task = TaskConfig(
        kind="translation", corpus=name, source_lang="qaa", target_lang="qab", metric="sacrebleu"
    )
    subword: BytesConfig | WordsConfig = WordsConfig()
    make_one: Callable[[Random], Example]
    if name == "synthetic-translation":
        subword = BytesConfig(vocab=1000)  # finds the endings
        make_one = Languages(settings.seed).sentence
    elif name == "synthetic-lm":
        task = TaskConfig(kind="language_model", corpus=name, metric="perplexity")
        sides = (SideConfig(lang="en"),)
        make_one = sentence
    elif name == "synthetic-summary":
        task = TaskConfig(kind="summarization", corpus=name, metric="rouge")
        sides = (SideConfig(lang="en", truncate=400), SideConfig(lang="en"))
        make_one = document
    else:
        step = {"synthetic-copy": 1, "synthetic-reverse": -1}[name]
        make_one = partial(_symbols, settings, step)
    return Corpus(
        task=task,
        splits={split: partial(_examples, make_one, settings, split) for split in SPLITS},
        pipeline=PipelineConfig(sides=sides, subword=subword),
    )


def _examples(
    make_one: Callable[[Random], Example], settings: Settings, split: str
) -> Iterator[Example]:
    # The hash of a text decides on its split, so no text is in two.
    random = Random(f"{split} {settings.seed}")
    for _ in range(getattr(settings, split)):
        for _ in range(_MAX_MISSES):
            example = make_one(random)
            if split_of(example[0], _HELD_OUT) == split:
                yield example
                break
        else:
            raise ValueError(
                f"too few different texts for a {split} split of their own: symbols="
                f"{settings.symbols}, max_len={settings.max_len}. Raise one of them"
            )


def _symbols(settings: Settings, step: int, random: Random) -> Example:
    """Random words w0, w1, ... and every `step`-th of them: 1 copies, -1 reverses."""
    lengths = settings.max_len - settings.min_len + 1
    length = settings.min_len + int(lengths * random.random())
    words = [f"w{int(settings.symbols * random.random())}" for _ in range(length)]
    return " ".join(words), " ".join(words[::step])


def pick(random: Random, choices: Sequence[Any]) -> Any:
    """One of the choices; early ones are more frequent, like words of a language."""
    return choices[int(len(choices) * random.random() * random.random())]


_CONSONANTS = ("b d f g k l m n p r s t v z", "ch j kh l m n ny q r sh th w x y")
_VOWELS = ("a e i o u", "a ai e o u")
_GENDERS = ("a", "o", "u")
# Endings by number and by tense.
_SOURCE_NUMBER = ("", "ki")
_SOURCE_TENSE = ("n", "ro", "vesu")
_TARGET_NUMBER = ("", "sh")
_TARGET_TENSE = ("em", "ith", "olan")
_TARGET_PERSON = ("", "ni")
# Numbers of words and of syllables.
_LEXICON = {
    "determiners": (4, 1),
    "conjunctions": (3, 1),
    "relations": (6, 1),
    "nouns": (80, 2),
    "adjectives": (40, 2),
    "verbs": (60, 2),
}


class Word(NamedTuple):
    """A word in both languages, and the gender of a noun in the target language."""

    source: str
    target: str
    gender: str = ""


class Languages:
    """The lexicon of a seed, and a grammar that makes sentences in both languages at once.

    source  determiner, adjectives, noun; subject, verb, object, place; plural and tense as endings
    target  noun, adjectives, determiner; subject, place, object, verb; prepositions follow; all of
            a phrase agrees with the gender and number of its noun, the verb with its subject
    """

    def __init__(self, seed: int = 0) -> None:
        random = Random(f"lexicon {seed}")
        taken: set[str] = set()
        self.words: dict[str, list[Word]] = {kind: [] for kind in _LEXICON}
        for kind, (count, syllables) in _LEXICON.items():
            for _ in range(count):
                source, target = (_invent(random, syllables, lang, taken) for lang in (0, 1))
                gender = _GENDERS[int(len(_GENDERS) * random.random())] if kind == "nouns" else ""
                self.words[kind].append(Word(source, target, gender))

    def sentence(self, random: Random) -> Example:
        clauses = [self.clause(random)]
        if random.random() < 0.3:
            clauses.append(self.clause(random))
        joint = pick(random, self.words["conjunctions"])
        mark = "?" if random.random() < 0.2 else "."
        source = f" {joint.source} ".join(clause[0] for clause in clauses)
        target = f" {joint.target} ".join(clause[1] for clause in clauses)
        return source.capitalize() + mark, target.capitalize() + mark

    def clause(self, random: Random) -> Example:
        placed = random.random() < 0.4
        source, target, number = self._phrase(random)
        verb = pick(random, self.words["verbs"])
        tense = int(len(_SOURCE_TENSE) * random.random())
        thing, their_thing, _ = self._phrase(random)
        source += [verb.source + _SOURCE_TENSE[tense], *thing]
        if placed:
            relation = pick(random, self.words["relations"])
            place, their_place, _ = self._phrase(random)
            source += [relation.source, *place]
            target += [*their_place, relation.target]
        ending = _TARGET_TENSE[tense] + _TARGET_PERSON[number]
        target += [*their_thing, verb.target + ending]
        return " ".join(source), " ".join(target)

    def _phrase(self, random: Random) -> tuple[list[str], list[str], int]:
        """A noun with adjectives and determiner in both languages, and its number."""
        count = int(3 * random.random() * random.random())
        determiner = pick(random, self.words["determiners"])
        adjectives = [pick(random, self.words["adjectives"]) for _ in range(count)]
        noun = pick(random, self.words["nouns"])
        number = int(2 * random.random())
        source = [word.source for word in (determiner, *adjectives, noun)]
        source[-1] += _SOURCE_NUMBER[number]
        ending = noun.gender + _TARGET_NUMBER[number]
        target = [word.target + ending for word in (noun, *adjectives, determiner)]
        return source, target, number


def _invent(random: Random, syllables: int, language: int, taken: set[str]) -> str:
    consonants, vowels = _CONSONANTS[language].split(), _VOWELS[language].split()
    while True:
        word = "".join(
            consonants[int(len(consonants) * random.random())]
            + vowels[int(len(vowels) * random.random())]
            for _ in range(syllables)
        )
        if word not in taken:
            taken.add(word)
            return word


# Words for each slot.
_SLOTS = {
    "name": "Ada Ben Cleo Dario Edith Farid Greta Hugo Iris Jonas Kaya Leon Mira Nils Olga Paul "
    "Quinn Rosa Samir Tessa Umar Vera Wanda Yusuf",
    "thing": "lamp book kite clock basket violin map ladder kettle coat ring boat mirror bell key "
    "drum chair letter wheel hat",
    "quality": "large red small heavy green broken new blue wooden quiet golden strange round thin "
    "painted hollow",
    "place": "harbour garden market station library mill bakery theatre tower valley school museum "
    "courtyard forest",
    "act": "finds sells repairs carries hides paints borrows breaks returns buys",
    "time": "Monday Tuesday Wednesday Thursday Friday Saturday Sunday",
    "number": "two three four five six seven eight nine ten twelve",
    "weather": "rain snow wind fog sun frost hail thunder",
}
_WORDS = {slot: tuple(words.split()) for slot, words in _SLOTS.items()}
# A slot with a digit has the same word wherever it returns.
_TEMPLATES = (
    "{name1} {act} the {quality} {thing} in the {place} .",
    "on {time} , {name1} gives {name2} a {quality} {thing1} , and {name2} puts the {thing1} away .",
    "the {thing1} of {name1} is {quality} , but the {thing2} is {quality} .",
    "{name1} waits for {name2} at the {place1} until {name2} leaves the {place1} .",
    "there are {number} {quality} houses near the {place} .",
    "if {weather} comes on {time} , the {place1} stays closed and nobody sees the {place1} .",
    "{name1} asks {name2} about the {weather} .",
    "from the {place} to the {place} it takes {number} hours by foot .",
)
# Key sentences and their summaries.
_KEYS = (
    (
        "The town has decided that {name1} will build a {quality1} {place1} for {number} people .",
        "{name1} will build a {quality1} {place1} .",
    ),
    (
        "After a long search , {name1} has found the {quality1} {thing1} that {name2} had lost .",
        "{name1} found the {thing1} of {name2} .",
    ),
    (
        "It is now certain that the {place1} closes on {time1} because of the {weather1} .",
        "{weather1} closes the {place1} on {time1} .",
    ),
)
_SLOT = re.compile(r"\{([a-z]+)(\d?)\}")


def sentence(random: Random) -> Example:
    """A sentence of lower-case words and names, its marks set off by spaces."""
    return (_fill(pick(random, _TEMPLATES), random, {}),)


def document(random: Random) -> Example:
    """A document of 12 to 30 sentences and two key sentences, and the summary of the two."""
    count = 12 + int(19 * random.random())
    first, second = sorted(int((count + 1) * random.random()) for _ in range(2))
    lines = [_capital(*sentence(random)) for _ in range(count)]
    summary = []
    for place, (long, short) in ((first, pick(random, _KEYS)), (second + 1, pick(random, _KEYS))):
        filled: dict[str, str] = {}
        lines.insert(place, _capital(_fill(long, random, filled)))
        summary.append(_capital(_fill(short, random, filled)))
    return " ".join(lines), " ".join(summary)


def _fill(template: str, random: Random, filled: dict[str, str]) -> str:
    """The template with words in its slots; numbered ones are taken from or added to `filled`."""

    def word(slot: re.Match[str]) -> str:
        kind, number = slot.groups()
        if not number or slot[0] not in filled:
            found: str = pick(random, _WORDS[kind])
            while number and found in filled.values():  # two names are two people
                found = pick(random, _WORDS[kind])
            filled[slot[0]] = found
        return filled[slot[0]]

    return _SLOT.sub(word, template)


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
