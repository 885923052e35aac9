"""BLEU and chrF: computed by hand, by the plain definition, and by Perl."""

import math
import random
import shutil
import subprocess
from importlib.metadata import version

import pytest
import sacrebleu

from lightconv.evaluate.metrics import METRICS, SacreBLEU, TokenizedBLEU, split_compounds
from tests.evaluate.plain import multi_bleu

PLAIN = TokenizedBLEU(name="plain")
LOWER = TokenizedBLEU(name="lower", lowercase=True)
SPLIT = TokenizedBLEU(name="split", compounds="split")

# hypotheses, references, BLEU, brevity penalty
BY_HAND = {
    "same": (["a b c d"], [["a b c d"]], 100.0, 1.0),
    "one word": (
        ["the cat sat on the mat"],
        [["the cat sat on a mat"]],
        100.0 * (5 / 6 * 3 / 5 * 2 / 4 * 1 / 3) ** 0.25,
        1.0,
    ),
    "short": (["a b c d e"], [["a b c d e f g h i j"]], 100.0 * math.exp(-1.0), math.exp(-1.0)),
    "long": (["a b c d e"], [["a b c d"]], 100.0 * (4 / 5 * 3 / 4 * 2 / 3 * 1 / 2) ** 0.25, 1.0),
    "clipped": (["the the the the the"], [["the cat is on the mat"]], 0.0, math.exp(-0.2)),
    "no four words": (["a b c"], [["a b c"]], 0.0, 1.0),
    "pooled": (
        ["a b c d", "a b c d x"],
        [["a b c d", "a b c d e"]],
        100.0 * (8 / 9 * 6 / 7 * 4 / 5 * 2 / 3) ** 0.25,
        1.0,
    ),
    "empty hypothesis": (["", "a b c d"], [["a b", "a b c d"]], 100.0 * math.exp(-0.5), None),
    "all empty": (["", ""], [["a b", "c"]], 0.0, 0.0),
    "empty reference": (["a b c d", "e"], [["a b c d", ""]], 100.0 * (4 / 5) ** 0.25, 1.0),
    "closest": (["a b c d e"], [["a b c d e f g h"], ["x y z v w u"]], 100 * math.exp(-0.2), None),
    "closest is shorter": (["a b c d e"], [["a b c d e f"], ["a b c d"]], 100.0, 1.0),
    "both references": (["a b c d"], [["a b c x"], ["x b c d"]], 0.0, 1.0),
    "half a surrogate": (["\ud800 b c d"], [["\ud800 b c d"]], 100.0, 1.0),
    "most of either": (["a a b b c"], [["a a c c b"], ["b b x y z"]], 0.0, 1.0),
}


@pytest.mark.parametrize("case", BY_HAND)
def test_by_hand(case: str) -> None:
    hypotheses, references, expected, penalty = BY_HAND[case]
    score = PLAIN.score(hypotheses, *references)
    assert score.value == pytest.approx(expected, abs=1e-9)
    if penalty is not None:
        assert score.parts["bp"] == pytest.approx(penalty)


def test_parts() -> None:
    parts = PLAIN.score(["a b c d x", "y"], ["a b c d e", "z z z z z"]).parts
    precisions = {"p1": 100 * 4 / 6, "p2": 75.0, "p3": 100 * 2 / 3, "p4": 50.0}
    lengths = {"bp": math.exp(1 - 10 / 6), "ratio": 0.6, "hyp_len": 6, "ref_len": 10}
    assert parts == pytest.approx(precisions | lengths)
    # With two references a and b count twice, c once: not more often than in one of them.
    parts = PLAIN.score(["a a b b c c"], ["a a c x y z"], ["b b x y z v"]).parts
    assert parts["p1"] == pytest.approx(100 * 5 / 6)


# Words end at ASCII white space only, and only ASCII letters have a lower case.
WORDS = ["a", "b", "B", "c", "Ä", "ä", "x-y", "a-b-c", "--", "-", "\u00a0", "e\u2003e", ".", "##"]
WORDS += ["a\u3000b", "a\u0085b", "\u2028", "\x1c", "a\x1fb"]
SPACES = [" ", " ", " ", "  ", "\t", "\v", "\r", "\n", "\f"]


def random_line(draw: random.Random) -> str:
    words = draw.choice([0, 1, 2, 4, 6, 9])
    return "".join(draw.choice(WORDS) + draw.choice(SPACES) for _ in range(words))


def random_corpus(draw: random.Random) -> tuple[list[str], list[list[str]]]:
    lines = draw.choice([1, 2, 4])
    references = [[random_line(draw) for _ in range(lines)] for _ in range(draw.choice([1, 1, 2]))]
    near = [
        draw.choice(references)[line] + draw.choice(["", " a", " b c"]) for line in range(lines)
    ]
    return [draw.choice([random_line(draw), line, line]) for line in near], references


@pytest.mark.parametrize("metric", [PLAIN, LOWER, SPLIT], ids=lambda metric: metric.name)
def test_equals_the_definition(metric: TokenizedBLEU) -> None:
    draw = random.Random(metric.name)
    positive = 0
    for _ in range(1000):
        hypotheses, references = random_corpus(draw)
        raw = [[by_hand(metric, line) for line in lines] for lines in (hypotheses, *references)]
        expected = multi_bleu(*raw)
        positive += expected > 0
        assert metric.score(hypotheses, *references).value == pytest.approx(expected, abs=1e-9)
    assert positive > 300


def by_hand(metric: TokenizedBLEU, line: str) -> bytes:
    if metric.lowercase:
        line = "".join(chr(ord(c) + 32) if "A" <= c <= "Z" else c for c in line)
    return (set_apart(line) if metric.compounds == "split" else line).encode()


def set_apart(line: str) -> str:
    """Character by character what s{(\\S)-(\\S)}{...}g does; white space is ASCII's."""
    done, rest = "", line
    while rest:
        if len(rest) > 2 and rest[1] == "-" and not {rest[0], rest[2]} & set(" \t\r\n\v\f"):
            done, rest = f"{done}{rest[0]} ##AT##-##AT## {rest[2]}", rest[3:]
        else:
            done, rest = done + rest[0], rest[1:]
    return done


COMPOUNDS = {
    "Nord-Ost Wind": "Nord ##AT##-##AT## Ost Wind",
    "aa-bb-cc": "aa ##AT##-##AT## bb ##AT##-##AT## cc",
    "a-b-c": "a ##AT##-##AT## b-c",
    "a-b-c-d": "a ##AT##-##AT## b-c ##AT##-##AT## d",
    "a - b": "a - b",
    "-a b-": "-a b-",
    "a--b": "a ##AT##-##AT## -b",
    "---": "- ##AT##-##AT## -",
    "über-ängstlich": "über ##AT##-##AT## ängstlich",
    "a\u00a0-\u00a0b": "a\u00a0 ##AT##-##AT## \u00a0b",
    "": "",
}


@pytest.mark.parametrize("line", COMPOUNDS)
def test_compounds(line: str) -> None:
    assert split_compounds(line.encode()).decode() == COMPOUNDS[line]
    assert set_apart(line) == COMPOUNDS[line]


@pytest.mark.skipif(shutil.which("perl") is None, reason="perl is not installed")
def test_compounds_as_the_one_liner_has_them() -> None:
    draw = random.Random(0)
    lines = [*COMPOUNDS, *("".join(draw.choices("ab- ä\u00a0\t", k=12)) for _ in range(2000))]
    text = "\n".join(lines).encode()
    rule = r"s{(\S)-(\S)}{$1 ##AT##-##AT## $2}g"
    done = subprocess.run(["perl", "-pe", rule], input=text, capture_output=True, check=True)
    assert done.stdout.split(b"\n") == [split_compounds(line.encode()) for line in lines]


def test_sacrebleu_by_hand() -> None:
    # Hello , world ! and Hello , there !: what matches not is halved, then halved again.
    score = SacreBLEU(name="s").score(["Hello, world!"], ["Hello, there!"])
    assert score.value == pytest.approx(100.0 * (3 / 4 * 1 / 3 * 1 / 4 * 1 / 4) ** 0.25)
    chinese = SacreBLEU(name="s", tokenize="zh").score(["我爱北京"], ["我爱上海"])
    assert chinese.value == pytest.approx(100.0 * (2 / 4 * 1 / 3 * 1 / 4 * 1 / 4) ** 0.25)
    assert SacreBLEU(name="s").score(["我爱北京"], ["我爱上海"]).value == 0.0


def test_sacrebleu_is_what_the_library_says_of_all_lines_at_once() -> None:
    draw = random.Random(1)
    words = ["Hello", "world", "it's", "10,000", "U.S.", "&quot;x&quot;", "end.", "\u00a0", "-"]
    for _ in range(50):
        hypotheses, one, other = (
            [" ".join(draw.choices(words, k=draw.randint(0, 12))) for _ in range(6)]
            for _ in range(3)
        )
        expected = sacrebleu.corpus_bleu(hypotheses, [one, other])
        score = SacreBLEU(name="s").score(hypotheses, one, other)
        assert score.value == pytest.approx(expected.score, abs=1e-9)
        assert [score.parts[f"p{n}"] for n in (1, 2, 3, 4)] == pytest.approx(expected.precisions)
        lengths = (score.parts["hyp_len"], score.parts["ref_len"])
        assert lengths == (expected.sys_len, expected.ref_len)


@pytest.mark.parametrize(
    "hypothesis, reference, expected",
    [
        ("abc", "abc", 100.0),
        # One letter of two, no pair of one: half and nothing.
        ("ab", "ac", 25.0),
        # Precision 1 and 1, recall 1/2 and 1/3; recall weighs double: F2 = 5pr / (4p + r).
        ("ab", "abcd", 100.0 * 5 * (5 / 12) / (4 + 5 / 12)),
        ("", "abc", 0.0),
        ("a b", "ab", 100.0),
    ],
)
def test_chrf_by_hand(hypothesis: str, reference: str, expected: float) -> None:
    assert METRICS["chrf"].score([hypothesis], [reference]).value == pytest.approx(expected)


VERSION = f"version:{sacrebleu.__version__}"
TOKENIZED = f"eff:no|tok:ascii-space|smooth:none|{VERSION}"
SIGNATURES = {
    "tokenized_bleu": f"case:mixed|{TOKENIZED}|compounds:kept",
    "tokenized_bleu_lowercase": f"case:lc-ascii|{TOKENIZED}|compounds:kept",
    "tokenized_bleu_compounds": f"case:mixed|{TOKENIZED}|compounds:split",
    "sacrebleu": f"case:mixed|eff:no|tok:13a|smooth:exp|{VERSION}",
    "sacrebleu_zh": f"case:mixed|eff:no|tok:zh|smooth:exp|{VERSION}",
    "chrf": f"case:mixed|eff:yes|nc:6|nw:0|space:no|{VERSION}|beta:2",
    "rouge": "case:lc|tok:a-z0-9|stem:rouge-1.5.5|irregular:wordnet-2.0-6f0d6873|sentences:¶|"
    f"L:union|mean:summaries|rouge-score:{version('rouge-score')}",
}


@pytest.mark.parametrize("name", SIGNATURES)
def test_signatures(name: str) -> None:
    for references in ([["a", "b"]], [["a", "b"], ["b", "c"]])[: 1 if name == "rouge" else 2]:
        found = str(METRICS[name].score(["a b", "c"], *references).signature)
        nrefs = f"{name}|nrefs:{len(references)}|"
        assert found.startswith(f"{nrefs}{SIGNATURES[name]}|lines:2|lightconv:")
