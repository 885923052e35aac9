"""`lightconv translate`, `summarize`, `generate` and `interactive`: text in, text out."""

import json
import sys
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from lightconv.commands.parser import Parser
from lightconv.config import override
from lightconv.console import tell
from lightconv.data.text import Notes, check_file
from lightconv.decode.answer import Answer, Output, join_sentences
from lightconv.decode.options import (
    NAMES,
    EngineName,
    Options,
    Quantization,
    TextOptions,
    read_decode,
)
from lightconv.models.folder import ModelFolder

if TYPE_CHECKING:
    from lightconv.decode.translator import Translator

TAB = "\t"


def translate(argv: Sequence[str]) -> int:
    """Reads lines, writes their translations."""
    parser = _line_parser(
        "translate",
        "Translates text: line by line from standard input, or from --input, to standard output. "
        "Plain text in, plain text out; the tokeniser is in the model folder. Any number of lines "
        "takes the memory of one window of them, and a line that is typed is answered at once.",
        "lightconv translate runs/first < in.de > out.en",
        "echo 'Guten Morgen.' | lightconv translate my-model --beam 4 --set alpha=0.6",
        "lightconv translate my-model --input in.de --format jsonl --n-best 4 > out.jsonl",
        "lightconv translate runs/1 --ensemble runs/2 --alignments --input in.de",
    )
    _add_pairs(parser)
    return _answer_lines(parser.parse(argv), pairs=True)


def summarize(argv: Sequence[str]) -> int:
    """Reads articles, one in each line, writes their summaries."""
    parser = _line_parser(
        "summarize",
        "Summarises text: one article per line from standard input, or from --input. Of an article "
        "that is too long, the start is read.",
        "lightconv summarize my-model < articles.txt > summaries.txt",
        "lightconv summarize my-model --sentences --input articles.txt",
    )
    about = "keep the mark ¶ between the sentences"
    parser.add_argument("--sentences", action="store_true", help=about)
    _add_pairs(parser)
    arguments = parser.parse(argv)
    finish = str if arguments.sentences else join_sentences
    return _answer_lines(arguments, pairs=True, finish=finish, too_long="start")


def generate(argv: Sequence[str]) -> int:
    """Reads prompts, writes them with their continuations."""
    parser = _line_parser(
        "generate",
        "Goes on with text: each line of standard input, or each --prompt, is printed with what a "
        "language model says next. An empty --prompt begins a text.",
        "lightconv generate my-lm --prompt 'the king'",
        "lightconv generate my-lm --prompt '' --sample --n-best 5 --top-k 20",
        "lightconv generate my-lm --beam 1 --set max_len_plus=50 < beginnings.txt",
    )
    about = "go on with this; may be given several times"
    parser.add_argument("--prompt", metavar="TEXT", action="append", help=about)
    arguments = parser.parse(argv)
    if arguments.prompt is not None and arguments.input is not None:
        raise ValueError("--prompt and --input, expected one of them")
    return _answer_lines(arguments, pairs=False, answer_empty=arguments.prompt is not None)


def interactive(argv: Sequence[str]) -> int:
    """Asks for a line, answers it, asks again."""
    parser = Parser(
        "interactive",
        "Loads a model once and answers line by line: translations, summaries, or what follows. "
        "With line editing and history; Ctrl-D ends.",
        "lightconv interactive my-model",
        "lightconv interactive my-lm --beam 1",
    )
    _add_search(parser)
    arguments = parser.parse(argv)
    translator = _load(arguments, _read_options(arguments, pairs=None))
    with suppress(ImportError):
        import readline  # noqa: F401 - input() edits lines when it is there
    for number in count(1):
        try:
            line = input("> ")
        except EOFError:
            print()
            break
        try:
            (answer,) = translator.answer([(line, "")], number)
        except ValueError as error:
            tell(f"error: {error}")
            continue
        for output in answer.outputs:
            print(output.text)
            tokens, seconds = len(output.tokens), answer.seconds
            print(f"  ({seconds:.2f} s, {tokens} tokens, score {output.score:.3f})", flush=True)
    return 0


def _answer_lines(
    arguments: Namespace, *, pairs: bool, finish: Callable[[str], str] = str, **defaults: Any
) -> int:
    """Answers lines window by window, as they arrive."""
    options = _read_options(arguments, pairs=pairs, **defaults)
    prompts = getattr(arguments, "prompt", None)
    if arguments.input is not None:
        check_file(arguments.input)
    translator = _load(arguments, options)

    from lightconv.decode.translator import read_windows

    notes = Notes()
    if prompts is None:
        stream = read_windows(arguments.input, options.text.window, notes)
    else:
        stream = iter([prompts])
    is_typed = arguments.input is None and prompts is None and sys.stdin.isatty()
    if is_typed:
        tell("one line at a time; Ctrl-D ends")
    lines = _split_prefixes(stream, has_prefixes=getattr(arguments, "prefix", False))
    with _progress(is_typed=is_typed) as translator.show:
        for answer in translator.answer_windows(lines):
            rows = _format(answer, arguments.format, options.text, finish)
            # UTF-8, whatever the terminal's encoding.
            sys.stdout.buffer.write("".join(f"{row}\n" for row in rows).encode())
    sys.stdout.buffer.flush()
    if warning := notes.warning():
        tell(f"warning: {warning}")
    return 0


def _split_prefixes(
    stream: Iterator[list[str]], *, has_prefixes: bool
) -> Iterator[list[tuple[str, str]]]:
    """The windows as pairs of text and prefix; flushes the answers of one before the next."""
    done = 0
    for window in stream:
        pairs = []
        for number, line in enumerate(window, done + 1):
            text, _, prefix = line.partition(TAB) if has_prefixes else (line, "", "")
            if TAB in prefix:
                raise ValueError(
                    f"line {number}: {line.count(TAB)} tabs, expected at most one, before the "
                    "prefix"
                )
            pairs.append((text, prefix))
        yield pairs
        done += len(window)
        sys.stdout.buffer.flush()


def _format(
    answer: Answer, form: str, text: TextOptions, finish: Callable[[str], str]
) -> list[str]:
    """The lines of an answer: one of JSON, or one for each output."""
    if form == "jsonl":
        plain = answer.plain()
        for each in (plain, *plain.get("outputs", ())):
            each["text"] = finish(each["text"])
        return [json.dumps(plain, ensure_ascii=False)]
    lines = []
    for output in answer.outputs[: text.n_best] or [Output("", 0.0, [], [], [])]:
        columns = [str(answer.line), f"{output.score:.4f}"] if text.n_best > 1 else []
        columns += [finish(output.text), *([output.pairs()] if text.alignments else [])]
        if len(columns) > 1:
            # A model of bytes can produce tabs too.
            columns = [each.replace(TAB, " ") for each in columns]
        lines.append(TAB.join(columns))
    return lines


@contextmanager
def _progress(*, is_typed: bool) -> Iterator[Callable[[int], None]]:
    """A progress bar on a terminal, unless the answers or the lines typed are seen there."""
    if not sys.stderr.isatty() or sys.stdout.isatty() or is_typed:
        yield lambda done: None
        return
    from lightconv.console import Display

    with Display() as display:
        yield lambda done: display.show("lines", done)
        display.end()


def _read_options(arguments: Namespace, *, pairs: bool | None, **defaults: Any) -> Options:
    """The search of the model folder, changed by the command line; checked without torch."""
    folder = ModelFolder(arguments.model)
    if pairs is not None and folder.pairs != pairs:
        kind, use = (
            ("translates or summarises", "translate` or `lightconv summarize")
            if folder.pairs
            else ("is a language model", "generate")
        )
        raise ValueError(f"{folder.path} {kind}, expected another model. Use `lightconv {use}`")
    decode = override(read_decode(folder.path, folder.tables), arguments.set)
    given = vars(arguments).items()
    values = {name: value for name, value in given if name in NAMES and value is not None}
    return Options.of(decode, defaults | values, pairs=folder.pairs, sample=arguments.sample)


def _load(arguments: Namespace, options: Options) -> "Translator":
    """Loads torch, which takes its time, and the models."""
    from lightconv.decode.text import MarkedPipeline, load
    from lightconv.device import choose_device

    device = choose_device(arguments.device)
    model, *others = (load(path, device) for path in (arguments.model, *arguments.ensemble))
    if isinstance(model.pipeline, MarkedPipeline) and not options.text.subwords:
        tell(
            "note: this model has no BPE codes, so its input must be split already (`un@@ believ@@ "
            "able`); outputs are joined, unless --subwords is given"
        )
    return model.build_translator(
        options,
        others,
        tell=lambda text: tell(f"note: {text}"),
        warn=lambda text: tell(f"warning: {text}"),
    )


def _line_parser(command: str, about: str, *examples: str) -> Parser:
    """Options of `translate`, `summarize` and `generate`."""
    parser = Parser(command, about, *examples)
    _add_search(parser)
    usual = TextOptions()
    add = parser.add_argument
    about = "read this instead of standard input; .gz, .bz2, .xz are unpacked"
    add("--input", metavar="FILE", type=Path, help=about)
    about = "jsonl: scores, tokens, all outputs and times; default: text"
    add("--format", choices=["text", "jsonl"], default="text", help=about)
    about = f"the most tokens of a line that are read at once (default: {usual.max_source})"
    add("--max-source", metavar="N", type=int, help=about)
    add("--strict", action="store_true", help="a longer line is an error")
    about = "leave subwords as they are, with spaces between"
    add("--subwords", action="store_true", help=about)
    about = f"the most tokens of a batch (default: {usual.max_tokens})"
    add("--max-tokens", metavar="N", type=int, help=about)
    about = f"how many lines are sorted by length together (default: {usual.window})"
    add("--window", metavar="N", type=int, help=about)
    return parser


def _add_search(parser: Parser) -> None:
    """Options of all four commands: the model and its search."""
    parser.add_model()
    add = parser.add_argument
    about = "the width of the search (default: the model's own)"
    add("--beam", metavar="N", type=int, help=about)
    add("--n-best", metavar="N", type=int, help="how many outputs for each line (default: 1)")
    parser.add_settings(
        "change another value of the search, such as alpha=0.6, max_len_plus=50 or min_len=5",
        metavar="NAME=VALUE",
    )
    about = "another model of the same data: the mean of all is searched; may be repeated"
    add("--ensemble", metavar="MODEL", type=Path, action="append", default=[], help=about)
    about = "draw outputs at random; --n-best says how many"
    add("--sample", action="store_true", help=about)
    about = "below 1 the probable becomes more so"
    add("--temperature", metavar="T", type=float, help=about)
    about = "draw among the K most probable words only"
    add("--top-k", metavar="K", type=int, help=about)
    about = "... among those that have probability P together"
    add("--top-p", metavar="P", type=float, help=about)
    add("--seed", metavar="N", type=int, help="other draws for another seed")
    parser.add_device()
    about = "native: the C++ engine, on processors; default: auto, which says if it cannot"
    add("--engine", choices=get_args(EngineName), help=about)
    about = "linear layers in 8 bits; default: none"
    add("--quantize", choices=get_args(Quantization), help=about)


def _add_pairs(parser: Parser) -> None:
    """Options of models of source and target."""
    about = "also the source token of each target token: a column such as `0-0 1-2`, or in JSON"
    parser.add_argument("--alignments", action="store_true", help=about)
    about = "a line may have a tab, and behind it the words that its output begins with"
    parser.add_argument("--prefix", action="store_true", help=about)
