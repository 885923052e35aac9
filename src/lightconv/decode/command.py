"""`lightconv translate`, `summarize`, `generate` and `interactive`: text in, text out."""

import json
import sys
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from lightconv.cli import Parser
from lightconv.config import override
from lightconv.decode.config import DecodeConfig
from lightconv.decode.options import (
    EngineName,
    FolderSettings,
    Quantization,
    SampleConfig,
    TextOptions,
    check_n_best,
    find_model,
    read_settings,
)

if TYPE_CHECKING:
    from lightconv.data.text import Notes
    from lightconv.decode.answer import Answer
    from lightconv.decode.text import TextModel
    from lightconv.decode.translator import Translator

STDIN = "standard input"


@dataclass(frozen=True)
class Settings:
    """What a command was asked to do, checked before torch is loaded."""

    folder: FolderSettings
    decode: DecodeConfig
    text: TextOptions
    sampling: SampleConfig | None


def translate(argv: Sequence[str]) -> int:
    """Reads lines, writes their translations."""
    parser = _parser(
        "translate",
        "Translates text: line by line from standard input, or from --input, to standard output. "
        "Plain text in, plain text out; the tokeniser is in the model folder. Any number of lines "
        "takes the memory of one window of them, and a line that is typed is answered at once.",
        "lightconv translate runs/first < in.de > out.en",
        "echo 'Guten Morgen.' | lightconv translate my-model --beam 4 --set alpha=0.6",
        "lightconv translate my-model --input in.de --format jsonl --n-best 4 > out.jsonl",
    )
    options = parser.parse(argv)
    return _answer_lines(options, _settings(options, TextOptions(), pairs=True), lambda text: text)


def summarize(argv: Sequence[str]) -> int:
    """Reads articles, one in each line, writes their summaries."""
    parser = _parser(
        "summarize",
        "Summarises text: one article per line from standard input, or from --input. Of an article "
        "that is too long, the start is read.",
        "lightconv summarize my-model < articles.txt > summaries.txt",
        "lightconv summarize my-model --sentences --input articles.txt",
    )
    parser.add_argument(
        "--sentences", action="store_true", help="keep the mark ¶ between the sentences"
    )
    options = parser.parse(argv)
    settings = _settings(options, TextOptions(too_long="start"), pairs=True)

    from lightconv.decode.text import join_sentences

    return _answer_lines(options, settings, str if options.sentences else join_sentences)


def generate(argv: Sequence[str]) -> int:
    """Reads prompts, writes them with what follows."""
    parser = _parser(
        "generate",
        "Goes on with text: each line of standard input, or each --prompt, is printed with what a "
        "language model says next. An empty --prompt begins a text.",
        "lightconv generate my-lm --prompt 'the king'",
        "lightconv generate my-lm --prompt '' --sample --n-best 5 --top-k 20",
        "lightconv generate my-lm --beam 1 --set max_len_plus=50 < beginnings.txt",
    )
    parser.add_argument(
        "--prompt",
        metavar="TEXT",
        action="append",
        help="go on with this; may be given several times",
    )
    options = parser.parse(argv)
    text = TextOptions(too_long="end", answer_empty=options.prompt is not None)
    return _answer_lines(options, _settings(options, text, pairs=False), lambda text: text)


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
    options = parser.parse(argv)
    settings = _settings(options, TextOptions(), pairs=None)
    model = _load(settings, options.device)
    with suppress(ImportError):
        import readline  # noqa: F401 - input() edits lines when it is there
    translator = _translator(model, settings, warn=_warn)
    number = 0
    while True:
        try:
            line = input("> ")
        except EOFError:
            print()
            return 0
        number += 1
        try:
            (answer,) = translator.answer([line], number)
        except ValueError as error:
            print(f"error: {error}", file=sys.stderr)
            continue
        for output in answer.outputs:
            print(output.text)
            count, seconds = len(output.tokens), answer.seconds
            print(f"  ({seconds:.2f} s, {count} tokens, score {output.score:.3f})", flush=True)


def _answer_lines(options: Namespace, settings: Settings, finish: Callable[[str], str]) -> int:
    """Answers what there is, window by window, as it comes."""
    from lightconv.data.text import Notes

    notes = Notes()
    stream = _windows(options, settings.text.window, notes)
    model = _load(settings, options.device)
    write = _writer(options.format, settings.text.n_best, finish)
    with _progress() as show:
        translator = _translator(model, settings, warn=_warn, show=show)
        for answer in translator.answer_windows(_flushing(stream)):
            write(answer)
    sys.stdout.buffer.flush()
    if warning := notes.warning():
        _warn(warning)
    return 0


def _windows(options: Namespace, most: int, notes: "Notes") -> Iterator[list[str]]:
    """The lines of standard input, of a file, or of the command line."""
    from lightconv.data.text import read_lines
    from lightconv.decode.stream import open_stdin, read_stream, windows

    if getattr(options, "prompt", None) is not None:
        return iter([options.prompt])
    if options.input is not None:
        return windows(read_lines(options.input, notes), most)
    if sys.stdin.isatty():
        print("one line at a time; Ctrl-D ends", file=sys.stderr)
    return read_stream(open_stdin(), STDIN, notes, most)


def _flushing(stream: Iterator[list[str]]) -> Iterator[list[str]]:
    """The windows; what was answered is written before the next one is waited for."""
    for window in stream:
        yield window
        sys.stdout.buffer.flush()


def _writer(form: str, n_best: int, finish: Callable[[str], str]) -> "Callable[[Answer], None]":
    """How an answer is written: UTF-8, whatever the terminal says."""

    def write(answer: "Answer") -> None:
        if form == "jsonl":
            plain = answer.plain()
            lines = [json.dumps(plain | {"text": finish(plain["text"])}, ensure_ascii=False)]
        elif n_best > 1:
            lines = [
                f"{answer.line}\t{output.score:.4f}\t{finish(output.text)}"
                for output in answer.outputs
            ] or [f"{answer.line}\t0.0000\t"]
        else:
            lines = [finish(answer.text)]
        sys.stdout.buffer.write("".join(f"{line}\n" for line in lines).encode())

    return write


@contextmanager
def _progress() -> Iterator[Callable[[int], None]]:
    """A bar if a person watches who does not see the answers themselves."""
    if not sys.stderr.isatty() or sys.stdout.isatty() or sys.stdin.isatty():
        yield lambda done: None
        return
    from lightconv.data.progress import open_display

    with open_display() as display:
        yield lambda done: display.show("lines", done)
        display.end()


def _translator(
    model: "TextModel",
    settings: Settings,
    *,
    warn: Callable[[str], None],
    show: Callable[[int], None] = lambda done: None,
) -> "Translator":
    from lightconv.decode.runner import choose_runner
    from lightconv.decode.text import build_translator

    text = settings.text
    return build_translator(
        model,
        model.pipeline,
        settings.decode,
        text,
        settings.sampling,
        runner=choose_runner(model, text.engine, text.quantize, tell=_note),
        warn=warn,
        show=show,
    )


def _load(settings: Settings, device: str) -> "TextModel":
    # These load torch, which takes its time: mistakes before are answered at once.
    from lightconv.decode.text import load
    from lightconv.train.command import choose_device

    return load(settings.folder.folder, choose_device(device))


def _settings(options: Namespace, text: TextOptions, *, pairs: bool | None) -> Settings:
    """The search of the model's folder with what the command line changes."""
    if options.beam is not None and options.beam < 1:
        raise ValueError(f"--beam {options.beam}, expected at least 1")
    folder = read_settings(find_model(options.model))
    if pairs is not None and folder.pairs != pairs:
        kind, use = (
            ("translates or summarises", "translate or summarize")
            if folder.pairs
            else ("is a language model", "generate")
        )
        raise ValueError(f"{folder.folder} {kind}, expected another model. Use `lightconv {use}`")
    set_ = [*options.set, *([] if options.beam is None else [f"beam={options.beam}"])]
    decode = override(folder.decode, set_)
    changes = {
        name: value
        for name in ("n_best", "max_tokens", "max_source", "window", "strict", "engine", "quantize")
        if (value := getattr(options, name, None)) is not None
    }
    text = replace(text, **changes)
    if pairs is None and not folder.pairs:
        text = replace(text, too_long="end")
    sampling = _sampling(options)
    if sampling is None:
        check_n_best(text.n_best, decode.beam)
    return Settings(folder, decode, text, sampling)


def _sampling(options: Namespace) -> SampleConfig | None:
    given = {
        name: value
        for name in ("temperature", "top_k", "top_p", "seed")
        if (value := getattr(options, name, None)) is not None
    }
    if given and not options.sample:
        name = next(iter(given)).replace("_", "-")
        raise ValueError(f"--{name} is for random outputs, expected --sample beside it")
    return SampleConfig(**given) if getattr(options, "sample", False) else None


def _parser(command: str, about: str, *examples: str) -> Parser:
    """What `translate`, `summarize` and `generate` have in common."""
    parser = Parser(command, about, *examples)
    _add_search(parser)
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
    return parser


def _add_search(parser: Parser) -> None:
    parser.add_argument("model", metavar="MODEL", type=Path, help="a model folder, or a run")
    parser.add_argument(
        "--beam", metavar="N", type=int, help="the width of the search (default: the model's own)"
    )
    parser.add_argument(
        "--n-best", metavar="N", type=int, help="how many outputs for each line (default: 1)"
    )
    parser.add_argument(
        "--set",
        metavar="NAME=VALUE",
        action="append",
        default=[],
        help="change another value of the search, such as alpha=0.6, max_len_plus=50 or min_len=5",
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
    parser.add_argument(
        "--device", choices=["auto", "cpu", "cuda"], default="auto", help="default: auto"
    )
    parser.add_argument(
        "--engine",
        choices=get_args(EngineName),
        help="native: the C++ engine, on processors; default: auto, which says if it cannot",
    )
    parser.add_argument(
        "--quantize", choices=get_args(Quantization), help="linear layers in 8 bits; default: none"
    )


def _note(text: str) -> None:
    print(f"note: {text}", file=sys.stderr, flush=True)


def _warn(text: str) -> None:
    print(f"warning: {text}", file=sys.stderr, flush=True)
