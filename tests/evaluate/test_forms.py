"""The words and the plain text of outputs and references, by hand."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from lightconv.data.config import BPEConfig, BytesConfig, PipelineConfig, SideConfig, TaskConfig
from lightconv.data.corpus import Corpus, Example
from lightconv.data.prepare import prepare
from lightconv.data.prepared import Prepared
from lightconv.evaluate import METRICS
from lightconv.evaluate.forms import Forms, case_field, of_ids, of_references, of_texts
from lightconv.evaluate.system import find_metrics, score_forms

TASK = TaskConfig(kind="translation", corpus="own", source_lang="de", target_lang="en", metric="x")
PLAIN = [("Hallo, Welt!", "Hello, World!"), ("Ein kleines-Haus.", "A small-house isn't big.")]
WORDS = [("Hallo , Welt !", "Hello , World !"), ("Ein Haus .", "A small-house isn &apos;t big .")]


def make(folder: Path, examples: list[Example], side: dict[str, Any], **fields: Any) -> Prepared:
    sides = tuple(SideConfig(lang=lang, **side) for lang in ("de", "en"))
    subword: Any = fields.pop("subword", BPEConfig(merges=5))
    corpus = Corpus(
        task=fields.pop("task", TASK),
        pipeline=PipelineConfig(sides=sides, subword=subword),
        splits={name: partial(iter, examples) for name in ("train", "valid")},
        **fields,
    )
    return prepare(corpus, folder / "data", processes=1)


def targets(prepared: Prepared) -> list[list[int]]:
    store = prepared.store("valid")
    return [[*store[row][1].tolist(), 2] for row in range(len(store))]


def test_moses_words_and_plain_text(tmp_path: Path) -> None:
    prepared = make(tmp_path, PLAIN, {"tokenize": "moses"})
    references = of_references(prepared, "valid")
    assert references.plain == [target for _, target in PLAIN]
    assert references.words == ["Hello , World !", "A small-house isn &apos;t big ."]
    # The ids of the references are outputs without a fault.
    assert of_ids(prepared.pipeline, targets(prepared)) == references
    assert case_field(prepared) == {}


def test_texts_that_came_tokenised_are_put_together(tmp_path: Path) -> None:
    prepared = make(tmp_path, WORDS, {"tokenize": "moses"}, tokenized=True)
    references = of_references(prepared, "valid")
    assert references.words == [target for _, target in WORDS]
    assert references.plain == ["Hello, World!", "A small-house isn't big."]
    assert of_ids(prepared.pipeline, targets(prepared)) == references


def test_lower_case_is_no_fault_of_the_model(tmp_path: Path) -> None:
    prepared = make(tmp_path, PLAIN, {"tokenize": "moses", "lowercase": True})
    references = of_references(prepared, "valid")
    assert references.words[0] == "hello , world !"
    assert references.plain[0] == "hello, world!"
    assert of_ids(prepared.pipeline, targets(prepared)) == references
    assert case_field(prepared) == {"refs": "lowered"}


def test_bytes_keep_any_text(tmp_path: Path) -> None:
    prepared = make(tmp_path, PLAIN, {}, subword=BytesConfig(vocab=300))
    references = of_references(prepared, "valid")
    assert references.words == references.plain == [target for _, target in PLAIN]
    assert of_ids(prepared.pipeline, targets(prepared)) == references
    newline = prepared.pipeline.encode(1, ["a\nb"])
    assert of_ids(prepared.pipeline, newline).plain == ["a b"], "an output is one line"


@pytest.mark.parametrize(
    "name, form",
    [
        ("tokenized_bleu", "words"),
        ("tokenized_bleu_compounds", "words"),
        ("tokenized_bleu_lowercase", "words"),
        ("sacrebleu", "plain"),
        ("chrf", "plain"),
        ("rouge", "plain"),
    ],
)
def test_every_metric_has_its_form(name: str, form: str) -> None:
    assert Forms(["words"], ["plain"]).for_metric(METRICS[name]) == [form]


def test_the_first_few() -> None:
    forms = Forms(["a", "b"], ["c", "d"])
    assert forms.first(1) == Forms(["a"], ["c"])
    assert forms.first(None) == forms


def test_other_texts_become_words(tmp_path: Path) -> None:
    prepared = make(tmp_path, PLAIN, {"tokenize": "moses"})
    assert of_texts(prepared, ["Oh, no."]) == Forms(["Oh , no ."], ["Oh, no."])


@pytest.mark.parametrize("metric", ["tokenized_bleu_compounds", "tokenized_bleu_lowercase", "x"])
def test_outputs_without_a_fault_score_full_marks(metric: str, tmp_path: Path) -> None:
    """Through Moses, lower case, BPE and back: whatever the set-up measures."""
    examples = [("Ein Satz, noch einer.", "One well-known sentence, and (another) one's end.")] * 3
    task = replace(TASK, metric=metric)
    prepared = make(tmp_path, examples, {"tokenize": "moses", "lowercase": True}, task=task)
    metrics = find_metrics(prepared)
    scores = score_forms(
        prepared, "valid", of_ids(prepared.pipeline, targets(prepared)), metrics, {"beam": 4}
    )
    names = [score.signature.name for score in scores]
    assert names == [*([metric] if metric != "x" else []), "sacrebleu", "chrf"]
    assert [score.value for score in scores] == pytest.approx([100.0] * len(scores))
    assert all("|refs:lowered|split:valid|data:" in str(score.signature) for score in scores)
