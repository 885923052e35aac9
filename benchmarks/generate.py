"""Decoding with the C++ engine: sentences and tokens a second, against CTranslate2 and torch.

    python -m benchmarks.generate                       batch 1 and 32, beam 4, 30 tokens
    python -m benchmarks.generate --length 200 --batch 32 --models dynamicconv selfattention
    python -m benchmarks.generate --torch               also the model's own torch step
    python -m benchmarks.generate --write docs          also the table in docs/performance.md

The models are the paper's for IWSLT De-En with random weights. Sources and outputs have exactly
--length tokens (the end is forbidden before and forced there), so every side does the same number
of steps. CTranslate2 has a Transformer of the sizes of `selfattention`, at its best thread
settings. All sides run in one process in turns; figures are medians.
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch

from benchmarks import peer
from benchmarks.measure import interleave
from benchmarks.pages import measured, table
from benchmarks.pages import replace as replace_page
from lightconv.decode import beam_search
from lightconv.decode.engine import Engine
from lightconv.models import AverageConfig, Seq2Seq, Seq2SeqConfig
from lightconv.ops import program
from lightconv.paper.recipes import RECIPES

EOS = 2
MODELS = ("dynamicconv", "lightconv", "selfattention", "average")
NAMES = {
    "dynamicconv": "DynamicConv",
    "lightconv": "LightConv",
    "selfattention": "self-attention",
    "average": "averaged attention",
}
PRECISIONS = ("float32", "int8")


class Side(NamedTuple):
    """One thing to time: a call that translates `sentences` sentences."""

    name: str
    precision: str
    call: Callable[[], object]
    sentences: int
    engine: Engine | None = None


def configuration(name: str) -> Seq2SeqConfig:
    """The paper's model for IWSLT De-En; "average" has averaged attention in the decoder."""
    known = "selfattention" if name == "average" else name
    config = RECIPES[f"iwslt-de-en-{known}"].model
    assert isinstance(config, Seq2SeqConfig)
    if name == "average":
        layers = tuple(AverageConfig(ffn_dim=config.ffn_dim) for _ in config.decoder)
        return replace(config, decoder=layers)
    return config


def search(model: Any, config: Seq2SeqConfig, batch: int, beam: int, length: int) -> Any:
    """A call that translates one batch; `model` is a model or an engine."""
    source = torch.randint(4, config.source_vocab, (batch, length))
    first = torch.full((batch,), EOS)
    options = {"reorder": model.reorder} if isinstance(model, Engine) else {}
    threads = torch.get_num_threads()

    def call() -> object:
        torch.set_num_threads(threads)  # CTranslate2 sets it to its own number
        with torch.inference_mode():
            state = model.start(model.encode(source), length)
            return beam_search(
                model.step,
                state,
                first,
                beam=beam,
                min_len=length,
                max_len=length,
                eos=EOS,
                pad=config.pad,
                **options,
            )

    return call


def sides(options: argparse.Namespace, batch: int, beam: int) -> list[Side]:
    """What is compared."""
    found, length = [], options.length
    for name in options.models:
        config = configuration(name)
        torch.manual_seed(0)
        model = Seq2Seq(config).eval()
        for kind in options.precision:
            engine = Engine(model, quantize="int8" if kind == "int8" else None)
            call = search(engine, config, batch, beam, length)
            found.append(Side(NAMES[name], kind, call, batch, engine))
        if options.torch:
            call = search(model, config, batch, beam, length)
            found.append(Side(f"{NAMES[name]}, torch", "float32", call, batch))
    if options.peer:
        for kind in options.precision:
            call, count = peer.Peer(configuration("selfattention"), kind, batch).call(beam, length)
            found.append(Side("CTranslate2, Transformer", kind, call, count))
    return found


def measure(options: argparse.Namespace, batch: int, beam: int) -> list[list[str]]:
    """One row per side: its speed, and against CTranslate2 and float32."""
    compared = sides(options, batch, beam)
    calls = {f"{side.name} {side.precision}": side.call for side in compared}
    seconds = interleave(calls, options.rounds, patience=60.0)
    speed = {
        (side.name, side.precision): side.sentences / seconds[f"{side.name} {side.precision}"]
        for side in compared
    }
    rows = []
    for side in compared:
        own = speed[side.name, side.precision]
        other = speed.get(("CTranslate2, Transformer", side.precision))
        plain = speed.get((side.name, "float32"))
        attention = speed.get(("self-attention", side.precision))
        rows.append(
            [
                f"{side.name}, {side.precision}",
                str(batch),
                str(beam),
                str(options.length),
                f"{own:,.1f}",
                f"{own * options.length:,.0f}",
                f"{own / other:.2f}x" if other else "-",
                f"{own / attention:.2f}x" if attention else "-",
                f"{own / plain:.2f}x" if plain and side.precision == "int8" else "-",
            ]
        )
    if options.shares:
        for side in compared:
            if side.engine is not None:
                print(f"{side.name}, {side.precision}, batch {batch}: {shares(side)}", flush=True)
    return rows


def shares(side: Side) -> str:
    """Where the time of one call goes: the engine's instructions, and what is not the engine."""
    engine = side.engine
    assert engine is not None
    engine.nanoseconds = torch.zeros(len(program.OPS), dtype=torch.int64)
    whole = interleave({"once": side.call}, rounds=1)["once"]  # a warm-up and a turn
    spent = [n / 2e9 for n in engine.nanoseconds.tolist()]
    engine.nanoseconds = None
    parts = {op: s for op, s in zip(program.OPS, spent, strict=True) if s > 0.0}
    parts["search and Python"] = max(0.0, whole - sum(spent))
    return ", ".join(
        f"{op} {s / whole:.0%}" for op, s in sorted(parts.items(), key=lambda p: -p[1])
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Prints the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--precision", nargs="+", choices=PRECISIONS, default=list(PRECISIONS))
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 32])
    parser.add_argument("--beam", type=int, nargs="+", default=[4])
    parser.add_argument("--length", type=int, default=30)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--torch", action="store_true", help="also the model's own torch step")
    parser.add_argument("--no-peer", dest="peer", action="store_false", help="no CTranslate2")
    parser.add_argument("--shares", action="store_true", help="where the time goes")
    parser.add_argument("--write", type=Path, metavar="DOCS", help="folder of performance.md")
    options = parser.parse_args(argv)
    if options.peer and not peer.available():
        print(f"error: {peer.MISSING}, or leave it out with --no-peer", file=sys.stderr)
        return 2
    head = measured()
    print(head, flush=True)
    rows = [
        row
        for batch in options.batch
        for beam in options.beam
        for row in measure(options, batch, beam)
    ]
    header = ["side", "batch", "beam", "tokens", "sentences/s", "tokens/s"]
    header += ["against CTranslate2", "against self-attention", "int8 against float32"]
    found = table(header, rows)
    print(found)
    if options.write:
        page = options.write / "performance.md"
        replace_page(page, "benchmarks.generate", f"{head}.\n\n{found}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
