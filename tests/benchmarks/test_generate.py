"""What benchmarks/generate.py says of time and memory, on small models."""

import time
from typing import Any

import pytest
from benchmarks.bounds import Bound, Measured
from benchmarks.decoders import Shape

from benchmarks import bounds, decoders, footprint, generate, protocol, spent
from lightconv.decode.engine import Engine
from lightconv.models import DynamicConvConfig, Seq2Seq, Seq2SeqConfig
from lightconv.ops.library import native

pytestmark = pytest.mark.skipif(native().library is None, reason="no C++ kernels")

NONE = ("--no-peer", "--no-torch", "--small", "--rounds", "1")


def small(name: str, precision: str = "float32") -> tuple[Seq2SeqConfig, Seq2Seq, Engine]:
    config = decoders.configuration(name, small=True)
    model = decoders.build(config)
    return config, model, decoders.compile_model(model, precision)


@pytest.mark.parametrize("precision", decoders.PRECISIONS)
@pytest.mark.parametrize("name", ["dynamicconv", "selfattention"])
def test_parts_add_up_to_the_call(name: str, precision: str) -> None:
    config, _, engine = small(name, precision)
    call = decoders.search(engine, config, Shape(2, 2, 6))
    found: list[Any] = []
    inside: list[float] = []

    def timed() -> None:
        begin = time.perf_counter()
        found.append(call())
        inside.append(time.perf_counter() - begin)

    begin = time.perf_counter()
    parts = spent.spent(timed)
    whole = time.perf_counter() - begin
    assert tuple(parts) == spent.PARTS
    assert inside[0] <= sum(parts.values()) + 1e-9 <= whole
    assert all(seconds >= 0.0 for seconds in parts.values()), parts
    for part in ("encoder, products", "decoder, products", "vocabulary, product"):
        assert parts[part] > 0.0
    assert found == [call()], "watching changes nothing"
    shares = spent.medians([parts, parts])
    assert sum(shares.values()) == pytest.approx(1.0)
    assert spent.overhead(shares) == shares[spent.SMALL] + shares[spent.PYTHON]


def test_the_state_of_convolutions_is_their_kernels_and_that_of_attention_grows() -> None:
    """The last K inputs of each layer, and for each of K times the row it was."""
    config, model, engine = small("dynamicconv")
    kernels = [layer.kernel for layer in config.decoder if isinstance(layer, DynamicConvConfig)]
    expected = 4 * (config.dim * sum(kernels) + max(kernels))
    shapes = [Shape(2, 3, length) for length in (40, 80)]
    assert [footprint.state_bytes(engine, config, shape) for shape in shapes] == [expected] * 2
    one, other = (footprint.state_bytes(model, config, shape) for shape in shapes)
    assert one == other > 0
    config, _, engine = small("selfattention")
    one, other = (footprint.state_bytes(engine, config, Shape(2, 3, n)) for n in (5, 10))
    assert other == 2 * one == 10 * 4 * (2 * config.dim * len(config.decoder) + 1)


def test_bounds_by_hand() -> None:
    short, long = Shape(32, 4, 30), Shape(32, 4, 200)
    one = short._replace(batch=1)
    found = Measured()
    for kind, factor in (("float32", 1.0), ("int8", 2.0)):
        found.speed |= {
            ("DynamicConv", kind, short): 13.0 * factor,
            ("self-attention", kind, short): 10.0 * factor,
            (decoders.PEER, kind, short): 11.0 * factor,
            ("DynamicConv", kind, long): 3.0,
            ("self-attention", kind, long): 2.0,
            ("DynamicConv", kind, one): 3.0 * factor,
            (decoders.PEER, kind, one): 1.0,
        }
        found.overhead["DynamicConv", kind, short] = 0.2 * factor
    found.state = {("DynamicConv", "engine", 30): 8.0, ("DynamicConv", "engine", 200): 8.0}
    judged = bounds.judge(found, length=30, long=200)
    missed = [bound.what for bound in judged if not bound.holds]
    assert missed == [
        "float32: DynamicConv against self-attention, 200 tokens, batch 32",
        "int8: DynamicConv against self-attention, 200 tokens, batch 32",
        "float32: DynamicConv against CTranslate2, batch 32",
        "int8: share of Python and small operations, batch 32",
    ]
    assert len(judged) == 12
    assert "| >= 1.5 | 2.00 |  |" in bounds.render(judged)
    assert bounds.judge(Measured(), length=30, long=200) == []
    assert Bound("x", 1.0, 1.0).holds and Bound("x", 1.0, 1.0, most=True).holds


def test_the_tables_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    sizes = ("--length", "4", "--long", "6", "--batch", "1", "2", "--beam", "2")
    models = ("--models", "lightconv", "selfattention", "--precision", "int8")
    assert generate.main([*NONE, *sizes, *models, "--only", "speed", "long", "shares"]) == 0
    out = capsys.readouterr().out
    rows = [line for line in out.splitlines() if line.startswith("| LightConv, int8 |")]
    assert [row.split("|")[2].strip() for row in rows] == ["1", "2", "2", "1", "2"]
    assert rows[0].split("|")[3:5] == [" 2 ", " 4 "] and rows[2].split("|")[3:5] == [" 4 ", " 6 "]


def test_the_paper_s_set_ups(monkeypatch: pytest.MonkeyPatch) -> None:
    ablation, small_decoders = protocol.SET_UPS
    assert ablation.shape[:2] == (256, 4) and small_decoders.shape[:2] == (1, 1)
    fewer = [
        ablation._replace(recipes=ablation.recipes[:4:3], shape=Shape(2, 2, 3)),
        small_decoders._replace(recipes=small_decoders.recipes[:2], shape=Shape(1, 1, 3)),
    ]
    monkeypatch.setattr(protocol, "SET_UPS", fewer)
    first, second = protocol.measure(small=True, rounds=1).split("\n\n")
    rows = [line.strip("| ").split(" | ") for line in first.splitlines()[2:]]
    assert [row[0] for row in rows] == [
        "Self-attention baseline (k=inf, H=16), float32",
        "+ Dynamic weights [DynamicConv] (H=16), float32",
    ]
    assert [row[4:] for row in rows] == [["52.1", "1.00x"], ["62.6", "1.20x"]]
    assert "(1-decoder layer (k=31)), int8 |" in second and "| 7.2 | 0.47x |" in second


def test_a_process_has_its_own_peak() -> None:
    shape = Shape(2, 2, 4)
    found = footprint.peaks(["lightconv"], ["int8"], shape, against=False, small=True)
    assert list(found) == ["LightConv, int8", "LightConv, torch, float32"]
    weights = sum(
        p.nbytes for p in decoders.build(decoders.configuration("lightconv", True)).parameters()
    )
    assert all(size > weights for size in found.values())
