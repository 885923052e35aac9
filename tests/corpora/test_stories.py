"""Sentences and documents: slots are filled, what should agree agrees, summaries are true."""

import re
from random import Random

from lightconv.corpora.stories import document, sentence


def test_sentences_are_filled_and_varied() -> None:
    random = Random(0)
    texts = [sentence(random) for _ in range(2000)]
    assert not any("{" in text or "}" in text for text in texts)
    assert all(text.endswith(" .") for text in texts)
    assert len(set(texts)) > 1500


def test_what_returns_is_the_same() -> None:
    random = Random(1)
    pattern = re.compile(
        r"on \w+ , (\w+) gives (\w+) a \w+ (\w+) , and (\w+) puts the (\w+) away ."
    )
    found = [pattern.fullmatch(sentence(random)) for _ in range(500)]
    gifts = [match.groups() for match in found if match]
    assert len(gifts) > 20
    for giver, taker, thing, again, thing_again in gifts:
        assert giver != taker == again
        assert thing == thing_again


def test_documents_and_summaries() -> None:
    random = Random(2)
    keys = (
        (
            r"(\w+) will build a (\w+) (\w+) \.",
            r"decided that {} will build a {} {} for \w+",
        ),
        (r"(\w+) found the (\w+) of (\w+) \.", r"{} has found the \w+ {} that {} had lost"),
        (r"(\w+) closes the (\w+) on (\w+) \.", None),
    )
    seen = set()
    for _ in range(200):
        text, summary = document(random)
        assert 14 <= len(re.findall(r" \.", text)) <= 32
        claims = re.findall(r"[^.]+ \.", summary)
        assert len(claims) == 2
        for claim in claims:
            for number, (said, source) in enumerate(keys):
                match = re.fullmatch(said, claim.strip())
                if match:
                    seen.add(number)
                    weather, place, day = match.groups()
                    wanted = f"the {place} closes on {day} because of the {weather.lower()}"
                    assert re.search(source.format(*match.groups()) if source else wanted, text)
                    break
            else:
                raise AssertionError(claim)
    assert seen == {0, 1, 2}


def test_key_sentences_stand_anywhere() -> None:
    random = Random(3)
    places = set()
    for _ in range(300):
        lines = document(random, (8, 8))[0].split(" . ")
        assert len(lines) == 10
        places |= {n for n, line in enumerate(lines) if re.match("The town|After|It is now", line)}
    assert places == set(range(10))
