"""Words that a faster model proposes change the speed of greedy search, and nothing else."""

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import lightconv
from lightconv.decode import DecodeConfig
from lightconv.decode.draft import AHEAD
from lightconv.decode.engine import Engine
from lightconv.decode.options import Options, TextOptions
from lightconv.decode.search import Found, ModelSearch, Stream, search_batches
from lightconv.ops import program
from lightconv.ops.library import native
from tests.trained import Trained

from .test_engine import SOURCE_V, V, every_kind, language_model, seq2seq

pytestmark = pytest.mark.skipif(native().library is None, reason="no C++ kernels")
LIMITS: list[dict[str, Any]] = [
    {"max_len_plus": 25},
    {"max_len_plus": 1},
    {"max_len_plus": 9, "min_len": 6},
    {"max_len_plus": 30, "block_ngrams": 2, "allow_unknown": False},
    {"max_len_plus": 140, "min_len": 135},  # more words than tables have room for at first
]


def ids(count: int, seed: int = 1, most: int = 12) -> list[list[int]]:
    """Sources, some of them empty."""
    draw = random.Random(seed)
    return [
        [draw.randrange(3, SOURCE_V) for _ in range(draw.randrange(most))] for _ in range(count)
    ]


def begins(count: int, most: int) -> list[list[int]]:
    draw = random.Random(2)
    lengths = [draw.choice([0, 0, 1, 3]) for _ in range(count)]
    return [[draw.randrange(3, V) for _ in range(min(n, most - 1))] for n in lengths]


def greedy(**limits: Any) -> Options:
    return Options(decode=DecodeConfig(beam=1, **limits))


def wrong() -> Engine:
    """A draft of random weights, whose words are hardly ever those of another model."""
    model = seq2seq("lightconv")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(
                torch.randn(parameter.shape, generator=torch.Generator().manual_seed(9))
            )
    return Engine(model)


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The rows of each run of a model outside the loop in C++."""
    found: list[int] = []
    run = program.run

    def count(engine: int, task: program.Task) -> int:
        if task.ancestors:
            found.append(task.rows)
        return run(engine, task)

    monkeypatch.setattr(program, "run", count)
    return found


@every_kind
@pytest.mark.parametrize("quantize", [None, "int8"])
def test_outputs_and_scores_are_those_without(kind: str, quantize: str | None) -> None:
    model, sources = seq2seq(kind), ids(12)
    engine = Engine(model, quantize)
    drafts = [Engine(model, quantize), Engine(model, "int8"), wrong()]
    for limits in LIMITS:
        for prefixes in (None, begins(len(sources), limits["max_len_plus"])):
            asked = sources, range(len(sources)), prefixes
            expected = ModelSearch(engine, greedy(**limits))(*asked)
            for draft in drafts:
                assert ModelSearch(engine, greedy(**limits), draft)(*asked) == expected


@every_kind
def test_a_language_model_too(kind: str) -> None:
    model, prompts = language_model(kind), ids(12)
    engine, asked = Engine(model), (prompts, range(len(prompts)))
    for limits in LIMITS:
        expected = ModelSearch(engine, greedy(**limits))(*asked)
        for draft in (engine, Engine(language_model("conv"))):
            assert ModelSearch(engine, greedy(**limits), draft)(*asked) == expected


@every_kind
@pytest.mark.parametrize("quantize", [None, "int8"])
def test_rows_of_a_run_are_single_steps_to_the_bit(kind: str, quantize: str | None) -> None:
    engine = Engine(seq2seq(kind), quantize)
    source = engine.encode_ids([[5, 6, 7, 8, 9]])
    words = torch.randint(3, V, (1, 40), generator=torch.Generator().manual_seed(4))
    single = engine.start(source, 40)
    expected = [engine.step(words[:, n : n + 1], single)[0][0, 0] for n in range(40)]
    for rows in range(2, 9):
        state = engine.start(source, 40, spare=1)
        for begin in range(0, 40 - rows, rows - 1):  # all but the last word stay
            scores, _ = engine.step(words[:, begin : begin + rows], state)
            assert torch.equal(scores[0], torch.stack(expected[begin : begin + rows]))
            state.rewind(1)


def test_an_agreed_word_costs_no_run_of_its_own(runs: list[int]) -> None:
    engine = Engine(seq2seq("dynamicconv"))
    options, asked = greedy(min_len=60, max_len_plus=60), ([[5, 6, 7]], [0])
    ((found,),) = ModelSearch(engine, options, engine)(*asked)
    assert len(found.tokens) == 60 and runs == [AHEAD + 1] * 15
    del runs[:]
    ModelSearch(engine, options, wrong())(*asked)
    assert 50 < len(runs) < 60, "wrong words are refused"


def test_a_draft_without_numbers_proposes_nothing() -> None:
    model, engine = seq2seq("attention"), Engine(seq2seq("conv"))
    with torch.no_grad():
        model.output.weight.fill_(torch.nan)
    sources = ids(8)
    expected = ModelSearch(engine, greedy())(sources, range(8))
    assert ModelSearch(engine, greedy(), Engine(model))(sources, range(8)) == expected


def test_threads_share_the_sources() -> None:
    engine, sources = Engine(seq2seq("mixed")), ids(30)
    options, before = greedy(max_len_plus=20), torch.get_num_threads()

    def search(draft: Engine | None) -> Found:
        asked = ModelSearch(engine, options, draft), sources, TextOptions()
        found = {each.row: each.hypotheses for each in search_batches(*asked)}
        return [found[row] for row in range(len(sources))]

    expected = search(None)
    try:
        torch.set_num_threads(2)
        engine._sharing[2] = 0, 0
        assert search(engine) == expected
    finally:
        torch.set_num_threads(before)


def test_streams() -> None:
    engine = Engine(seq2seq("mixed"))
    options, told = greedy(max_len_plus=20, min_len=15), list[list[int]]()
    (expected,) = ModelSearch(engine, options)([[5, 6]], [0])
    stream = Stream(ModelSearch(engine, options, engine))
    for key in "abc":
        stream.put(key, [5, 6])
    stream.on_token["b"] = told.append
    first = stream.advance(1)
    assert first == []
    stream.cancel("a")
    found = []
    while stream:
        found += stream.advance(2)
    assert [each.row for each in found] == ["b", "c"]
    assert all(each.hypotheses == expected for each in found)
    assert told and all(words == expected[0].tokens[: len(words)] for words in told)


def lines_of(count: int, seed: int = 3) -> list[str]:
    draw = random.Random(seed)
    words = [f"w{n}" for n in range(10)]
    return [" ".join(draw.choices(words, k=draw.randrange(9))) for _ in range(count)]


def rough(model: Path, to: Path, scale: float) -> Path:
    """A copy of a model folder whose weights are not quite those."""
    shutil.copytree(model, to)
    (to / "manifest.json").unlink()
    found = lightconv.load(model)
    with torch.no_grad():
        for number, each in enumerate(found.parameters()):
            noise = torch.randn(each.shape, generator=torch.Generator().manual_seed(number))
            each.add_(scale * noise * each.std(correction=0))
    found.model.save(to / "rough")
    (to / "rough" / "model.safetensors").replace(to / "model.safetensors")
    return to


def compare(copies: Trained, draft: Path, count: int) -> None:
    model, lines = lightconv.load(copies.model), lines_of(count)
    for options in ({}, {"quantize": "int8"}, {"max_len_ratio": 0.0, "max_len_plus": 40}):
        expected = [answer.plain() for answer in model.answers(lines, beam=1, **options)]
        found = [answer.plain() for answer in model.answers(lines, beam=1, draft=draft, **options)]
        for one, other in zip(expected, found, strict=True):
            assert {k: v for k, v in one.items() if k not in ("seconds", "batch")} == {
                k: v for k, v in other.items() if k not in ("seconds", "batch")
            }


@pytest.mark.parametrize("scale", [0.0, 0.3, 30.0])
def test_lines_of_text(copies: Trained, tmp_path: Path, scale: float) -> None:
    compare(copies, rough(copies.model, tmp_path / "draft", scale), 200)


@pytest.mark.slow
@pytest.mark.parametrize("scale", [0.0, 0.1, 0.5, 30.0])
def test_a_thousand_lines(copies: Trained, tmp_path: Path, scale: float) -> None:
    compare(copies, rough(copies.model, tmp_path / "draft", scale), 1000)


def test_wrong_calls(copies: Trained, texts: Trained, tmp_path: Path) -> None:
    model, other = lightconv.load(copies.model), tmp_path / "other"
    shutil.copytree(copies.model, other)
    vocabulary = min(other.glob("vocab*"))
    vocabulary.write_text(vocabulary.read_text().replace("w1\n", "w11\n"))
    (other / "manifest.json").unlink()
    draft = {"draft": copies.run, "beam": 1}

    def call(**options: Any) -> Callable[[], object]:
        return lambda: model.translate(["w1"], **(draft | options))

    cases: dict[str, Callable[[], object]] = {
        "greedy search.*got beam=3": call(beam=3),
        "greedy search.*got sample": call(sample=True),
        "greedy search.*got shortlist": call(shortlist=True),
        "draft=.* needs the C.. engine, got engine='torch'": call(engine="torch"),
        "coverage=0.1 runs in torch only, got draft=": call(coverage=0.1),
        "draft is for one model, got an ensemble": call(ensemble=[model]),
        "does not exist": call(draft=tmp_path / "no"),
        "draft.0. is another kind of model": call(draft=texts.model),
        f"draft .{other}.*vocab.* is not that of {copies.model}": call(draft=str(other)),
    }
    for message, wrong_call in cases.items():
        with pytest.raises(ValueError, match=message):
            wrong_call()


def test_the_draft_is_told_as_a_path(copies: Trained) -> None:
    model = lightconv.load(copies.model)
    first = model.translate(["w1 w2"], beam=1, draft=copies.run)
    assert first == ["w1 w2"] == model.translate(["w1 w2"], beam=1, draft=str(copies.run))
    assert json.loads(json.dumps(model.options({"draft": "x", "beam": 1}).text.draft)) == "x"
