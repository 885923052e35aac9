"""A process of `lightconv table`: one command, or one measurement, that ends with its parent.

python -m lightconv.paper.worker train RECIPE --data DIR --out RUN
python -m lightconv.paper.worker measure RUN --data DIR --split valid --out FILE
"""

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from lightconv import cli
from lightconv.config import to_json
from lightconv.train.launch import watch_parent


def main(argv: Sequence[str]) -> int:
    """Runs what is asked for; the exit code is that of the command."""
    watch_parent(os.environ)
    if argv[:1] != ["measure"]:
        return cli.main(argv)
    try:
        return _measure(argv[1:])
    except KeyboardInterrupt:
        return cli.EXIT_INTERRUPT
    except (ValueError, OSError, RuntimeError) as error:
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        return cli.exit_code(error)


def _measure(argv: Sequence[str]) -> int:
    parser = cli.Parser("table", "Measures a run.")
    parser.add_argument("run", type=Path)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--split", action="append", default=[])
    parser.add_argument("--limit", type=int)
    parser.add_argument("--one-by-one", action="store_true")
    parser.add_argument("--diverged", action="store_true")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse(argv)

    from lightconv.paper.measure import measure
    from lightconv.train.command import choose_device

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


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
