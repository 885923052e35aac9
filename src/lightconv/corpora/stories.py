"""Sentences from templates, and documents with a few sentences that matter."""

import re
from functools import cache
from random import Random

from lightconv.corpora.invented import pick

# What may stand in a slot, as words with spaces between them.
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
# A slot with a digit is filled once: what it says returns at the end of the sentence.
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
# What a document is about, and what its summary says of it.
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


def sentence(random: Random) -> str:
    """A sentence of lower-case words and names, its marks set off by spaces."""
    return _fill(pick(random, _TEMPLATES), random, {})


def document(random: Random, sentences: tuple[int, int] = (12, 30)) -> tuple[str, str]:
    """A document, as many sentences as within bounds, and its summary: two of them, shortened."""
    fewest, most = sentences
    count = fewest + int((most - fewest + 1) * random.random())
    first, second = sorted(int((count + 1) * random.random()) for _ in range(2))
    lines = [_capital(sentence(random)) for _ in range(count)]
    summary = []
    for place, (long, short) in ((first, pick(random, _KEYS)), (second + 1, pick(random, _KEYS))):
        filled: dict[str, str] = {}
        lines.insert(place, _capital(_fill(long, random, filled)))
        summary.append(_capital(_fill(short, random, filled)))
    return " ".join(lines), " ".join(summary)


def _fill(template: str, random: Random, filled: dict[str, str]) -> str:
    """The template with words in its slots; numbered ones are kept in `filled`."""
    said = []
    for text, kind, number in _parts(template):
        said.append(text)
        if not kind:
            continue
        slot = kind + number
        if not number or slot not in filled:
            word = pick(random, _WORDS[kind])
            # Numbered words differ: two names are two people.
            while number and word in filled.values():
                word = pick(random, _WORDS[kind])
            filled[slot] = word
        said.append(filled[slot])
    return "".join(said)


@cache
def _parts(template: str) -> list[tuple[str, str, str]]:
    """The texts of a template, each with the slot after it: its kind and number, if any."""
    pieces = [*_SLOT.split(template), "", ""]
    return list(zip(pieces[::3], pieces[1::3], pieces[2::3], strict=True))


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
