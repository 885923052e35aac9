"""One exported program serves every batch, length and position."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim, export
from torch.utils._pytree import tree_map

from lightconv.models import LanguageModel, Seq2Seq

from .examples import (
    ADAPTIVE,
    PAD,
    SOURCE_VOCAB,
    either_output,
    every_kind,
    language_model,
    seq2seq,
    tokens,
)

MAX_LEN = 50
BATCH, SOURCE = Dim("batch"), Dim("source")
# Rows, length of the source, position: the first tokens and a single row among them.
PLACES = [(3, 7, 5), (2, 3, 0), (1, 1, 1), (4, 9, 29)]
CLOSE = {"rtol": 1e-5, "atol": 1e-5}

one_or_chunk = pytest.mark.parametrize("one", [True, False], ids=["one", "chunk"])


class Method(nn.Module):
    """A method of a model as a module's forward, which is what export takes."""

    def __init__(self, model: nn.Module, name: str) -> None:
        super().__init__()
        self.model = model
        self.name = name

    def forward(self, tokens: Tensor, state: Any = None) -> Any:
        method = getattr(self.model, self.name)
        return method(tokens) if state is None else method(tokens, state)


def sources(rows: int, length: int) -> Tensor:
    """[rows, length], the last token of the last row being padding."""
    source = tokens(rows, length, SOURCE_VOCAB, seed=rows)
    source[-1, 1:][-1:] = PAD
    return source


def begin(model: Any, rows: int, length: int, position: int) -> Any:
    """The state after `position` tokens."""
    if isinstance(model, Seq2Seq):
        state = model.start(model.encode(sources(rows, length)), MAX_LEN)
    else:
        state = model.start(rows, MAX_LEN)
    return model.step(tokens(rows, position, seed=3), state)[1]


def state_dims(state: Any) -> Any:
    """Every tensor has a free batch, those of the source a free length, every position is free."""
    dims = tree_map(
        lambda leaf: {0: BATCH} if isinstance(leaf, Tensor) else Dim.DYNAMIC,  # type: ignore[attr-defined]
        state,
    )
    if not hasattr(state, "padding"):
        return dims
    free = {0: BATCH, 1: SOURCE}
    layers = (layer._replace(source=type(layer.source)(free, free)) for layer in dims.layers)
    return dims._replace(layers=tuple(layers), padding=free)


@torch.no_grad()
def check_encode(model: Seq2Seq) -> None:
    dims = {"tokens": {0: BATCH, 1: SOURCE}}
    program = export(Method(model, "encode"), (sources(3, 7),), dynamic_shapes=dims).module()
    for shape in ((3, 7), (1, 1), (1, 9), (2, 4), (5, 40)):
        source = sources(*shape)
        for expected, found in zip(model.encode(source), program(source), strict=True):
            torch.testing.assert_close(found, expected, **CLOSE)


@torch.no_grad()
def check_step(model: Seq2Seq | LanguageModel, one: bool) -> None:
    state = begin(model, 3, 7, 5)
    chunk = Dim("chunk", min=2, max=MAX_LEN)
    dims = {"tokens": {0: BATCH} if one else {0: BATCH, 1: chunk}, "state": state_dims(state)}
    arguments = (tokens(3, 1 if one else 4), state)
    program = export(Method(model, "step"), arguments, dynamic_shapes=dims).module()
    for rows, length, position in PLACES:
        for size in (1,) if one else (2, 9, MAX_LEN - position):
            batch = tokens(rows, size, seed=4)
            expected, after = model.step(batch, begin(model, rows, length, position))
            scores, found = program(batch, begin(model, rows, length, position))
            torch.testing.assert_close(scores, expected, **CLOSE)
            assert type(found) is type(after)
            assert found.position == position + size
            # Positions of all layers, and every tensor.
            torch.testing.assert_close(found, after, **CLOSE)


@torch.no_grad()
def check_stream(model: LanguageModel) -> None:
    """The program alone, fed its own states, writes what forward reads."""
    state = model.start(2, MAX_LEN)
    dims = {"tokens": {0: BATCH}, "state": state_dims(state)}
    program = export(Method(model, "step"), (tokens(2, 1), state), dynamic_shapes=dims).module()
    batch = tokens(3, 12)
    state = model.start(3, MAX_LEN)
    parts = []
    for token in batch.split(1, dim=1):
        scores, state = program(token, state)
        parts.append(scores)
    torch.testing.assert_close(torch.cat(parts, dim=1), model(batch), rtol=0.0, atol=1e-4)


def test_encode() -> None:
    check_encode(seq2seq("mixed", torch.float32))


@one_or_chunk
def test_seq2seq_step(one: bool) -> None:
    check_step(seq2seq("mixed", torch.float32), one)


@one_or_chunk
def test_language_model_step(one: bool) -> None:
    check_step(language_model("dynamicconv", torch.float32, adaptive=ADAPTIVE), one)


def test_a_program_exported_at_the_start_goes_on() -> None:
    check_stream(language_model("attention", torch.float32))


@pytest.mark.slow
@every_kind
@either_output
def test_every_kind(kind: str, adaptive: object) -> None:
    for pre_norm in (False, True):
        options = {"pre_norm": pre_norm, "adaptive": adaptive}
        pair, text = (build(kind, torch.float32, **options) for build in (seq2seq, language_model))
        assert isinstance(pair, Seq2Seq)
        assert isinstance(text, LanguageModel)
        check_encode(pair)
        for one in (True, False):
            check_step(pair, one)
            check_step(text, one)
        check_stream(text)
