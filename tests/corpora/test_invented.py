"""The invented languages: rules of the grammar on words made by hand, and their use at large."""

from random import Random

from lightconv.corpora.invented import (
    Clause,
    Languages,
    Phrase,
    Word,
    pick,
    say_source,
    say_target,
)

THE, BIG, RED = Word("la", "tu"), Word("gran", "mag"), Word("ruj", "eryth")
DOG, CAT, BARN = Word("hund", "kyn", "a"), Word("kat", "ail", "o"), Word("stal", "auch", "u")
SEE, IN = Word("vid", "blep"), Word("en", "par")


def test_order_and_endings() -> None:
    one = Phrase(THE, (BIG, RED), DOG, 0)
    many = Phrase(THE, (), CAT, 1)
    clause = Clause(one, SEE, 1, many)
    assert say_source(clause) == "la gran ruj hund vidro la katki"
    assert say_target(clause) == "kyna maga erytha tua ailosh tuosh blepith"
    turned = Clause(many, SEE, 2, one, IN, Phrase(THE, (RED,), BARN, 0))
    assert say_source(turned) == "la katki vidvesu la gran ruj hund en la ruj stal"
    assert say_target(turned) == (
        "ailosh tuosh auchu erythu tuu par kyna maga erytha tua blepolanni"
    )


def test_a_source_has_one_translation() -> None:
    languages = Languages(3)
    random = Random(1)
    known: dict[str, str] = {}
    for _ in range(5000):
        source, target = languages.sentence(random)
        assert known.setdefault(source, target) == target
        assert source[-1] == target[-1] and source[-1] in ".?"
        assert len(source.split()) == len(target.split())


def test_no_word_is_two() -> None:
    languages = Languages(0)
    kinds = ("determiners", "conjunctions", "relations", "nouns", "adjectives", "verbs")
    words = [word for kind in kinds for word in getattr(languages, kind)]
    assert len({word.source for word in words}) == len({word.target for word in words}) == 193
    assert not {word.source for word in words} & {word.target for word in words}
    assert {noun.gender for noun in languages.nouns} == {"a", "o", "u"}


def test_early_words_are_frequent_and_all_occur() -> None:
    random = Random(5)
    drawn = [pick(random, tuple(range(10))) for _ in range(20_000)]
    counts = [drawn.count(n) for n in range(10)]
    assert counts == sorted(counts, reverse=True) and counts[-1] > 0
