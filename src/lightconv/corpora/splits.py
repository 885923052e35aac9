"""Splits by hash, so that they stay the same when the mirror changes, and without leaks.

A group (packages of one stem, one page) belongs to one split. A text that occurs in several splits
is boilerplate: it is training text only.
"""

import re
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from functools import partial
from hashlib import sha256
from typing import NamedTuple

from lightconv.data.text import Example, Reader

# Prefixes of package names that say nothing about the program.
_PREFIXES = re.compile(
    r"(?:lib(?:ghc6?-|rust-|apache2-mod-)?|python3?-|golang-(?:github-|gopkg-|golang-)?|gir1\.2-"
    r"|r-(?:cran|bioc|other)-|(?:ruby|node|php|elpa|fonts|lua|haskell|texlive|gnome|task)-)+(?=.)",
    re.DOTALL,
)
_EDGES = ".,;:!?()[]{}<>\"'`«»„“”"
_MASK = "#"
# Words that look like names: digits, inner capitals, or characters that prose does not have.
_NAME = re.compile(r"[0-9_./:+@=\\-]|(?<=.)[A-Z]")


class Item(NamedTuple):
    """An example and its group, which is in one split as a whole."""

    example: Example
    group: str
    # Words that are masked in the example's template, in lower case.
    names: Collection[str] = ()


def package_stem(name: str) -> str:
    """The common name of a family of packages: `libfoobar2-dev`, `python3-foobar` -> `foobar`."""
    stem = name.lower()
    if prefix := _PREFIXES.match(stem):
        stem = stem[prefix.end() :]
    token = next(filter(None, re.split(r"[^a-z0-9]+", stem)), stem)
    letters = re.match(r"[a-z]{3,}", token)
    return (letters[0] if letters else token)[:6]


def position(key: str) -> float:
    """A number in [0, 1) that depends on the key alone."""
    return int.from_bytes(sha256(key.encode()).digest()[:6]) / 2**48


def split_of(group: str, held_out: float) -> str:
    """The split of a group; validation and test get the share `held_out` of the groups each."""
    place = position(group)
    if place < held_out:
        return "test"
    return "valid" if 0.5 <= place < 0.5 + held_out else "train"


def template(text: str, names: Collection[str] = ()) -> str:
    """The text with numbers and names masked, equal for all instances of one template."""
    words: list[str] = []
    for number, raw in enumerate(text.split()):
        word = raw.strip(_EDGES)
        named = (
            _NAME.search(word)
            or (number > 0 and word[:1].isupper())
            or word.lower().startswith(tuple(names))
        )
        mask = _MASK if named else word.lower()
        if mask and not (mask == _MASK and words[-1:] == [_MASK]):
            words.append(mask)
    return " ".join(words)


def divide(items: Iterable[Item], held_out: float) -> dict[str, Reader]:
    """The readers of the three splits; each example once.

    Validation and test have no source text of another split, none that training nearly has, no
    source text twice, and at most three instances of a template. They are ordered by a hash, so
    any prefix is a fair sample.
    """
    homes: dict[Example, str] = {}
    names: dict[Example, Collection[str]] = {}
    for example, group, named in items:
        home = split_of(group, held_out)
        if homes.setdefault(example, home) != home:
            homes[example] = "train"
        names.setdefault(example, named)
    found: dict[str, list[Example]] = {"train": [], "valid": [], "test": []}
    for example, home in homes.items():
        found[home].append(example)
    known = {letters_and_digits(example[0]) for example in found["train"]}
    for home in ("test", "valid"):
        leaked = leaks((text for text, *_ in found["train"]), [text for text, *_ in found[home]])
        unseen = [each for each, leak in zip(found[home], leaked, strict=True) if not leak]
        found[home] = []
        instances: Counter[str] = Counter()
        for example in sorted(unseen, key=lambda example: position("\n".join(example))):
            text, shape = letters_and_digits(example[0]), template(example[0], names[example])
            if text not in known and instances[shape] < 3:
                known.add(text)
                instances[shape] += 1
                found[home].append(example)
    return {home: partial(iter, examples) for home, examples in found.items()}


def letters_and_digits(text: str) -> str:
    """Letters and digits only, so that case and punctuation do not distinguish texts."""
    return "".join(filter(str.isalnum, text.casefold()))


def leaks(
    train: Iterable[str], test: Sequence[str], *, n: int = 4, share: float = 0.8
) -> list[bool]:
    """For each test text, True if training has at least `share` of its n-grams of words."""
    grams = [_grams(text, n) for text in test]
    wanted = set().union(*grams)
    seen: set[tuple[str, ...]] = set()
    for text in train:
        seen.update(wanted & _grams(text, n))
    return [len(own & seen) >= share * len(own) for own in grams]


def _grams(text: str, n: int) -> set[tuple[str, ...]]:
    """The n-grams of words; for a shorter text, the text itself."""
    words = text.split()
    return {tuple(words[i : i + n]) for i in range(max(1, len(words) - n + 1))}
