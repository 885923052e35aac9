"""The sides that benchmarks/generate.py compares: one call per side that translates a batch.

Weights are random. Sources and outputs have exactly the requested number of tokens (EOS is
forbidden before and forced there), so every side runs the same number of steps.
"""

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch

from benchmarks import peer
from lightconv.decode import beam_search
from lightconv.decode.engine import Engine
from lightconv.models import AverageConfig, Seq2Seq, Seq2SeqConfig
from lightconv.paper.recipes import RECIPES

EOS = 2
NAMES = {
    "dynamicconv": "DynamicConv",
    "lightconv": "LightConv",
    "selfattention": "self-attention",
    "average": "averaged attention",
}
PRECISIONS = ("float32", "int8")
PEER = "CTranslate2, Transformer"
# Tokens of a warm-up: all of a short call, the beginning of a long one.
_WARM = 8

Runner = Engine | Seq2Seq


class Shape(NamedTuple):
    """Size of a call: sentences, hypotheses per sentence, tokens per sentence."""

    batch: int
    beam: int
    length: int


class Side(NamedTuple):
    """A side of the comparison: `call` translates `sentences` sentences, `warm` fewer tokens."""

    name: str
    precision: str
    call: Callable[[], object]
    warm: Callable[[], object]
    sentences: int
    runner: Runner | None = None

    @property
    def title(self) -> str:
        """The name in tables."""
        return f"{self.name}, {self.precision}"


def configuration(name: str, small: bool = False) -> Seq2SeqConfig:
    """The paper's model for IWSLT De-En; "average" has averaged attention in the decoder."""
    known = "selfattention" if name == "average" else name
    config = of_recipe(f"iwslt-de-en-{known}{'-small' if small else ''}")
    if name == "average":
        layers = tuple(AverageConfig(ffn_dim=config.ffn_dim) for _ in config.decoder)
        return replace(config, decoder=layers)
    return config


def of_recipe(name: str) -> Seq2SeqConfig:
    """The model of a recipe for translation."""
    config = RECIPES[name].model
    assert isinstance(config, Seq2SeqConfig)
    return config


def build(config: Seq2SeqConfig) -> Seq2Seq:
    """A model with random weights from a fixed seed."""
    torch.manual_seed(0)
    return Seq2Seq(config).eval()


def compile_model(model: Seq2Seq, precision: str) -> Engine:
    """The engine of a model."""
    return Engine(model, quantize="int8" if precision == "int8" else None)


def search(
    runner: Runner, config: Seq2SeqConfig, shape: Shape, step: Any = None
) -> Callable[[], object]:
    """A call that translates one batch; `step` replaces the step of the runner."""
    batch, beam, length = shape
    source = torch.randint(4, config.source_vocab, (batch, length))
    first = torch.full((batch,), EOS)
    options: dict[str, Any] = {"reorder": runner.reorder} if isinstance(runner, Engine) else {}
    threads = torch.get_num_threads()
    step = step or runner.step

    def call() -> object:
        torch.set_num_threads(threads)  # CTranslate2 changes it
        with torch.inference_mode():
            memory: Any = runner.encode(source)
            return beam_search(
                step,
                runner.start(memory, length),
                first,
                beam=beam,
                min_len=length,
                max_len=length,
                eos=EOS,
                pad=config.pad,
                **options,
            )

    return call


def side(name: str, precision: str, runner: Runner, config: Seq2SeqConfig, shape: Shape) -> Side:
    """A runner as a side."""
    warm = shape._replace(length=min(shape.length, _WARM))
    call, begin = (search(runner, config, each) for each in (shape, warm))
    return Side(name, precision, call, begin, shape.batch, runner)


@contextmanager
def sides(
    names: Sequence[str],
    precisions: Sequence[str],
    shape: Shape,
    *,
    in_torch: bool = False,
    against: bool = True,
    small: bool = False,
) -> Iterator[list[Side]]:
    """The engine with each named model, and torch and CTranslate2 if requested."""
    found = []
    for name in names:
        config = configuration(name, small)
        model = build(config)
        found += [
            side(NAMES[name], kind, compile_model(model, kind), config, shape)
            for kind in precisions
        ]
        if in_torch:
            found.append(side(f"{NAMES[name]}, torch", "float32", model, config, shape))
    with tempfile.TemporaryDirectory() as folder:
        for kind in precisions if against else ():
            path = peer.save(configuration("selfattention", small), kind, Path(folder) / kind)
            other = peer.Peer(path, kind, shape.batch)
            call, count = other.call(shape.beam, shape.length)
            warm, _ = other.call(shape.beam, min(shape.length, _WARM))
            found.append(Side(PEER, kind, call, warm, count))
        yield found
