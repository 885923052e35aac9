"""`lightconv translate`, `summarize`, `generate` and `interactive`: text in, text out."""

import json
import sys
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from lightconv.commands.arguments import add_pairs, add_search, add_text
from lightconv.commands.parser import Parser
from lightconv.config import override
from lightconv.decode.config import DecodeConfig
from lightconv.decode.options import (
    FolderSettings,
    SampleConfig,
    TextOptions,
    check_coverage,
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
TAB = "\t"


# What of `TextOptions` the command line says.
_TEXT_OPTIONS = (
    *("n_best", "max_tokens", "max_source", "window", "strict", "engine", "quantize"),
    *("alignments", "subwords"),
)


@dataclass(frozen=True)
class Settings:
    """What a command was asked to do, checked before torch is loaded."""

    folder: FolderSettings
    others: tuple[Path, ...]
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
        "lightconv translate runs/1 --ensemble runs/2 --alignments --input in.de",
    )
    add_pairs(parser)
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
    add_pairs(parser)
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
    if options.prompt is not None and options.input is not None:
        raise ValueError("--prompt and --input, expected one of them")
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
    add_search(parser)
    options = parser.parse(argv)
    settings = _settings(options, TextOptions(), pairs=None)
    models = _load(settings, options.device)
    with suppress(ImportError):
        import readline  # noqa: F401 - input() edits lines when it is there
    translator = _translator(models, settings, warn=_warn)
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
    models = _load(settings, options.device)
    write = _writer(options.format, settings.text, finish)
    given = options.input is not None or getattr(options, "prompt", None) is not None
    with _progress(typed=not given and sys.stdin.isatty()) as show:
        translator = _translator(models, settings, warn=_warn, show=show)
        pairs = _pairs(stream, has_prefixes=getattr(options, "prefix", False))
        for answer in translator.answer_windows(pairs):
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


def _pairs(stream: Iterator[list[str]], *, has_prefixes: bool) -> Iterator[list[tuple[str, str]]]:
    """The windows as pairs of text and prefix.

    What was answered is written before the next window is waited for.
    """
    done = 0
    for window in stream:
        if has_prefixes:
            yield [_split(line, number) for number, line in enumerate(window, done + 1)]
        else:
            yield [(line, "") for line in window]
        done += len(window)
        sys.stdout.buffer.flush()


def _split(line: str, number: int) -> tuple[str, str]:
    text, _, prefix = line.partition(TAB)
    if TAB in prefix:
        raise ValueError(
            f"line {number}: {line.count(TAB)} tabs, expected at most one, before the prefix"
        )
    return text, prefix


def _writer(
    form: str, text: TextOptions, finish: Callable[[str], str]
) -> "Callable[[Answer], None]":
    """How an answer is written: UTF-8, whatever the terminal says."""

    def write(answer: "Answer") -> None:
        sys.stdout.buffer.write("".join(f"{line}\n" for line in lines(answer)).encode())

    def lines(answer: "Answer") -> list[str]:
        if form == "jsonl":
            plain = answer.plain()
            for each in (plain, *plain.get("outputs", ())):
                each["text"] = finish(each["text"])
            return [json.dumps(plain, ensure_ascii=False)]
        columns = [
            [
                *([str(answer.line), f"{output.score:.4f}"] if text.n_best > 1 else []),
                finish(output.text),
                *([output.pairs()] if text.alignments else []),
            ]
            for output in answer.outputs[: text.n_best]
        ]
        # A model of bytes can say anything, also what parts columns.
        rows = columns or [empty(answer.line)]
        return [
            TAB.join(column.replace(TAB, " ") for column in row) if len(row) > 1 else row[0]
            for row in rows
        ]

    def empty(line: int) -> list[str]:
        begin = [str(line), "0.0000"] if text.n_best > 1 else []
        return [*begin, "", *([""] if text.alignments else [])]

    return write


@contextmanager
def _progress(*, typed: bool) -> Iterator[Callable[[int], None]]:
    """A bar if a person watches who does not see the answers themselves, nor types the lines."""
    if not sys.stderr.isatty() or sys.stdout.isatty() or typed:
        yield lambda done: None
        return
    from lightconv.console import Display

    with Display() as display:
        yield lambda done: display.show("lines", done)
        display.end()


def _translator(
    models: "Sequence[TextModel]",
    settings: Settings,
    *,
    warn: Callable[[str], None],
    show: Callable[[int], None] = lambda done: None,
) -> "Translator":
    from lightconv.decode.folder import MarkedPipeline
    from lightconv.decode.runner import choose_runners
    from lightconv.decode.text import build_translator

    pipeline = models[0].pipeline
    if isinstance(pipeline, MarkedPipeline) and not settings.text.subwords:
        _note(
            "this model has no BPE codes, so its input must be cut already (`un@@ believ@@ able`); "
            "outputs are put together, --subwords leaves them"
        )
    return build_translator(
        models,
        pipeline,
        settings.decode,
        settings.text,
        settings.sampling,
        runner=choose_runners(models, settings.text, settings.decode, tell=_note),
        warn=warn,
        show=show,
    )


def _load(settings: Settings, device: str) -> "list[TextModel]":
    # These load torch, which takes its time: mistakes before are answered at once.
    from lightconv.decode.text import load
    from lightconv.device import choose_device

    where = choose_device(device)
    return [load(folder, where) for folder in (settings.folder.folder, *settings.others)]


def _settings(options: Namespace, text: TextOptions, *, pairs: bool | None) -> Settings:
    """The search of the model's folder with what the command line changes."""
    if options.beam is not None and options.beam < 1:
        raise ValueError(f"--beam {options.beam}, expected at least 1")
    folder = read_settings(find_model(options.model))
    if pairs is not None and folder.pairs != pairs:
        kind, use = (
            ("translates or summarises", "translate` or `lightconv summarize")
            if folder.pairs
            else ("is a language model", "generate")
        )
        raise ValueError(f"{folder.folder} {kind}, expected another model. Use `lightconv {use}`")
    set_ = [*options.set, *([] if options.beam is None else [f"beam={options.beam}"])]
    decode = override(folder.decode, set_)
    changes = {
        name: value for name in _TEXT_OPTIONS if (value := getattr(options, name, None)) is not None
    }
    text = replace(text, **changes)
    if pairs is None and not folder.pairs:
        text = replace(text, too_long="end")
    sampling = _sampling(options)
    check_coverage(decode.coverage, text)
    if sampling is None:
        check_n_best(text.n_best, decode.beam)
    return Settings(folder, _others(options, folder), decode, text, sampling)


def _others(options: Namespace, folder: FolderSettings) -> tuple[Path, ...]:
    """The other models of an ensemble, once it is known that they go together."""
    if not options.ensemble:
        return ()
    from lightconv.decode.folder import check_ensemble

    others = [read_settings(find_model(path)) for path in options.ensemble]
    for other in others:
        if other.pairs != folder.pairs:
            raise ValueError(
                f"--ensemble {other.folder}: another kind of model than {folder.folder}"
            )
    check_ensemble([folder.folder, *(other.folder for other in others)])
    return tuple(other.folder for other in others)


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
    add_search(parser)
    add_text(parser)
    return parser


def _note(text: str) -> None:
    print(f"note: {text}", file=sys.stderr, flush=True)


def _warn(text: str) -> None:
    print(f"warning: {text}", file=sys.stderr, flush=True)
