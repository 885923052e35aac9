"""Made-up text for tests: words that follow each other with the frequencies of a language."""

import random

SYLLABLES = "ba be bi bo da de du en er fa ge he ich in ka ko la len ma mi ne no pa ra re sa so ten"


def make_words(count: int, seed: int = 0) -> list[str]:
    """Different words of one to five syllables, some with odd characters."""
    draw = random.Random(seed)
    syllables = SYLLABLES.split()
    words: dict[str, None] = {}
    while len(words) < count:
        word = "".join(draw.choice(syllables) for _ in range(draw.randint(1, 5)))
        if draw.random() < 0.05:
            place = draw.randrange(len(word) + 1)
            word = (
                word[:place]
                + draw.choice(["ß", "漢字", "é", "-", "</w>", "@@x", "😀"])
                + word[place:]
            )
        words[word] = None
    return list(words)


def make_lines(count: int, words: list[str], seed: int = 0) -> list[str]:
    """Sentences of these words, the first ones frequent, the last ones rare."""
    draw = random.Random(seed)
    weights = [1 / (place + 1) for place in range(len(words))]
    total = draw.choices(words, weights, k=count * 10)
    return [" ".join(total[10 * i : 10 * i + draw.randint(1, 10)]) for i in range(count)]
