"""The options of `translate`, `summarize`, `generate` and `interactive`."""

from pathlib import Path
from typing import get_args

from lightconv.commands.parser import Parser
from lightconv.decode.options import EngineName, Quantization, TextOptions


def add_text(parser: Parser) -> None:
    """What `translate`, `summarize` and `generate` have besides: where lines come from."""
    defaults = TextOptions()
    parser.add_argument(
        "--input",
        metavar="FILE",
        type=Path,
        help="read this instead of standard input; .gz, .bz2, .xz are unpacked",
    )
    parser.add_argument(
        "--format",
        choices=["text", "jsonl"],
        default="text",
        help="jsonl: scores, tokens, all outputs and times; default: text",
    )
    parser.add_argument(
        "--max-source",
        metavar="N",
        type=int,
        help=f"the most tokens of a line that are read at once (default: {defaults.max_source})",
    )
    parser.add_argument("--strict", action="store_true", help="a longer line is an error")
    parser.add_argument(
        "--subwords", action="store_true", help="leave subwords as they are, with spaces between"
    )
    parser.add_argument(
        "--max-tokens",
        metavar="N",
        type=int,
        help=f"the most tokens of a batch (default: {defaults.max_tokens})",
    )
    parser.add_argument(
        "--window",
        metavar="N",
        type=int,
        help=f"how many lines are sorted by length together (default: {defaults.window})",
    )


def add_search(parser: Parser) -> None:
    """Which model, and how it searches."""
    parser.add_model()
    parser.add_argument(
        "--beam", metavar="N", type=int, help="the width of the search (default: the model's own)"
    )
    parser.add_argument(
        "--n-best", metavar="N", type=int, help="how many outputs for each line (default: 1)"
    )
    parser.add_settings(
        "change another value of the search, such as alpha=0.6, max_len_plus=50 or min_len=5",
        metavar="NAME=VALUE",
    )
    parser.add_argument(
        "--ensemble",
        metavar="MODEL",
        type=Path,
        action="append",
        default=[],
        help="another model of the same data: the mean of all is searched; may be repeated",
    )
    parser.add_argument(
        "--sample", action="store_true", help="draw outputs at random; --n-best says how many"
    )
    parser.add_argument(
        "--temperature", metavar="T", type=float, help="below 1 the probable becomes more so"
    )
    parser.add_argument(
        "--top-k", metavar="K", type=int, help="draw among the K most probable words only"
    )
    parser.add_argument(
        "--top-p", metavar="P", type=float, help="... among those that have probability P together"
    )
    parser.add_argument("--seed", metavar="N", type=int, help="other draws for another seed")
    parser.add_device()
    parser.add_argument(
        "--engine",
        choices=get_args(EngineName),
        help="native: the C++ engine, on processors; default: auto, which says if it cannot",
    )
    parser.add_argument(
        "--quantize", choices=get_args(Quantization), help="linear layers in 8 bits; default: none"
    )


def add_pairs(parser: Parser) -> None:
    """What only models of source and target can do."""
    parser.add_argument(
        "--alignments",
        action="store_true",
        help="also the source token of each target token: a column such as `0-0 1-2`, or in JSON",
    )
    parser.add_argument(
        "--prefix",
        action="store_true",
        help="a line may have a tab, and behind it the words that its output begins with",
    )
