"""The C++ engine against the model's own torch step: every mixer, moving beams, both families."""

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lightconv import mixers
from lightconv.decode.compiler import Program
from lightconv.decode.engine import Engine
from lightconv.models import (
    AdaptiveConfig,
    AttentionConfig,
    AverageConfig,
    ConvConfig,
    DynamicConvConfig,
    LanguageModel,
    LightConvConfig,
    MixerConfig,
    Seq2Seq,
)
from lightconv.ops import build, program
from lightconv.ops.library import native

from ..models import examples
from ..models.examples import EOS, PAD

D, V, SOURCE_V = 80, 37, 29  # whole vectors and a rest, panels that are not full

# Kernels below, at and above the number of steps; windows too.
LAYERS: dict[str, tuple[MixerConfig, ...]] = {
    "dynamicconv": (
        DynamicConvConfig(kernel=4, heads=2, glu=True),
        DynamicConvConfig(kernel=17, heads=4),
    ),
    "lightconv": (LightConvConfig(kernel=3, heads=2), LightConvConfig(kernel=6, heads=4, glu=True)),
    "depthwise": (LightConvConfig(kernel=3, heads=D, normalize="none"),),
    "attention": (AttentionConfig(heads=2), AttentionConfig(heads=5, window=4)),
    "average": (AverageConfig(ffn_dim=48), AverageConfig(ffn_dim=24)),
    "conv": (ConvConfig(kernel=3), ConvConfig(kernel=14), ConvConfig(kernel=1)),
    "mixed": (
        AverageConfig(ffn_dim=48),
        DynamicConvConfig(kernel=1, heads=1),
        AttentionConfig(heads=2, window=1),
        LightConvConfig(kernel=5, heads=5),
        ConvConfig(kernel=4),
        AttentionConfig(heads=4),
    ),
}
every_kind = pytest.mark.parametrize("kind", LAYERS)
NORMS = {"post": (False, False), "pre": (True, False), "pre+final": (True, True)}


def options(norm: str, **given: Any) -> dict[str, Any]:
    pre_norm, final_norm = NORMS[norm]
    return {"dim": D, "ffn_dim": 72, "pre_norm": pre_norm, "final_norm": final_norm, **given}


def seq2seq(kind: str, norm: str = "post", **changes: Any) -> Seq2Seq:
    vocab = {"source_vocab": SOURCE_V, "target_vocab": V}
    layers = {"encoder": LAYERS[kind], "decoder": LAYERS[kind], "source_heads": 4}
    return examples.seq2seq("conv", torch.float32, **options(norm, **(vocab | layers | changes)))


def language_model(kind: str, norm: str = "pre", **changes: Any) -> LanguageModel:
    given = options(norm, **({"layers": LAYERS[kind], "vocab": V} | changes))
    return examples.language_model("conv", torch.float32, **given)


def source_batch() -> Tensor:
    """[4, 9]: whole, padded on the right, padded on the left, one word."""
    source = torch.randint(3, SOURCE_V, (4, 9), generator=torch.Generator().manual_seed(3))
    source[1, 5:] = PAD
    source[2, :3] = PAD
    source[3, 1:] = PAD
    return source


@pytest.fixture
def instruction_sets() -> Iterator[Iterator[str]]:
    """Those of the machine; each is in use until the next is taken."""
    library = native().library
    assert library is not None, native().reason
    yield (name for name in build.instruction_sets() if library.lightconv_choose(name.encode()))
    library.lightconv_choose(native().isa.encode())


@pytest.fixture
def set_threads() -> Iterator[Callable[[int], None]]:
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


def moves(rows: int, steps: int) -> list[Tensor]:
    """Rows as a beam search would choose them: fewer and more, repeated, shuffled, in order."""
    generator = torch.Generator().manual_seed(7)
    chosen = []
    for step in range(steps):
        count = (rows * 3, rows * 3, rows * 2, rows * 2, 3, 1, 5)[step % 7]
        chosen.append(torch.randint(rows, (count,), generator=generator).sort().values)
        rows = count
    return chosen


def compare(model: Any, steps: int, copies: int = 1) -> float:
    """The largest difference of the engine's scores over `steps` steps with rows that move.

    Relative to the largest score where that is above one: without a norm at its end a model's
    scores grow into the hundreds.
    """
    engine, source = Engine(model), source_batch().repeat(copies, 1)
    pairs = isinstance(model, Seq2Seq)
    rows = len(source) if pairs else 2
    theirs, ours = (
        each.start(each.encode(source) if pairs else rows, 20) for each in (model, engine)
    )
    worst = 0.0
    generator = torch.Generator().manual_seed(5)
    for chosen in moves(rows, steps):
        tokens = torch.randint(2, V, (rows, 1), generator=generator)
        expected, theirs = model.step(tokens, theirs)
        found, ours = engine.step(tokens, ours)
        assert found.shape == expected.shape
        scale = max(1.0, float(expected.abs().max()))
        worst = max(worst, float((found - expected).abs().max()) / scale)
        theirs, ours = mixers.reorder(theirs, chosen), engine.reorder(ours, chosen)
        rows = len(chosen)
    assert set(ours.positions.tolist()) == {theirs.position} == {steps}
    return worst


@pytest.mark.parametrize("make", [seq2seq, language_model])
@pytest.mark.parametrize("norm", NORMS)
@every_kind
@torch.no_grad()
def test_steps_are_those_of_the_model(make: Any, kind: str, norm: str) -> None:
    assert compare(make(kind, norm), 20) < 1e-4


@every_kind
@torch.no_grad()
def test_every_instruction_set(kind: str, instruction_sets: Iterator[str]) -> None:
    model = seq2seq(kind)
    for isa in instruction_sets:
        assert compare(model, 12) < 1e-4, isa


def normalized(normalize: Any) -> dict[str, Any]:
    layers = (
        DynamicConvConfig(kernel=5, heads=4, normalize=normalize),
        LightConvConfig(kernel=3, heads=4, normalize=normalize),
    )
    return {"encoder": layers, "decoder": layers}


CHANGES: dict[str, dict[str, Any]] = {name: normalized(name) for name in mixers.NORMALIZATIONS} | {
    f"share {share}": {"share_embeddings": share, "source_vocab": V}
    for share in ("none", "decoder", "all")
}


@pytest.mark.parametrize("change", CHANGES)
@torch.no_grad()
def test_every_normalisation_and_sharing(change: str) -> None:
    assert compare(seq2seq("lightconv", **CHANGES[change]), 8) < 1e-4


@every_kind
@torch.no_grad()
def test_chunks_of_tokens(kind: str) -> None:
    """Several tokens at once equal the whole text."""
    model = language_model(kind)
    engine = Engine(model)
    tokens = torch.randint(3, V, (2, 9), generator=torch.Generator().manual_seed(1))
    state = engine.start(2, 9)
    parts = []
    for chunk in tokens.split([4, 1, 4], dim=1):
        scores, state = engine.step(chunk, state)
        parts.append(scores)
    torch.testing.assert_close(torch.cat(parts, 1), model(tokens), atol=1e-4, rtol=0)


@torch.no_grad()
def test_padding_has_no_position() -> None:
    """A search fills up rectangles with it; it reads like the model's."""
    model = language_model("lightconv")
    engine = Engine(model)
    theirs, ours = model.start(2, 3), engine.start(2, 3)
    for tokens in ([[5], [PAD]], [[PAD], [4]], [[7], [PAD]]):
        expected, theirs = model.step(torch.tensor(tokens), theirs)
        found, ours = engine.step(torch.tensor(tokens), ours)
        torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-5)


def test_a_buffer_is_quantised_again_after_it_changed() -> None:
    b = Program(program.panels(), program.SIGNED_PANEL)
    x, weight = b.buffer("x", 8), torch.eye(8)
    for to in (b.buffer("y", 8), x, b.buffer("y", 8)):
        b.linear(x, weight, None, to)
    names = [program.OPS[instruction.op] for instruction in b.instructions]
    assert names == ["quantize", *["linear"] * 2, "quantize", "linear"]


@torch.no_grad()
def test_the_number_of_threads_changes_no_bit(set_threads: Callable[[int], None]) -> None:
    engine = Engine(seq2seq("mixed"))
    tokens = torch.full((64, 1), EOS)
    found = []
    for threads in (1, 2, 3):
        set_threads(threads)
        state = engine.start(engine.encode(source_batch().repeat(16, 1)), 4)
        found.append(torch.stack([engine.step(tokens, state)[0] for _ in range(4)]))
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])


@every_kind
@torch.no_grad()
def test_many_rows_on_threads(kind: str, set_threads: Callable[[int], None]) -> None:
    """Rows enough for parts of their own: sequences are not torn apart, nobody's rows are lost.

    The encoder reads 1,260 of them, in two groups.
    """
    set_threads(3)
    assert compare(seq2seq(kind), 2, copies=60) < 1e-4


@pytest.mark.parametrize("kind", ["dynamicconv", "lightconv", "average"])
@torch.no_grad()
def test_memory_does_not_grow_with_length(kind: str) -> None:
    engine = Engine(language_model(kind))
    sizes = []
    for length in (20, 200):
        state = engine.start(4, length)
        for _ in range(length):
            _, state = engine.step(torch.full((4, 1), EOS), state)
        sizes.append(state.nbytes())
    assert sizes[0] == sizes[1]


@every_kind
@torch.no_grad()
def test_int8_is_near_float(kind: str, instruction_sets: Iterator[str]) -> None:
    """Each matrix loses half a step of 1 / 127 at most; the scores follow within a few percent."""
    model = seq2seq(kind)
    source, tokens = source_batch(), torch.full((4, 1), EOS)
    expected, _ = model.step(tokens, model.start(model.encode(source), 4))
    for isa in instruction_sets:
        engine = Engine(model, quantize="int8")
        found, _ = engine.step(tokens, engine.start(engine.encode(source), 4))
        error = (found - expected).norm() / expected.norm()
        assert 0 < error < 0.05, isa


@torch.no_grad()
def test_int8_sources_are_bytes_and_scales() -> None:
    """Each token's keys and values of a head: bytes up to 127 times a scale of their own."""
    model = seq2seq("lightconv")
    H, D = model.config.source_heads, model.config.dim
    exact, rounded = (Engine(model, quantize=q).encode(source_batch()) for q in (None, "int8"))
    for numbers, packed in zip(exact.keys_values, rounded.keys_values, strict=True):
        for begin, end in pairwise(exact.offsets.tolist()):
            expected = numbers[begin:end].reshape(H, 2, end - begin, D // H)
            block, size = packed[begin:end].flatten(), 2 * H * (end - begin)
            scales = block[: 4 * size].view(torch.float32).view(H, 2, end - begin, 1)
            values = block[4 * size : 4 * size + expected.numel()].view_as(expected)
            assert torch.equal(values.abs().amax(-1), torch.full_like(values[..., 0], 127))
            assert (scales * values - expected).norm() < 0.05 * expected.norm()


def test_what_is_not_supported_is_named() -> None:
    class Own(mixers.LightConv):
        """A mixer that the engine does not know."""

    own = seq2seq("lightconv")
    own.decoder[0].mixer = Own(D, kernel=3, heads=2, causal=True)
    assert "Own" in str(Engine.supports(own))
    adaptive = language_model("lightconv", adaptive=AdaptiveConfig(cutoffs=(6, 10), factor=2))
    assert "Adaptive" in str(Engine.supports(adaptive))
    assert "float64" in str(Engine.supports(seq2seq("lightconv").double()))
    assert "Linear" in str(Engine.supports(nn.Linear(2, 2)))
    assert Engine.supports(seq2seq("lightconv")) is None
    with pytest.raises(ValueError, match="Own runs in torch only"):
        Engine(own.eval())


def test_errors() -> None:
    model = seq2seq("attention")
    engine = Engine(model)
    source = engine.encode(source_batch())
    four = torch.full((4, 3), EOS)
    calls: dict[str, Callable[[], object]] = {
        "'int4'": lambda: Engine(model, quantize="int4"),
        "eval": lambda: Engine(seq2seq("lightconv").train()),
        "sentence 1 is nothing": lambda: engine.encode(torch.tensor([[5, 6], [PAD, PAD]])),
        "ids below 29.*got 29": lambda: engine.encode(torch.tensor([[5, 29]])),
        "3 rows but the state has 4": lambda: engine.step(four[:3], engine.start(source, 5)),
        "got -1": lambda: engine.step(four[:, :1] - 3, engine.start(source, 5)),
        "beyond max_len=2": lambda: engine.step(four, engine.start(source, 2)),
        "encode": lambda: engine.start(3, 5),
        "no source": lambda: Engine(language_model("lightconv")).encode(source_batch()),
        "attention": lambda: engine.step_attending(four, engine.start(source, 5)),
    }
    for message, call in calls.items():
        with pytest.raises(ValueError, match=message):
            call()
