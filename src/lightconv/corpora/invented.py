"""Two invented languages: a lexicon of each, and a grammar that makes a sentence in both at once.

The source language puts determiner, adjectives, noun in this order, and subject, verb, object. It
marks plural by one ending and tense by another. The target language puts the noun first, its
adjectives and determiner after it, prepositions after what they govern, and the verb last. Its
nouns have a gender, with which everything around them agrees, in number too; so does the verb
with its subject.
"""

from dataclasses import dataclass, field
from random import Random
from typing import NamedTuple, TypeVar

_Choice = TypeVar("_Choice")

GENDERS = ("a", "o", "u")
TENSES = 3
_CONSONANTS = ("b d f g k l m n p r s t v z", "ch j kh l m n ny q r sh th w x y")
_VOWELS = ("a e i o u", "a ai e o u")
# By number, by tense: the endings.
_SOURCE_NUMBER = ("", "ki")
_SOURCE_TENSE = ("n", "ro", "vesu")
_TARGET_NUMBER = ("", "sh")
_TARGET_TENSE = ("em", "ith", "olan")
_TARGET_PERSON = ("", "ni")


class Word(NamedTuple):
    """A word in both languages; of nouns, the gender in the target language."""

    source: str
    target: str
    gender: str = ""


class Phrase(NamedTuple):
    """A noun with what belongs to it."""

    determiner: Word
    adjectives: tuple[Word, ...]
    noun: Word
    number: int


class Clause(NamedTuple):
    """Who does what to whom, and perhaps where."""

    subject: Phrase
    verb: Word
    tense: int
    object: Phrase
    relation: Word | None = None
    place: Phrase | None = None


def pick(random: Random, choices: tuple[_Choice, ...]) -> _Choice:
    """One of the choices; the early ones more often, as words are used in any language."""
    # Only random() gives the same numbers in every version of Python.
    return choices[int(len(choices) * random.random() * random.random())]


@dataclass(frozen=True)
class Languages:
    """The lexicon that a seed gives."""

    seed: int = 0
    nouns: tuple[Word, ...] = field(init=False)
    adjectives: tuple[Word, ...] = field(init=False)
    verbs: tuple[Word, ...] = field(init=False)
    determiners: tuple[Word, ...] = field(init=False)
    relations: tuple[Word, ...] = field(init=False)
    conjunctions: tuple[Word, ...] = field(init=False)

    def __post_init__(self) -> None:
        random = Random(f"lexicon {self.seed}")
        taken: set[str] = set()
        # The number of words and of syllables.
        sizes = {
            "determiners": (4, 1),
            "conjunctions": (3, 1),
            "relations": (6, 1),
            "nouns": (80, 2),
            "adjectives": (40, 2),
            "verbs": (60, 2),
        }
        for kind, (count, syllables) in sizes.items():
            words = []
            for _ in range(count):
                source = _invent(random, syllables, 0, taken)
                target = _invent(random, syllables, 1, taken)
                gender = GENDERS[int(len(GENDERS) * random.random())] if kind == "nouns" else ""
                words.append(Word(source, target, gender))
            object.__setattr__(self, kind, tuple(words))

    def sentence(self, random: Random) -> tuple[str, str]:
        """A sentence of one or two clauses in both languages."""
        clauses = [self.clause(random)]
        if random.random() < 0.3:
            clauses.append(self.clause(random))
        joint = pick(random, self.conjunctions)
        question = random.random() < 0.2
        source = f" {joint.source} ".join(map(say_source, clauses))
        target = f" {joint.target} ".join(map(say_target, clauses))
        mark = "?" if question else "."
        return source.capitalize() + mark, target.capitalize() + mark

    def clause(self, random: Random) -> Clause:
        """What is said, in no language yet."""
        placed = random.random() < 0.4
        return Clause(
            subject=self.phrase(random),
            verb=pick(random, self.verbs),
            tense=int(TENSES * random.random()),
            object=self.phrase(random),
            relation=pick(random, self.relations) if placed else None,
            place=self.phrase(random) if placed else None,
        )

    def phrase(self, random: Random) -> Phrase:
        """A noun with up to two adjectives."""
        adjectives = int(3 * random.random() * random.random())
        return Phrase(
            determiner=pick(random, self.determiners),
            adjectives=tuple(pick(random, self.adjectives) for _ in range(adjectives)),
            noun=pick(random, self.nouns),
            number=int(2 * random.random()),
        )


def say_source(clause: Clause) -> str:
    """The clause in the source language: subject, verb, object, place."""
    words = [
        *_source_phrase(clause.subject),
        clause.verb.source + _SOURCE_TENSE[clause.tense],
        *_source_phrase(clause.object),
    ]
    if clause.relation is not None and clause.place is not None:
        words += [clause.relation.source, *_source_phrase(clause.place)]
    return " ".join(words)


def say_target(clause: Clause) -> str:
    """The clause in the target language: subject, place, object, verb."""
    words = _target_phrase(clause.subject)
    if clause.relation is not None and clause.place is not None:
        words += [*_target_phrase(clause.place), clause.relation.target]
    words += _target_phrase(clause.object)
    ending = _TARGET_TENSE[clause.tense] + _TARGET_PERSON[clause.subject.number]
    return " ".join([*words, clause.verb.target + ending])


def _source_phrase(phrase: Phrase) -> list[str]:
    adjectives = [adjective.source for adjective in phrase.adjectives]
    return [
        phrase.determiner.source,
        *adjectives,
        phrase.noun.source + _SOURCE_NUMBER[phrase.number],
    ]


def _target_phrase(phrase: Phrase) -> list[str]:
    ending = phrase.noun.gender + _TARGET_NUMBER[phrase.number]
    words = [phrase.noun, *phrase.adjectives, phrase.determiner]
    return [word.target + ending for word in words]


def _invent(random: Random, syllables: int, language: int, taken: set[str]) -> str:
    """A new word of open syllables."""
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
