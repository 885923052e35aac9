"""`lightconv score`: log-probabilities and perplexity of given texts."""

import json
import sys
from argparse import Namespace
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from lightconv.commands.parser import Parser
from lightconv.config import override
from lightconv.console import tell
from lightconv.data.text import Notes, check_file, check_lines, read_lines, side_by_side
from lightconv.decode.options import TextOptions, read_decode
from lightconv.models.folder import ModelFolder

TAB = "\t"


def main(argv: Sequence[str]) -> int:
    """Writes a number, or JSON, for each line; the perplexity of all of them to stderr."""
    arguments = _parser().parse(argv)
    folder = ModelFolder(arguments.model)
    decode = override(read_decode(folder.path, folder.tables), arguments.set)
    _check_files(arguments, folder)

    # These load torch, which takes its time: mistakes above are answered at once.
    from lightconv.decode.score import Scorer
    from lightconv.decode.text import load_pipeline
    from lightconv.device import choose_device
    from lightconv.evaluate.metrics import compute_perplexity

    notes = Notes()
    model = folder.load(choose_device(arguments.device))
    scorer = Scorer(model, load_pipeline(folder.path, pairs=folder.pairs), decode)
    lines = subwords = words = 0
    total = 0.0
    for scored in scorer.score_windows(_windows(arguments, folder.pairs, notes)):
        lines += 1
        subwords += len(scored.ids) - 1
        words += scored.words
        total += scored.logprob
        if not arguments.total:
            print(
                json.dumps(scored.plain(), ensure_ascii=False)
                if arguments.format == "jsonl"
                else f"{scored.logprob:.6f}"
            )
    if warning := notes.warning():
        tell(f"warning: {warning}")
    if lines:
        score = compute_perplexity(total, lines=lines, subwords=subwords, words=words)
        file = sys.stdout if arguments.total else sys.stderr
        print(json.dumps(score.plain()) if arguments.format == "jsonl" else score, file=file)
    return 0


def _check_files(arguments: Namespace, folder: ModelFolder) -> None:
    given = [arguments.source, arguments.target]
    if any(given) and not folder.pairs:
        raise ValueError(
            f"{folder.path} is a language model, expected texts alone. Use --input FILE, or "
            "standard input"
        )
    if any(given) and not all(given):
        raise ValueError("--source and --target belong together, expected both or none")
    if arguments.input is not None and any(given):
        raise ValueError("--input and --source, expected one of them")
    if any(given):
        check_lines(given, map(read_lines, given))
    elif arguments.input is not None:
        check_file(arguments.input)


def _windows(arguments: Namespace, pairs: bool, notes: Notes) -> Iterator[list[tuple[str, ...]]]:
    """Windows of (text,) or (source, target); flushes the scores of one before the next."""
    from lightconv.decode.translator import read_windows, windows

    most = TextOptions().window
    if arguments.source is not None:
        paths = [arguments.source, arguments.target]
        yield from windows(side_by_side(paths, partial(read_lines, notes=notes)), most)
        return
    name = arguments.input or "standard input"
    done = 0
    for window in read_windows(arguments.input, most, notes):
        yield [
            _split(line, f"{name}, line {number}") if pairs else (line,)
            for number, line in enumerate(window, done + 1)
        ]
        done += len(window)
        sys.stdout.flush()


def _split(line: str, where: str) -> tuple[str, ...]:
    source, tab, target = line.partition(TAB)
    if not tab or TAB in target:
        raise ValueError(
            f"{where}: {line.count(TAB)} tabs, expected one between source and target. --source "
            "FILE --target FILE take two files instead"
        )
    return source, target


def _parser() -> Parser:
    parser = Parser(
        "score",
        "Says how likely a model finds texts that are there already: the natural logarithm of the "
        "probability of each line, end of sentence included, and at the end the perplexity per "
        "word and per subword of all of them, with a signature, on stderr. A model of pairs takes "
        "source and target, in two files or on one line with a tab between them.",
        "lightconv score my-lm < text.txt",
        "lightconv score my-model --source in.de --target out.en --format jsonl",
        "lightconv score my-lm --total --input text.txt",
    )
    parser.add_model()
    add = parser.add_argument
    add("--input", metavar="FILE", type=Path, help="read this instead of standard input")
    add("--source", metavar="FILE", type=Path, help="sources, one per line")
    add("--target", metavar="FILE", type=Path, help="their targets")
    about = "print the perplexity only, and to standard output"
    add("--total", action="store_true", help=about)
    about = "jsonl: with tokens and the log-probability of each; default: text"
    add("--format", choices=["text", "jsonl"], default="text", help=about)
    parser.add_settings(
        "change the length penalty of `score` in jsonl, such as alpha=0.6", metavar="NAME=VALUE"
    )
    parser.add_device()
    return parser
