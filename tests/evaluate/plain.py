"""The measures once more, from their definitions: slow, short, and no library in them."""

import math
from collections import Counter
from collections.abc import Sequence
from functools import cache

Words = Sequence[str] | Sequence[bytes]


def ngrams(words: Words, n: int) -> "Counter[tuple[str | bytes, ...]]":
    return Counter(tuple(words[i : i + n]) for i in range(len(words) - n + 1))


def multi_bleu(hypotheses: Sequence[bytes], *references: Sequence[bytes]) -> float:
    """BLEU of Papineni et al. (2002), lengths of the closest reference, the shorter of two."""
    matches, totals, length, wanted = [0] * 4, [0] * 4, 0, 0
    for line, *others in zip(hypotheses, *references, strict=True):
        words = line.split()
        targets = [other.split() for other in others]
        length += len(words)
        wanted += min((abs(len(target) - len(words)), len(target)) for target in targets)[1]
        for n in range(1, 5):
            allowed: Counter[tuple[str | bytes, ...]] = Counter()
            for target in targets:
                allowed |= ngrams(target, n)
            found = ngrams(words, n)
            matches[n - 1] += (found & allowed).total()
            totals[n - 1] += found.total()
    if 0 in matches:
        return 0.0
    precision = math.prod(match / total for match, total in zip(matches, totals, strict=True))
    return 100.0 * min(1.0, math.exp(1.0 - wanted / length)) * precision**0.25


def f1(matches: int, found: int, wanted: int) -> float:
    return 100.0 * 2.0 * matches / (found + wanted) if matches else 0.0


def rouge_n(hypothesis: Sequence[list[str]], reference: Sequence[list[str]], n: int) -> float:
    """ROUGE-N of Lin (2004) for sentences of words; n-grams go on into the next sentence."""
    found = ngrams([word for sentence in hypothesis for word in sentence], n)
    wanted = ngrams([word for sentence in reference for word in sentence], n)
    return f1((found & wanted).total(), found.total(), wanted.total())


def rouge_l(hypothesis: Sequence[list[str]], reference: Sequence[list[str]]) -> float:
    """ROUGE-L of Lin (2004) for summaries: a word counts no more often than it stands in either."""
    left = Counter(word for sentence in hypothesis for word in sentence)
    right = Counter(word for sentence in reference for word in sentence)
    found, wanted = left.total(), right.total()
    matches = 0
    for sentence in reference:
        union = {place for other in hypothesis for place in common(sentence, other)}
        for place in sorted(union):
            word = sentence[place]
            if left[word] and right[word]:
                left[word] -= 1
                right[word] -= 1
                matches += 1
    return f1(matches, found, wanted)


def common(first: list[str], second: list[str]) -> tuple[int, ...]:
    """Places in `first` of a longest common subsequence; of several, the earliest places."""

    @cache
    def best(i: int, j: int) -> tuple[int, ...]:
        if not i or not j:
            return ()
        if first[i - 1] == second[j - 1]:
            return (*best(i - 1, j - 1), i - 1)
        return max(best(i - 1, j), best(i, j - 1), key=len)  # the first of two as long

    return best(len(first), len(second))
