"""Decoding with the C++ engine, compared with CTranslate2 and torch: speed, time shares, memory.

    python -m benchmarks.generate                     everything: about 20 minutes on two cores
    python -m benchmarks.generate --quick             two models, beam 4, few turns: 2 minutes
    python -m benchmarks.generate --only speed long --batch 32 --beam 4
    python -m benchmarks.generate --only paper        the set-ups of the paper's Sent/sec, Tok/sec
    python -m benchmarks.generate --write docs        also the tables in docs

The models are the paper's for IWSLT De-En with random weights (--only paper: those for WMT En-De).
Sources and outputs have a fixed number of tokens, so every side runs the same number of steps.
CTranslate2 has a Transformer of the size of `selfattention`, with its best thread settings. All
sides of a table run in one process in turns, after a warm-up; figures are medians.
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks import bounds, decoders, footprint, peer, protocol, spent
from benchmarks.bounds import Measured
from benchmarks.decoders import NAMES, PEER, PRECISIONS, Shape, Side
from benchmarks.measure import interleave
from benchmarks.pages import excerpt, measured, replace, table

LONG = 200
# Seconds; slower calls have three turns.
PATIENCE = 5.0


def measure_speed(options: argparse.Namespace, found: Measured) -> str:
    """Sentences and tokens per second with short outputs."""
    rows = []
    for batch in options.batch:
        for beam in options.beam:
            shape = Shape(batch, beam, options.length)
            rows += _speeds(options, found, shape, in_torch=options.torch)
    return table(_HEADER, rows)


def measure_long(options: argparse.Namespace, found: Measured) -> str:
    """The same with long outputs, in batches."""
    shape = Shape(max(options.batch), 4, options.long)
    return table(_HEADER, _speeds(options, found, shape))


_HEADER = (
    *("side", "batch", "beam", "tokens", "sentences/s", "tokens/s"),
    *("against CTranslate2", "against self-attention", "int8 against float32"),
)


def _speeds(
    options: argparse.Namespace, found: Measured, shape: Shape, *, in_torch: bool = False
) -> list[list[str]]:
    """One row per side: speed, and ratios to CTranslate2, self-attention and float32."""
    with decoders.sides(
        options.models,
        options.precision,
        shape,
        in_torch=in_torch,
        against=options.peer,
        small=options.small,
    ) as compared:
        rounds = options.rounds * (3 if shape.batch == 1 else 1)
        seconds = turns(compared, rounds)
    speed = {(side.name, side.precision): side.sentences / seconds[side.title] for side in compared}
    found.speed |= {(*key, shape): value for key, value in speed.items()}
    rows = []
    for side in compared:
        own = speed[side.name, side.precision]
        against = [
            speed.get((PEER, side.precision)),
            speed.get((NAMES["selfattention"], side.precision)),
            speed.get((side.name, "float32")) if side.precision == "int8" else None,
        ]
        rows.append(
            [
                side.title,
                *map(str, shape),
                f"{own:,.1f}",
                f"{own * shape.length:,.0f}",
                *(f"{own / other:.2f}x" if other else "-" for other in against),
            ]
        )
    return rows


def summary(speeds: str) -> str:
    """The rows of the table of speeds that most readers ask for: beam 4, no torch."""
    columns = ["side", "batch", "sentences/s", "against CTranslate2", "against self-attention"]
    names = (NAMES["dynamicconv"], NAMES["lightconv"], NAMES["selfattention"], PEER)
    asked = [f"{name}, {kind}" for name in names for kind in PRECISIONS]
    return excerpt(speeds, columns, lambda row: row["beam"] == "4" and row["side"] in asked)


def turns(compared: Sequence[Side], rounds: int) -> dict[str, float]:
    """Seconds per call of each side, by its title."""
    for side in compared:
        side.warm()
    return interleave({side.title: side.call for side in compared}, rounds, PATIENCE, warm=False)


def measure_shares(options: argparse.Namespace, found: Measured) -> str:
    """Time shares of the engine by part."""
    rows = []
    for batch in options.batch:
        shape = Shape(batch, 4, options.length)
        with decoders.sides(
            options.models, options.precision, shape, against=False, small=options.small
        ) as compared:
            times: dict[str, list[dict[str, float]]] = {side.title: [] for side in compared}
            for side in compared:
                side.warm()
            for _ in range(options.rounds):
                for side in compared:
                    times[side.title].append(spent.spent(side.call))
        for side in compared:
            shares = spent.medians(times[side.title])
            found.overhead[side.name, side.precision, shape] = spent.overhead(shares)
            figures = [f"{shares[part]:.0%}" for part in spent.PARTS]
            rows.append([side.title, str(batch), *figures, f"{spent.overhead(shares):.0%}"])
    header = ["share of", "batch", *spent.PARTS, "last two together"]
    return table(header, rows)


def measure_memory(options: argparse.Namespace, found: Measured) -> str:
    """Bytes per hypothesis at two lengths, and peak memory of a process."""
    batch = max(options.batch)
    rows = []
    for name in options.models:
        config = decoders.configuration(name, options.small)
        model = decoders.build(config)
        for runner, title in (
            (decoders.compile_model(model, "float32"), "engine"),
            (model, "torch"),
        ):
            sizes = []
            for length in (options.length, options.long):
                size = footprint.state_bytes(runner, config, Shape(2, 4, length))
                found.state[NAMES[name], title, length] = size
                sizes.append(f"{size:,.0f}")
            rows.append([f"{NAMES[name]}, {title}", *sizes])
    lengths = (f"{length} tokens" for length in (options.length, options.long))
    states = table(["bytes of decoder state per hypothesis", *lengths], rows)
    shape = Shape(batch, 4, options.length)
    peaks = footprint.peaks(
        options.models, options.precision, shape, against=options.peer, small=options.small
    )
    resident = [[name, f"{size / 1e6:,.0f}"] for name, size in peaks.items()]
    header = [f"loads its folder, translates {batch} sentences, beam 4", "peak memory, MB"]
    return f"{states}\n\n{table(header, resident)}"


def measure_paper(options: argparse.Namespace, found: Measured) -> str:
    """Speed in the paper's own set-ups."""
    return protocol.measure(small=options.small, rounds=options.rounds)


SECTIONS: dict[str, Callable[[argparse.Namespace, Measured], str]] = {
    "speed": measure_speed,
    "long": measure_long,
    "shares": measure_shares,
    "memory": measure_memory,
    "paper": measure_paper,
}


def main(argv: Sequence[str] | None = None) -> int:
    """Prints the tables, then the bounds."""
    options = _parse(argv)
    if options.peer and not peer.available():
        print(f"error: {peer.MISSING}, or leave it out with --no-peer", file=sys.stderr)
        return 2
    head = f"{measured()}; `{_command(argv)}`."
    print(head, flush=True)
    found = Measured()
    for name in options.only:
        text = SECTIONS[name](options, found)
        print(f"\n{name}\n\n{text}", flush=True)
        if options.write:
            replace(options.write, f"benchmarks.generate {name}", f"{head}\n\n{text}")
            if name == "speed":
                replace(options.write, "benchmarks.generate summary", f"{head}\n\n{summary(text)}")
    judged = bounds.judge(found, length=options.length, long=options.long)
    if judged:
        print(f"\n{bounds.render(judged)}")
    if options.write and set(options.only) >= {"speed", "long", "shares", "memory"}:
        text = f"{head}\n\n{bounds.render(judged)}"
        replace(options.write, "benchmarks.generate", text)
    return 0


def _command(argv: Sequence[str] | None) -> str:
    given = sys.argv[1:] if argv is None else argv
    return " ".join(["python -m benchmarks.generate", *given])


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--only", nargs="+", choices=SECTIONS, metavar="TABLE", help="some tables: %(choices)s"
    )
    parser.add_argument("--quick", action="store_true", help="two models, beam 4, three turns")
    parser.add_argument("--models", nargs="+", choices=NAMES, default=list(NAMES))
    parser.add_argument("--precision", nargs="+", choices=PRECISIONS, default=list(PRECISIONS))
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 32])
    parser.add_argument("--beam", type=int, nargs="+", default=[1, 4, 5], help="of the first table")
    parser.add_argument("--length", type=int, default=30)
    parser.add_argument("--long", type=int, default=LONG, help="tokens of long outputs")
    parser.add_argument("--rounds", type=int, default=5, help="turns; three times that at batch 1")
    parser.add_argument("--no-torch", dest="torch", action="store_false", help="no torch beside")
    parser.add_argument("--no-peer", dest="peer", action="store_false", help="no CTranslate2")
    parser.add_argument("--small", action="store_true", help="small models, to try this file")
    parser.add_argument("--write", type=Path, metavar="DOCS", help="write the tables there")
    options = parser.parse_args(argv)
    if options.quick:
        options.models, options.beam, options.torch = ["dynamicconv", "selfattention"], [4], False
        options.rounds = min(options.rounds, 3)
    options.only = options.only or [
        name for name in SECTIONS if not options.quick or name in ("speed", "shares")
    ]
    return options


if __name__ == "__main__":
    sys.exit(main())
