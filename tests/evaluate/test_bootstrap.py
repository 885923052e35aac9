"""Bootstrap resampling against resampling of the texts themselves."""

import random
import time

import numpy
import pytest
import sacrebleu
from numpy.typing import NDArray

from lightconv.evaluate import METRICS, Comparison, Interval, Signature, bootstrap
from lightconv.evaluate.bootstrap import confidence, draw, paired_bootstrap, resample
from lightconv.evaluate.metrics import Summed
from tests.evaluate.plain import multi_bleu, rouge_l

Array = NDArray[numpy.float64]
NAMES = [name for name, metric in METRICS.items() if isinstance(metric, Summed)]


def summed(name: str) -> Summed:
    metric = METRICS[name]
    assert isinstance(metric, Summed)
    return metric


BLEU = summed("tokenized_bleu")


def worse(texts: list[str], share: float, seed: int) -> list[str]:
    """Some words replaced."""
    chance = random.Random(seed).random
    return [" ".join("x" if chance() < share else w for w in text.split()) for text in texts]


SOURCE = random.Random(0)
REFERENCES = [" ".join(SOURCE.choices("abcdefgh", k=SOURCE.randint(4, 12))) for _ in range(40)]
FIRST, SECOND = worse(REFERENCES, 0.15, 1), worse(REFERENCES, 0.2, 2)


def all_counts(lines: int, samples: int, seed: int) -> Array:
    return numpy.concatenate(list(draw(lines, samples, seed)))


def repeated(texts: list[str], counts: Array) -> list[str]:
    return [text for text, count in zip(texts, counts, strict=True) for _ in range(int(count))]


def by_definition(name: str, hypotheses: list[str], references: list[str]) -> float:
    if name == "tokenized_bleu":
        return multi_bleu(
            *([text.encode() for text in texts] for texts in (hypotheses, references))
        )
    if name == "sacrebleu":
        return sacrebleu.corpus_bleu(hypotheses, [references]).score
    pairs = zip(hypotheses, references, strict=True)
    return float(numpy.mean([rouge_l([a.split()], [b.split()]) for a, b in pairs]))


@pytest.mark.parametrize("name", ["tokenized_bleu", "sacrebleu", "rouge"])
def test_each_sample_scores_as_its_texts_do(name: str) -> None:
    metric = summed(name)
    systems = [metric.statistics(texts, REFERENCES) for texts in (FIRST, SECOND)]
    found = resample(metric, systems, samples=20, seed=5)
    for values, texts in zip(found, (FIRST, SECOND), strict=True):
        expected = [
            by_definition(name, repeated(texts, counts), repeated(REFERENCES, counts))
            for counts in all_counts(40, 20, seed=5)
        ]
        assert values == pytest.approx(expected, abs=1e-9)
        assert len(set(expected)) > 15


@pytest.mark.parametrize("better", [0, 1])
def test_the_test_of_koehn(better: int) -> None:
    first, second = (FIRST, SECOND) if better == 0 else (SECOND, FIRST)
    found = paired_bootstrap(BLEU, first, second, REFERENCES, samples=200, seed=3)
    values = []
    for counts in all_counts(40, 200, seed=3):
        texts = [repeated(each, counts) for each in (first, second, REFERENCES)]
        values.append([by_definition("tokenized_bleu", each, texts[2]) for each in texts[:2]])
    scores = [by_definition("tokenized_bleu", each, REFERENCES) for each in (first, second)]
    assert scores[better] > scores[1 - better]
    missed = sum(pair[better] <= pair[1 - better] for pair in values)
    assert 0 < missed < 100
    assert found.p_value == pytest.approx((missed + 1) / 201)
    alone, signature = confidence(BLEU, first, REFERENCES, samples=200, seed=3)
    assert alone == found.first and "|lines:40|bs:200|seed:3|level:95|" in str(signature)
    intervals = (found.first, found.second, found.difference)
    columns = zip(*((a, b, a - b) for a, b in (scores, *values)), strict=True)
    for interval, (score, *sample) in zip(intervals, columns, strict=True):
        assert interval.value == pytest.approx(score)
        ordered = sorted(sample)
        # The middle 95 % of 200: between the 5th and the 6th from either end.
        assert ordered[4] - 1e-9 <= interval.low <= ordered[5] + 1e-9
        assert ordered[-6] - 1e-9 <= interval.high <= ordered[-5] + 1e-9


def test_samples_have_as_many_lines_as_there_are() -> None:
    counts = all_counts(30, 500, seed=1)
    assert counts.shape == (500, 30)
    assert (counts.sum(axis=1) == 30).all()
    # A line is missing from a sample with probability (1 - 1/30) ** 30.
    assert (counts == 0).mean() == pytest.approx((29 / 30) ** 30, abs=0.01)
    assert counts.mean(axis=0) == pytest.approx(1.0, abs=0.25)


def test_the_seed_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = all_counts(30, 50, seed=1)
    assert (all_counts(30, 50, seed=1) == whole).all()
    assert (all_counts(30, 50, seed=2) != whole).any()
    monkeypatch.setattr(bootstrap, "_CELLS", 100)  # three samples at a time
    assert len(list(draw(30, 50, seed=1))) == 17
    assert (all_counts(30, 50, seed=1) == whole).all()
    # From numpy's frozen generator: a p-value printed once is printed again years later.
    picks = numpy.random.RandomState(12345).randint(0, 5, size=(1, 5), dtype=numpy.int64)
    assert picks.tolist() == [[2, 1, 4, 1, 2]]
    assert all_counts(5, 1, seed=12345).tolist() == [[0, 2, 2, 0, 1]]


@pytest.mark.parametrize("name", NAMES)
def test_a_system_against_itself_and_against_a_worse_one(name: str) -> None:
    found = paired_bootstrap(summed(name), FIRST, FIRST, REFERENCES, samples=50)
    assert found.p_value == 1.0
    assert (found.difference.low, found.difference.high) == (0.0, 0.0)
    found = paired_bootstrap(summed(name), REFERENCES, SECOND, REFERENCES, samples=99)
    assert found.p_value == pytest.approx(0.01)
    assert 0 < found.difference.low < found.difference.value < found.difference.high


def test_the_other_way_round_and_several_references() -> None:
    one = paired_bootstrap(BLEU, FIRST, SECOND, REFERENCES, samples=100)
    other = paired_bootstrap(BLEU, SECOND, FIRST, REFERENCES, samples=100)
    assert (one.first, one.second) == (other.second, other.first)
    assert one.difference.low == pytest.approx(-other.difference.high)
    assert one.p_value == other.p_value
    found = paired_bootstrap(BLEU, ["a b c d"], ["a b c x"], ["a b c d"], ["x"], samples=10)
    assert found.first.low == pytest.approx(100.0)
    assert found.second.high == 0.0
    assert "|nrefs:2|" in str(found.signature)


def test_one_line_of_text() -> None:
    signature = Signature("bleu", {"lines": 40})
    intervals = (Interval(68.351, 57.7, 80.96), Interval(34.6, 30.322, 44.57), Interval(3, 2, 4))
    found = Comparison(*intervals, 0.04762, signature)
    assert str(found) == (
        f"{signature} = 68.35 [57.70, 80.96] against 34.60 [30.32, 44.57], difference 3.00 "
        "[2.00, 4.00], p 0.0476"
    )
    assert found.plain() == {
        "metric": "bleu",
        "first": {"value": 68.351, "low": 57.7, "high": 80.96},
        "second": {"value": 34.6, "low": 30.322, "high": 44.57},
        "difference": {"value": 3, "low": 2, "high": 4},
        "p_value": 0.04762,
        "signature": str(signature),
    }
    signed = paired_bootstrap(BLEU, FIRST, SECOND, REFERENCES, samples=100, seed=9).signature
    assert "|lines:40|test:paired|bs:100|seed:9|level:95|lightconv:" in str(signed)


def test_errors() -> None:
    with pytest.raises(ValueError, match="samples=0, expected at least one"):
        paired_bootstrap(BLEU, FIRST, SECOND, REFERENCES, samples=0)
    with pytest.raises(ValueError, match="39 hypotheses and 40 references"):
        paired_bootstrap(BLEU, FIRST, SECOND[1:], REFERENCES)


def test_a_thousand_samples_of_three_thousand_lines() -> None:
    generator = numpy.random.RandomState(0)
    statistics = [generator.randint(5, 30, size=(3000, 10)).astype(float) for _ in range(2)]
    start = time.process_time()
    resample(BLEU, statistics)
    assert time.process_time() - start < 3.0
