"""`lightconv score`: log-probabilities and perplexity of texts that are there already."""

import json
import sys
from argparse import Namespace
from collections.abc import Iterator, Sequence
from pathlib import Path

from lightconv.commands.parser import Parser
from lightconv.config import override
from lightconv.data.text import Notes, check_file, check_parallel, read_lines, read_parallel
from lightconv.decode.options import FolderSettings, TextOptions, find_model, read_settings

TAB = "\t"
STDIN = "standard input"


def main(argv: Sequence[str]) -> int:
    """Writes a number, or JSON, for each line; the perplexity of all of them to stderr."""
    options = _parser().parse(argv)
    settings = read_settings(find_model(options.model))
    decode = override(settings.decode, options.set)
    _check_files(options, settings)

    # These load torch, which takes its time: mistakes above are answered at once.
    from lightconv.decode.score.scorer import Scorer
    from lightconv.decode.text import load
    from lightconv.device import choose_device
    from lightconv.evaluate.metrics import compute_perplexity

    notes = Notes()
    stream = _windows(options, settings, notes)
    model = load(settings.folder, choose_device(options.device))
    scorer = Scorer(model, model.pipeline, decode, TextOptions())
    lines = subwords = words = 0
    total = 0.0
    for scored in scorer.score_windows(_flushing(stream)):
        lines += 1
        subwords += len(scored.ids) - 1
        words += scored.words
        total += scored.logprob
        if not options.total:
            print(
                json.dumps(scored.plain(), ensure_ascii=False)
                if options.format == "jsonl"
                else f"{scored.logprob:.6f}"
            )
    if warning := notes.warning():
        print(f"warning: {warning}", file=sys.stderr)
    if lines:
        score = compute_perplexity(total, lines=lines, subwords=subwords, words=words)
        file = sys.stdout if options.total else sys.stderr
        print(json.dumps(score.plain()) if options.format == "jsonl" else score, file=file)
    return 0


def _check_files(options: Namespace, settings: FolderSettings) -> None:
    given = [options.source is not None, options.target is not None]
    if any(given) and not settings.pairs:
        raise ValueError(
            f"{settings.folder} is a language model, expected texts alone. Use --input FILE, or "
            "standard input"
        )
    if any(given) and not all(given):
        raise ValueError("--source and --target belong together, expected both or none")
    if options.input is not None and any(given):
        raise ValueError("--input and --source, expected one of them")
    if any(given):
        check_parallel([options.source, options.target])
    elif options.input is not None:
        check_file(options.input)


def _windows(
    options: Namespace, settings: FolderSettings, notes: Notes
) -> Iterator[list[tuple[str, ...]]]:
    """Texts, or pairs of source and target, as many as are there."""
    from lightconv.decode.stream import open_stdin, read_stream, windows

    most = TextOptions().window
    if options.source is not None:
        yield from windows(read_parallel([options.source, options.target], notes), most)
        return
    name = STDIN if options.input is None else str(options.input)
    lines = (
        read_stream(open_stdin(), STDIN, notes, most)
        if options.input is None
        else windows(read_lines(options.input, notes), most)
    )
    split = _pair if settings.pairs else _alone
    done = 0
    for window in lines:
        yield [split(line, name, number) for number, line in enumerate(window, done + 1)]
        done += len(window)


def _flushing(stream: Iterator[list[tuple[str, ...]]]) -> Iterator[list[tuple[str, ...]]]:
    """The windows; what was scored is written before the next one is waited for."""
    for window in stream:
        yield window
        sys.stdout.flush()


def _alone(line: str, name: str, number: int) -> tuple[str, ...]:
    return (line,)


def _pair(line: str, name: str, number: int) -> tuple[str, ...]:
    source, tab, target = line.partition(TAB)
    if not tab or TAB in target:
        raise ValueError(
            f"{name}, line {number}: {line.count(TAB)} tabs, expected one between source and "
            "target. --source FILE --target FILE take two files instead"
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
    parser.add_argument(
        "--input", metavar="FILE", type=Path, help="read this instead of standard input"
    )
    parser.add_argument("--source", metavar="FILE", type=Path, help="sources, one per line")
    parser.add_argument("--target", metavar="FILE", type=Path, help="their targets")
    parser.add_argument(
        "--total", action="store_true", help="print the perplexity only, and to standard output"
    )
    parser.add_argument(
        "--format",
        choices=["text", "jsonl"],
        default="text",
        help="jsonl: with tokens and the log-probability of each; default: text",
    )
    parser.add_settings(
        "change the length penalty of `score` in jsonl, such as alpha=0.6", metavar="NAME=VALUE"
    )
    parser.add_device()
    return parser
