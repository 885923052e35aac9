"""`lightconv plot`."""

from collections.abc import Sequence
from pathlib import Path

from lightconv.commands.parser import Parser


def main(argv: Sequence[str]) -> int:
    """Draws the curves of runs."""
    parser = Parser(
        "plot",
        "Draws loss, metric and learning rate of one or more runs into one picture. A run that is "
        "still going on can be drawn too.",
        "lightconv plot runs/iwslt                                # runs/iwslt/plot.png",
        "lightconv plot runs/light runs/dynamic --out both.png",
    )
    parser.add_argument(
        "runs", metavar="RUN", type=Path, nargs="+", help="folders of `lightconv train`"
    )
    parser.add_argument("--out", metavar="FILE", type=Path, help="the picture: .png, .svg or .pdf")
    options = parser.parse(argv)

    from lightconv.train.log import PLOT_FILE, draw

    out = options.out or options.runs[0] / PLOT_FILE
    draw(options.runs, out)
    print(out)
    return 0
