"""Splits: stems, stability, templates, and the measure of leaks against a plain definition."""

import pickle
import random
import subprocess
import sys
from collections import Counter
from itertools import count, islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightconv.corpora.splits import Item, divide, leaks, package_stem, position, split_of, template
from lightconv.data.text import Reader


@pytest.mark.parametrize(
    ("name", "stem"),
    [
        ("foobar", "foobar"),
        ("libfoobar2-dev", "foobar"),
        ("libfoobarbaz0", "foobar"),
        ("python3-foobar-doc", "foobar"),
        ("ruby-foobar", "foobar"),
        ("librust-foobar-sys+default-dev", "foobar"),
        ("golang-github-foobar-baz-dev", "foobar"),
        ("r-cran-foobar.baz", "foobar"),
        ("texlive-fonts-foobar", "foobar"),
        ("gir1.2-foobar-1.0", "foobar"),
        ("libpng16-16", "png"),
        ("linux-image-6.1.0-10-amd64", "linux"),
        ("linux-image-6.5.0-1-arm64", "linux"),
        ("x11-apps", "x11"),
        ("0ad-data", "0ad"),
        ("libreoffice-writer", "reoffi"),
        ("libreoffice", "reoffi"),
        ("lib", "lib"),
        ("python-", "python"),
        ("2048-qt", "2048"),
    ],
)
def test_stems(name: str, stem: str) -> None:
    assert package_stem(name) == stem


@given(st.text(max_size=30))
def test_any_name_has_a_stem(name: str) -> None:
    assert len(package_stem(name)) <= 6
    assert 0.0 <= position(name) < 1.0


def test_positions_and_shares() -> None:
    # The first twelve digits of `printf foobar | sha256sum`.
    assert position("foobar") == 0xC3AB8FF13720 / 16**12
    sizes = Counter(split_of(f"group {number}", 0.1) for number in range(20_000))
    assert sizes["test"] == pytest.approx(2000, abs=200)
    assert sizes["valid"] == pytest.approx(2000, abs=200)
    for number in range(2000):  # a group that is held out stays so with a larger share
        assert split_of(str(number), 0.05) in ("train", split_of(str(number), 0.2))


def test_splits_do_not_depend_on_the_hash_seed() -> None:
    code = (
        "from lightconv.corpora.splits import *\n"
        "print([list(r()) for r in divide([Item((f'text {n} of {n % 7}',), str(n % 50))"
        " for n in range(500)], 0.2).values()])"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)},
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(outputs) == 1


def test_templates_mask_numbers_and_names() -> None:
    first = template("This package contains libfoo2 1.2-3 for Foo Bar.", ["foo"])
    second = template("This package contains the-baz 7 for GNOME.", ["baz"])
    assert first == second == "this package contains # for #"
    assert template("data files for foo", ["foo"]) == template("data files for bar", ["bar"])
    assert template("data files for foo") != template("data files for bar")
    assert template("Data files") == "data files"
    assert template("") == ""


def lists(readers: dict[str, Reader]) -> dict[str, list[tuple[str, ...]]]:
    return {split: list(reader()) for split, reader in readers.items()}


def group_in(split: str, number: int = 0) -> str:
    """The n-th group that belongs to a split."""
    members = (name for name in map(str, count()) if split_of(name, 0.2) == split)
    return next(islice(members, number, None))


def test_groups_stay_together() -> None:
    source = random.Random(3)
    items = [
        Item((f"{source.random()} {source.random()}", str(n)), f"group {n % 40}")
        for n in range(400)
    ]
    found = lists(divide(items, 0.2))
    assert sum(map(len, found.values())) <= 400
    for split in found:
        groups = {int(example[1]) % 40 for example in found[split]}
        others = {int(e[1]) % 40 for other in found if other != split for e in found[other]}
        assert groups and not groups & others


def test_what_is_in_several_splits_is_learned_from() -> None:
    shared = ("the boilerplate of all", "y")
    groups = [group_in("test"), group_in("valid")]
    found = lists(divide([Item(shared, group) for group in groups], 0.2))
    assert found == {"train": [shared], "valid": [], "test": []}


def test_no_source_text_of_training_is_tested_on() -> None:
    items = [
        Item(("What a text!", "a"), group_in("train")),
        Item(("what a (text)", "b"), group_in("test")),
        Item(("what a test", "c"), group_in("test")),
        Item(("what a test", "d"), group_in("test")),
        Item(("what a test", "e"), group_in("valid")),
    ]
    found = lists(divide(items, 0.2))
    assert found["train"] == [("What a text!", "a")]
    assert len(found["test"]) == 1 and found["test"][0][0] == "what a test"
    assert found["valid"] == []


def test_nothing_that_training_nearly_has_is_tested_on() -> None:
    items = [
        Item(("one two three four five six seven eight nine ten",), group_in("train")),
        # Four of its five 4-grams are in training; two of four.
        Item(("one two three four five six seven new",), group_in("test")),
        Item(("four five six seven eight new words",), group_in("test")),
    ]
    assert lists(divide(items, 0.2))["test"] == [("four five six seven eight new words",)]


def test_at_most_three_instances_of_a_template() -> None:
    items = [Item((f"modules for {n} and more",), group_in("test", n % 5)) for n in range(50)]
    items += [Item((f"modules for {n} and less",), group_in("valid", n % 5)) for n in range(50)]
    items += [Item((f"modules for {n} or else",), group_in("train", n % 5)) for n in range(50)]
    found = lists(divide(items, 0.2))
    assert [len(found[split]) for split in ("train", "valid", "test")] == [50, 3, 3]
    words = ("alpha", "beta", "gamma", "delta", "eta")
    named = [Item((f"modules for {word} here",), group_in("test"), [word]) for word in words]
    assert len(lists(divide(named, 0.2))["test"]) == 3
    # Which three depends on the texts, not on the order.
    assert lists(divide(reversed(items), 0.2))["test"] == found["test"]


def test_readers_begin_anew_and_travel() -> None:
    items = [Item((f"{position(str(n))} text",), str(n)) for n in range(50)]
    readers = divide(items, 0.2)
    copies = pickle.loads(pickle.dumps(readers))
    for split, reader in readers.items():
        assert list(reader()) == list(reader()) == list(copies[split]())


@given(
    st.lists(st.text("ab ", max_size=30), max_size=8),
    st.lists(st.text("ab ", max_size=30), max_size=5),
    st.integers(1, 4),
    st.sampled_from([0.5, 0.8, 1.0]),
)
def test_leaks_by_definition(train: list[str], test: list[str], n: int, share: float) -> None:
    def grams(text: str) -> list[str]:
        words = text.split()
        if len(words) < n:
            return [" ".join(words)]
        return [" ".join(words[i : i + n]) for i in range(len(words) - n + 1)]

    known = [gram for text in train for gram in grams(text)]
    for text, leak in zip(test, leaks(train, test, n=n, share=share), strict=True):
        own = sorted(set(grams(text)))
        assert leak == (sum(gram in known for gram in own) / len(own) >= share)
