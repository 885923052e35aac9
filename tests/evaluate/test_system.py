"""A model on a split: texts by hand, scores against those of its translations."""

import random
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import lightconv
from lightconv.data.config import BPEConfig, BytesConfig
from lightconv.data.prepared import Prepared
from lightconv.data.text import Example
from lightconv.decode import DecodeConfig
from lightconv.evaluate import METRICS, compute_perplexity, system
from lightconv.evaluate.comparison import Evaluation
from lightconv.evaluate.system import (
    Examples,
    Forms,
    check_data,
    describe_search,
    find_metrics,
    of_ids,
    of_texts,
    open_model,
    validation_metric,
)
from lightconv.evaluate.tune import Tuner
from lightconv.files import write_manifest
from lightconv.models import LanguageModel, Seq2Seq
from lightconv.models.folder import ModelFolder
from lightconv.ops.library import native
from tests.evaluate.examples import GOLDEN, make
from tests.evaluate.plain import multi_bleu

PAIRS, TEXT = GOLDEN / "end" / "pairs" / "model", GOLDEN / "end" / "text" / "model"
EXAMPLES = [("Hallo, Welt!", "Hello, World!"), ("Ein kleines-Haus.", "A small-house isn't big.")]
WORDS = [("Hallo , Welt !", "Hello , World !"), ("Ein Haus .", "A small-house isn &apos;t big .")]
MOSES: dict[str, Any] = {"side": {"tokenize": "moses"}, "subword": BPEConfig(merges=5)}
LOWERED: dict[str, Any] = {**MOSES, "side": {"tokenize": "moses", "lowercase": True}}
BYTES: dict[str, Any] = {"subword": BytesConfig(vocab=300)}


@pytest.fixture(scope="module")
def pairs() -> Prepared:
    return Prepared.open(GOLDEN / "data" / "pairs")


@pytest.fixture(scope="module")
def model() -> Seq2Seq:
    found = ModelFolder(PAIRS).load()
    assert isinstance(found, Seq2Seq)
    return found


def translate(prepared: Prepared, split: str) -> list[str]:
    return lightconv.load(PAIRS).translate(list(prepared.texts(split, "source")))


# --- forms


def outputs(prepared: Prepared) -> Forms:
    """The ids of the references, as if a model had said them."""
    store = prepared.store("valid")
    ids = [[*store[row][1].tolist(), 2] for row in range(len(store))]
    return of_ids(prepared.pipeline, ids)


PLAIN, SPLIT = ([target for _, target in pairs] for pairs in (EXAMPLES, WORDS))
LOWER = Forms([text.lower() for text in SPLIT], [text.lower() for text in PLAIN])


@pytest.mark.parametrize(
    "examples, fields, expected",
    [
        (EXAMPLES, MOSES, Forms(SPLIT, PLAIN)),
        (WORDS, {**MOSES, "tokenized": True}, Forms(SPLIT, PLAIN)),
        (EXAMPLES, LOWERED, LOWER),
        (EXAMPLES, BYTES, Forms(PLAIN, PLAIN)),
    ],
    ids=["moses", "came tokenised", "lowered", "bytes"],
)
def test_words_and_plain_text(
    examples: list[Example], fields: dict[str, Any], expected: Forms, tmp_path: Path
) -> None:
    prepared = make(tmp_path, examples, **fields)
    assert Examples(prepared, "valid").references == expected
    assert outputs(prepared) == expected


def test_other_texts_and_lines(tmp_path: Path) -> None:
    prepared = make(tmp_path, EXAMPLES, **MOSES)
    assert of_texts(prepared, ["Oh, no."]) == Forms(["Oh , no ."], ["Oh, no."])
    assert Examples(prepared, "valid", 1).references == Forms(SPLIT[:1], PLAIN[:1])
    prepared = make(tmp_path / "bytes", EXAMPLES, **BYTES)
    newline = prepared.pipeline.encode(1, ["a\nb"])
    assert of_ids(prepared.pipeline, newline).plain == ["a b"], "an output is one line"


def test_every_metric_has_its_form() -> None:
    for name, metric in METRICS.items():
        form = "words" if name.startswith("tokenized") else "plain"
        assert Forms(["words"], ["plain"]).for_metric(metric) == [form]


@pytest.mark.parametrize("metric", ["tokenized_bleu_compounds", "tokenized_bleu_lowercase", "x"])
def test_perfect_outputs_score_full_marks(metric: str, tmp_path: Path) -> None:
    """Through Moses, lower case, BPE and back."""
    examples = [("Ein Satz, noch einer.", "One well-known sentence, and (another) one's end.")] * 3
    prepared = make(tmp_path, examples, metric=metric, **LOWERED)
    metrics = find_metrics(prepared)
    scores = Examples(prepared, "valid").score(outputs(prepared), metrics, {"beam": 4})
    names = [score.signature.name for score in scores]
    assert names == [*([metric] if metric != "x" else []), "sacrebleu", "chrf"]
    assert [score.value for score in scores] == pytest.approx([100.0] * len(scores))
    assert all("|refs:lowered|split:valid|data:" in str(score.signature) for score in scores)


def test_tokenised_text_is_scored_by_its_own_measure(tmp_path: Path) -> None:
    """sacreBLEU's tokeniser makes an apostrophe of &apos; and joins it: other words, other BLEU."""
    examples = [("das", "it &apos;s what we don &apos;t know &quot; yet &quot; .")] * 3
    fields: dict[str, Any] = {"subword": BPEConfig(merges=50), "tokenized": True}
    prepared = make(tmp_path, examples, metric="tokenized_bleu", **fields)
    (metric,) = find_metrics(prepared)
    assert metric.name == "tokenized_bleu"
    noisy = ["it &apos;s why we don &apos;t know &quot; yet &quot; ."] * 3
    forms = of_texts(prepared, noisy, tokenized=True)
    references = Examples(prepared, "valid").references
    (score,) = Examples(prepared, "valid").score(forms, [metric], {})
    expected = [[text.encode() for text in each] for each in (noisy, references.words)]
    assert references.words == [target for _, target in examples]
    assert score.value == pytest.approx(multi_bleu(*expected))
    other = METRICS["sacrebleu"].score(noisy, references.plain).value
    assert other > score.value + 2.0
    # The pipeline of this one gives plain text, which other measures read.
    moses = make(tmp_path / "moses", WORDS, metric="tokenized_bleu", **MOSES, tokenized=True)
    assert [each.name for each in find_metrics(moses)] == ["tokenized_bleu", "sacrebleu", "chrf"]


# --- scores


def test_the_outputs_are_those_of_translate(pairs: Prepared, model: Seq2Seq) -> None:
    _, decode = open_model(PAIRS, pairs)
    examples = Examples(pairs, "test")
    found, forms, scores = examples.evaluate(model, decode, find_metrics(pairs))
    assert forms.plain == translate(pairs, "test")
    references = pairs.references("test")
    assert [score.signature.name for score in scores] == ["sacrebleu", "chrf"]
    for score in scores:
        expected = METRICS[score.signature.name].score(forms.plain, references)
        assert score.value == expected.value
        signature = str(score.signature)
        assert signature.startswith(str(expected.signature).rpartition("|")[0])
        data = f"|split:test|data:9800fcc1|texts:{examples.digest}"
        assert f"{data}|beam:3|penalty:power|alpha:0.7|" in signature
        assert "refs:lowered" not in signature
    ids = pairs.pipeline.encode(1, forms.plain)
    assert found.tokens == sum(len(each) + 1 for each in ids)
    assert found.seconds > 0.0


def test_a_few_lines_and_hurry(pairs: Prepared, model: Seq2Seq) -> None:
    config = DecodeConfig(beam=1, max_len_plus=20)
    examples, shown = Examples(pairs, "test"), list[int]()
    few = Examples(pairs, "test", 3).search(model, config)
    assert few.best == examples.search(model, config).best[:3]
    stopped = examples.search(model, config, show=shown.append, hurry=lambda: len(shown) == 4)
    assert shown == [1, 2, 3, 4]
    assert sum(map(bool, stopped.best)) == 4


def test_signatures_name_the_whole_search() -> None:
    usual = {"beam": 5, "penalty": "power", "alpha": "1"}
    assert describe_search(DecodeConfig()) == usual
    config = DecodeConfig(length_penalty="stepwise", block_ngrams=3, allow_unknown=False)
    more = {"penalty": "stepwise", "block_ngrams": "3", "allow_unknown": "false"}
    assert describe_search(config) == usual | more


def test_the_measure_of_the_task_comes_first(pairs: Prepared) -> None:
    assert [each.name for each in find_metrics(pairs)] == ["sacrebleu", "chrf"]
    asked = find_metrics(pairs, ["tokenized_bleu_compounds"])
    assert [each.name for each in asked] == ["tokenized_bleu_compounds"]
    assert find_metrics(Prepared.open(GOLDEN / "data" / "text")) == []
    summaries = find_metrics(Prepared.open(GOLDEN / "data" / "summaries"))
    assert [each.name for each in summaries] == ["rouge"]


def test_texts_have_the_perplexity_of_score() -> None:
    texts = Prepared.open(GOLDEN / "data" / "text")
    lines = list(texts.texts("test", "text"))
    scored = lightconv.load(TEXT).score(lines)
    expected = compute_perplexity(
        sum(each.logprob for each in scored),
        lines=len(lines),
        subwords=sum(len(each.ids) - 1 for each in scored),
        words=sum(len(line.split()) for line in lines),
    )
    model, shown = ModelFolder(TEXT).load(), list[int]()
    assert isinstance(model, LanguageModel)
    found = Examples(texts, "test").evaluate_texts(model)
    assert found.value == pytest.approx(expected.value, rel=1e-6)
    assert found.parts["words"] == expected.parts["words"]
    few = Examples(texts, "test", 3).evaluate_texts(model, shown.append)
    assert few.parts["log_prob"] == pytest.approx(sum(e.logprob for e in scored[:3]), abs=1e-3)
    assert shown == [3]
    assert few.parts["subwords"] == sum(len(each.ids) for each in scored[:3])


def test_data_of_another_model_is_refused(pairs: Prepared, tmp_path: Path) -> None:
    check_data(PAIRS, pairs, pairs=True)
    with pytest.raises(ValueError, match="holds pairs of source and target, expected texts by"):
        check_data(TEXT, pairs, pairs=False)
    model = shutil.copytree(PAIRS, tmp_path / "model")
    (model / "pipeline.json").unlink()
    (model / "codes.txt").unlink()
    check_data(model, pairs, pairs=True)  # an imported model has only its vocabulary
    with (model / "vocab.txt").open("a") as file:
        file.write("more\n")
    for change in (lambda: None, (model / "vocab.txt").unlink, (model / "codes.txt").touch):
        change()
        with pytest.raises(ValueError, match=r"its (vocab|codes)\.txt is not the one of"):
            check_data(model, pairs, pairs=True)


# --- during training


def test_a_metric_for_training(
    pairs: Prepared,
    model: Seq2Seq,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(system, "VALIDATION_LINES", 10)
    _, decode = open_model(PAIRS, pairs)
    name, compute = validation_metric(pairs.folder, decode)
    assert name == "sacrebleu"
    references = pairs.references("valid")[:10]
    expected = METRICS["sacrebleu"].score(translate(pairs, "valid")[:10], references).value
    assert compute(model, lambda: False) == pytest.approx(expected)
    assert compute(model, lambda: True) < expected, "it stops when told to"
    engine = "the C++ engine" if native().library else "torch, not in the C++ engine: it needs"
    (note,) = capsys.readouterr().err.splitlines()
    assert re.match(r"note: sacrebleu of 10 lines, texts:\w{8}: decoding in ", note)
    assert f" in {engine}" in note
    assert validation_metric(pairs.folder, decode, "chrf")[0] == "chrf"
    # A task that is measured by another BLEU, and one by no BLEU.
    tokenized = make(tmp_path, EXAMPLES, metric="tokenized_bleu").folder
    assert validation_metric(tokenized, decode)[0] == "tokenized_bleu"
    assert validation_metric(GOLDEN / "data" / "summaries", decode)[0] == "sacrebleu"
    with pytest.raises(ValueError, match="perplexity is measured anyway"):
        validation_metric(GOLDEN / "data" / "text", decode)


# --- R15: a score signs what was read


def spoil(folder: Path, names: list[str], rng: random.Random) -> str:
    """Changes a file of the split at random; its name."""
    name, other = rng.sample(names, 2)
    data = bytearray((folder / name).read_bytes())
    lines, place, kind = data.split(b"\n"), rng.randrange(len(data)), rng.randrange(6)
    if kind == 0:
        data[place:] = b""
    elif kind == 1:
        data[place : place + 64] = bytes(len(data[place : place + 64]))
    elif kind == 2:
        data = bytearray((folder / other).read_bytes())
    elif kind == 3:
        rng.shuffle(lines)
        data = bytearray(b"\n".join(lines))
    if data == (folder / name).read_bytes():
        data[place] ^= 1 << rng.randrange(8)
    (folder / name).write_bytes(data)
    return name


@pytest.mark.parametrize("cases", [60, pytest.param(1000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("split", ["test", "valid"])
def test_damaged_splits_are_not_scored(split: str, cases: int, tmp_path: Path) -> None:
    """R15: no byte of a split that evaluate, tune or --metric reads can change unnoticed."""
    folder, rng = tmp_path / "data", random.Random(15)
    shutil.copytree(GOLDEN / "data" / "pairs", folder)
    intact = {path.name: path.read_bytes() for path in folder.glob(f"{split}.*")}
    assert len(intact) == 6, "ids, offsets and texts of both sides"
    for _ in range(cases):
        Examples(Prepared.open(folder), split)
        name = spoil(folder, sorted(intact), rng)
        with pytest.raises(ValueError, match=rf"prepared data .*{name}"):
            Examples(Prepared.open(folder), split)
        (folder / name).write_bytes(intact[name])
    (folder / f"{split}.target.txt").write_bytes(b"")
    readers: list[Callable[[], object]] = [
        lambda: Evaluation(model=PAIRS, data=folder, split=split).run(),
        lambda: Tuner(PAIRS, folder, split=split),
        *([lambda: validation_metric(folder, DecodeConfig())] if split == "valid" else []),
    ]
    for read in readers:
        with pytest.raises(ValueError, match=r"target.txt: 0 bytes, expected"):
            read()


def test_the_signature_changes_with_what_was_read(tmp_path: Path) -> None:
    """R15: also for a folder whose manifest fits: another text, another signature."""
    found = []
    for change in ("", "source.bin", "target.txt", "train.source.bin"):
        folder = tmp_path / f"data{change}"
        shutil.copytree(GOLDEN / "data" / "pairs", folder)
        if change:
            path = folder / (change if change.startswith("train") else f"test.{change}")
            data = bytearray(path.read_bytes())
            data[-2] ^= 1
            path.write_bytes(data)
            write_manifest(folder)
        examples = Examples(Prepared.open(folder), "test")
        (score,) = examples.score(examples.references, [METRICS["chrf"]], {})
        found.append(dict(score.signature.fields))
    whole, source, target, training = found
    assert whole == training, "training data is not read"
    assert [each["data"] for each in found] == ["9800fcc1"] * 4, "what the header claims"
    few = Examples(Prepared.open(tmp_path / "data"), "test", 7).digest
    assert len({whole["texts"], source["texts"], target["texts"], few}) == 4
