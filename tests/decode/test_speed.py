"""Speed of several models: the same work for all, rounds in turns, one graph one program."""

import ctypes
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from lightconv.decode import search, speed
from lightconv.decode.engine import Engine
from lightconv.decode.speed import Speed, Speeds, measure_noise, measure_speed
from lightconv.mixers import LightConv
from lightconv.models import LanguageModel, LanguageModelConfig, LightConvConfig, Seq2Seq
from lightconv.models.config import Seq2SeqConfig
from lightconv.ops.library import native
from lightconv.paper.recipes import RECIPES

NATIVE = pytest.mark.skipif(native().library is None, reason="no C++ kernels")
SOURCES = [[4, 5, 6, 7, 8], [5], [6, 7, 4]]
# Addresses of weights and workspaces: of this process, not of the graph.
POINTERS = ("weight", "bias", "scale", "offset")


def build(name: str, **changes: Any) -> Seq2Seq:
    config = RECIPES[f"wmt-en-de-ablation-{name}-small"].model
    assert isinstance(config, Seq2SeqConfig)
    small = replace(config, source_vocab=40, target_vocab=40, **changes)
    torch.manual_seed(len(name))
    return Seq2Seq(small).eval()


def instructions(model: Seq2Seq) -> list[list[object]]:
    """The programs of a model without the addresses in them."""

    def plain(value: Any) -> Any:
        if isinstance(value, ctypes.Structure):
            names = [field[0] for field in value._fields_ if field[0] not in POINTERS]
            return [(name, plain(getattr(value, name))) for name in names]
        return value

    engine = Engine(model)
    programs = (engine._encoder, engine.decoder)
    return [[plain(each) for each in p.instructions] for p in programs if p]


@NATIVE
@pytest.mark.parametrize(
    ("first", "second", "same"),
    [
        ("increasing-kernel", "dropconnect", True),
        ("depthwise", "increasing-kernel", False),
        ("sharing", "dropconnect", False),
        ("sharing", "softmax", True),  # of fixed kernels, the softmax is taken once
    ],
)
def test_rows_of_one_graph_are_one_program(first: str, second: str, same: bool) -> None:
    programs = [instructions(build(name)) for name in (first, second)]
    assert all(programs[0]) and (programs[0] == programs[1]) == same


def test_every_row_of_the_table_runs_in_the_engine() -> None:
    names = [name for name in RECIPES if name.startswith("wmt-en-de-ablation-")]
    for name in (each for each in names if each.endswith("-small")):
        assert Engine.supports(build(name.split("ablation-")[1].removesuffix("-small"))) is None


@pytest.mark.parametrize("batch_size", [1, 2, 256])
def test_all_do_the_same_work(batch_size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounds there and back, the first not counted; outputs as long as the sources and EOS."""
    models = [build("depthwise"), build("aan-decoder"), build("cnn")]
    real, known, order = search.search_batches, list[object](), list[int]()

    def call(chosen: search.ModelSearch, sources: Sequence[Sequence[int]], text: Any) -> Any:
        if chosen not in known:
            known.append(chosen)
        order.append(known.index(chosen))
        found = list(real(chosen, sources, text))
        assert (chosen.options.decode.beam, text.max_sentences) == (3, batch_size)
        assert all(each.sentences <= batch_size for each in found)
        for each in found:
            assert len(each.hypotheses[0].tokens) == len(sources[each.row]) + 1
        return found

    monkeypatch.setattr(search, "search_batches", call)
    found = measure_speed(
        models, SOURCES, split="valid", beam=3, batch_size=batch_size, rounds=2
    ).speeds
    assert order == [0, 1, 2, 2, 1, 0, 0, 1, 2]
    assert len({each.tokens for each in found}) == 1
    for each in found:
        assert (each.split, each.lines, each.sentences, each.beam) == ("valid", 3, batch_size, 3)
        assert len(each.rounds) == 2 and sum(each.rounds) / 2 == pytest.approx(each.seconds)
        assert each.threads == torch.get_num_threads()


@NATIVE
def test_all_run_in_the_same_engine() -> None:
    class Own(LightConv):
        pass

    foreign = build("softmax")
    foreign.decoder[0].mixer.__class__ = Own
    told: list[str] = []
    models = [build("softmax"), foreign]
    how: dict[str, Any] = {"split": "test", "beam": 1, "batch_size": 2, "rounds": 1}
    found = measure_speed(models, SOURCES, **how, tell=told.append).speeds
    assert [each.engine for each in found] == ["torch", "torch"]
    assert len(told) == 1 and "so all are" in told[0]
    assert measure_speed(models[:1], SOURCES, **how).speeds[0].engine == "native"


def test_ratios_are_of_neighbours() -> None:
    """The machine is three times slower in rounds 2 and 3; the medians alone have 0.67."""
    first, second = (1.0, 3.0, 1.0, 1.0, 3.0), (0.5, 1.5, 1.5, 0.5, 1.5)
    about = Speed(split="test", lines=3, seconds=1.0, tokens=9, engine="native", sentences=1)
    found = Speeds((replace(about, rounds=first), replace(about, rounds=second)))
    assert (found.ratio(0), found.ratio(1)) == (1.0, 2.0)


def test_language_models_are_refused() -> None:
    layers = (LightConvConfig(kernel=3, heads=2),)
    model = LanguageModel(LanguageModelConfig(dim=8, ffn_dim=8, layers=layers, vocab=20)).eval()
    with pytest.raises(ValueError, match="language model"):
        measure_speed([model], SOURCES, split="test", beam=1, batch_size=1)


def test_a_loud_machine_is_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    """Products that all take 1 ms are quiet; if every fourth takes twice as long, they are not."""
    for every, loud in ((1000, False), (4, True)):
        clock, calls = 0.0, 0

        def tick(every: int = every) -> float:
            nonlocal clock, calls
            calls += 1
            clock += 0.0 if calls % 2 else 0.002 if calls // 2 % every == 0 else 0.001
            return clock

        monkeypatch.setattr(speed.time, "perf_counter", tick)
        assert (measure_noise() > speed.QUIET) == loud
