"""Internal command: measures a run for `lightconv table` and writes the figures as JSON."""

from collections.abc import Sequence
from pathlib import Path

from lightconv.commands.parser import Parser
from lightconv.config import to_json


def main(argv: Sequence[str]) -> int:
    """Writes size, scores and speed of a run."""
    parser = Parser("measure", "Measures a run for `lightconv table`.")
    parser.add_argument("run", type=Path)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--split", action="append", default=[])
    parser.add_argument("--limit", type=int)
    parser.add_argument("--one-by-one", action="store_true")
    parser.add_argument("--diverged", action="store_true")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse(argv)

    from lightconv.device import choose_device
    from lightconv.paper.experiment import measure

    found = measure(
        options.run,
        options.data,
        options.split,
        device=choose_device(options.device),
        limit=options.limit,
        one_by_one=options.one_by_one,
        ended=not options.diverged,
    )
    options.out.write_text(to_json(found), encoding="utf-8")
    return 0
