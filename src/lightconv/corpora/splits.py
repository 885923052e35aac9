"""Training, validation and test: by hash, so that they stay when the mirror moves, without leaks.

What belongs together (packages of one stem, one page) goes to one split. A text that occurs in
several is boilerplate and is learned from, never tested on.
"""

import re
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from functools import partial
from hashlib import sha256
from typing import NamedTuple

from lightconv.data.corpus import Example, Reader

TEMPLATE_LIMIT = 3

# What names of packages begin with and what says nothing about the program.
_PREFIXES = (
    "libghc6-",
    "libghc-",
    "librust-",
    "libapache2-mod-",
    "lib",
    "python3-",
    "python-",
    "golang-github-",
    "golang-gopkg-",
    "golang-golang-",
    "golang-",
    "r-cran-",
    "r-bioc-",
    "r-other-",
    "ruby-",
    "node-",
    "php-",
    "elpa-",
    "fonts-",
    "gir1.2-",
    "lua-",
    "haskell-",
    "texlive-",
    "gnome-",
    "task-",
)
_STEM_LETTERS = 6
_EDGES = ".,;:!?()[]{}<>\"'`«»„“”"
_MASK = "#"
# A name by its looks: digits, capitals inside, or what prose does not put into words.
_NAME = re.compile(r"[0-9_./:+@=\\-]|(?<=.)[A-Z]")


class Item(NamedTuple):
    """An example and where it stands."""

    example: Example
    # Stays in one split as a whole.
    group: str
    # Words that the example's template leaves out, in lower case.
    names: Collection[str] = ()


def package_stem(name: str) -> str:
    """What packages of one family share: `libfoobar2-dev`, `python3-foobar` -> `foobar`."""
    stem = name.lower()
    while prefix := next((p for p in _PREFIXES if stem.startswith(p) and stem != p), None):
        stem = stem.removeprefix(prefix)
    token = next(filter(None, re.split(r"[^a-z0-9]+", stem)), stem)
    letters = re.match(r"[a-z]{3,}", token)
    return (letters[0] if letters else token)[:_STEM_LETTERS]


def position(key: str) -> float:
    """A number in [0, 1) that depends on the key alone."""
    return int.from_bytes(sha256(key.encode()).digest()[:6]) / 2**48


def split_of(group: str, held_out: float) -> str:
    """The split of a group, if validation and test get `held_out` of the groups each.

    What is tested on with a small share is tested on with every larger one.
    """
    place = position(group)
    if place < held_out:
        return "test"
    return "valid" if 0.5 <= place < 0.5 + held_out else "train"


def template(text: str, names: Collection[str] = ()) -> str:
    """The text with numbers and names masked: what instances of one template have in common."""
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

    Validation and test hold no source text of another split, none that training nearly has, each of
    theirs once, and at most three instances of a template. Their order is that of a hash, so any
    beginning is a fair sample.
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
        found[home] = _held_out(_unleaked(found["train"], found[home]), names, known)
    # Readers must start anew each time, and travel to other processes.
    return {home: partial(iter, examples) for home, examples in found.items()}


def _unleaked(train: Sequence[Example], test: Sequence[Example]) -> list[Example]:
    """The examples whose source text is not nearly in training."""
    leaked = leaks((example[0] for example in train), [example[0] for example in test])
    return [example for example, leak in zip(test, leaked, strict=True) if not leak]


def _held_out(
    examples: Sequence[Example], names: dict[Example, Collection[str]], known: set[str]
) -> list[Example]:
    """What of the examples may be tested on; their texts become known."""
    kept: list[Example] = []
    instances: Counter[str] = Counter()
    for example in sorted(examples, key=lambda example: position("\n".join(example))):
        text, shape = letters_and_digits(example[0]), template(example[0], names[example])
        if text not in known and instances[shape] < TEMPLATE_LIMIT:
            known.add(text)
            instances[shape] += 1
            kept.append(example)
    return kept


def letters_and_digits(text: str) -> str:
    """Letters and digits only: what case and punctuation change is the same text."""
    return "".join(filter(str.isalnum, text.casefold()))


def leaks(
    train: Iterable[str], test: Sequence[str], *, n: int = 4, share: float = 0.8
) -> list[bool]:
    """For each test text, whether training has at least `share` of its n-grams of words."""
    grams = [_grams(text, n) for text in test]
    wanted = set().union(*grams)
    seen: set[tuple[str, ...]] = set()
    for text in train:
        seen.update(wanted & _grams(text, n))
    return [len(own & seen) >= share * len(own) for own in grams]


def _grams(text: str, n: int) -> set[tuple[str, ...]]:
    """The n-grams of words; of a shorter text, the text itself."""
    words = text.split()
    return {tuple(words[i : i + n]) for i in range(max(1, len(words) - n + 1))}
