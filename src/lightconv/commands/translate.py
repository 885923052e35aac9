"""`lightconv translate`, `summarize`, `generate`, `interactive` and `score`: text in, text out."""

import json
import sys
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any, TypeVar

from lightconv.commands.parser import Parser
from lightconv.config import override
from lightconv.console import Display, tell
from lightconv.data.text import Notes, check_file, check_lines, read_lines, side_by_side
from lightconv.decode.answer import Answer, Output, join_sentences
from lightconv.decode.options import NAMES, Options, TextOptions, find_model, read_decode
from lightconv.device import choose_device
from lightconv.models.folder import ModelFolder

if TYPE_CHECKING:
    from lightconv.decode.translator import Translator

TAB = "\t"
T = TypeVar("T")


def translate(argv: Sequence[str]) -> None:
    parser = _line_parser(
        "translate",
        "Translates text line by line, from standard input or --input to standard output.",
        "lightconv translate runs/first < in.de > out.en",
        "echo 'Guten Morgen.' | lightconv translate my-model --beam 4 --set alpha=0.6",
        "lightconv translate my-model --input in.de --format jsonl --n-best 4 > out.jsonl",
        "lightconv translate runs/1 --ensemble runs/2 --alignments --input in.de",
    )
    _answer_lines(parser.parse(argv), pairs=True)


def summarize(argv: Sequence[str]) -> None:
    parser = _line_parser(
        "summarize",
        "Summarises text, one article per line; of an article that is too long, the start is read.",
        "lightconv summarize my-model < articles.txt > summaries.txt",
        "lightconv summarize my-model --sentences --input articles.txt",
    )
    parser.add("--sentences", "keep the mark ¶ between the sentences")
    arguments = parser.parse(argv)
    finish = str if arguments.sentences else join_sentences
    _answer_lines(arguments, pairs=True, finish=finish, too_long="start")


def generate(argv: Sequence[str]) -> None:
    parser = _line_parser(
        "generate",
        "Continues each line of standard input, or each --prompt; an empty one begins a text.",
        "lightconv generate my-lm --prompt 'the king'",
        "lightconv generate my-lm --prompt '' --sample --n-best 5 --top-k 20",
        "lightconv generate my-lm --beam 1 --set max_len_plus=50 < beginnings.txt",
    )
    parser.add("--prompt TEXT ...", "continue this; may be given several times")
    arguments = parser.parse(argv)
    if arguments.prompt and arguments.input is not None:
        raise ValueError("--prompt and --input, expected one of them")
    _answer_lines(arguments, pairs=False, answer_empty=bool(arguments.prompt))


def interactive(argv: Sequence[str]) -> None:
    parser = Parser(
        "interactive",
        "Loads a model once and answers line by line, with editing and history. A line with ? "
        "shows the other outputs for the line before; Ctrl-C drops a line, Ctrl-D ends.",
        "lightconv interactive my-model",
        "lightconv interactive my-lm --beam 1",
    )
    _add_search(parser)
    arguments = parser.parse(argv)
    options = _read_options(arguments, pairs=None)
    shown = options.text.n_best
    if options.sampling is None:  # the others are for `?`
        text = replace(options.text, n_best=options.decode.beam)
        options = replace(options, text=text)
    translator = _load(arguments, options)
    rest: list[Output] = []
    with suppress(ImportError):
        import readline  # noqa: F401 - input() edits lines when it is there
    _greet(find_model(arguments.model))
    for number in count(1):
        try:
            line = input("> ")
        except EOFError:
            print()
            break
        except KeyboardInterrupt:  # as in a shell: the line is given up
            print()
            continue
        if line.strip() == "?":
            _show_outputs(rest)
            continue
        try:
            (answer,) = translator.answer([(line, "")], number)
        except ValueError as error:
            tell(f"error: {error}")
            continue
        except KeyboardInterrupt:
            tell("stopped")
            continue
        _show_outputs(answer.outputs[:shown], f"{answer.seconds:.2f} s, ")
        rest = answer.outputs[shown:]


def _show_outputs(outputs: Sequence[Output], seconds: str = "") -> None:
    for output in outputs:
        print(output.text)
        facts = f"{len(output.tokens)} tokens, score {output.score:.3f}"
        print(f"  ({seconds}{facts})", flush=True)
    if not outputs:
        tell("no other output")


def _greet(folder: ModelFolder) -> None:
    """Names the model, its languages, and the keys."""
    task = folder.tables.get("task", {})
    languages = [str(task[name]) for name in ("source_lang", "target_lang") if task.get(name)]
    about = f" ({' to '.join(languages)})" if folder.pairs and languages else ""
    what = "type a text" if folder.pairs else "type the beginning of a text"
    tell(f"{folder.path}{about}: {what}")
    tell("? shows other outputs, Ctrl-C drops a line, Ctrl-D ends")


def score(argv: Sequence[str]) -> None:
    parser = Parser(
        "score",
        "Prints the natural log-probability of each line, and on stderr the perplexity of all. A "
        "model of pairs takes source and target, in two files or with a tab between them.",
        "lightconv score my-lm < text.txt",
        "lightconv score my-model --source in.de --target out.en --format jsonl",
        "lightconv score my-lm --total --input text.txt",
    )
    parser.share("MODEL", "--device")
    parser.add("--input FILE", "read this instead of standard input")
    parser.add("--source FILE", "sources, one per line")
    parser.add("--target FILE", "their targets")
    parser.add("--total", "print the perplexity only, and to standard output")
    parser.add("--format text|jsonl", "jsonl: with tokens and log-probabilities", default="text")
    parser.add("--set NAME=VALUE ...", "the length penalty of `score` in jsonl, such as alpha=0.6")
    arguments = parser.parse(argv)
    folder = find_model(arguments.model)
    decode = override(read_decode(folder.path, folder.tables, folder.config), arguments.set)
    _check_texts(arguments, folder)

    from lightconv.decode.score import Scorer
    from lightconv.decode.text import load_pipeline
    from lightconv.evaluate.metrics import compute_perplexity

    notes = Notes()
    model = folder.load(choose_device(arguments.device))
    scorer = Scorer(model, load_pipeline(folder.path, folder.config), decode)
    as_json = arguments.format == "jsonl"
    lines = subwords = words = 0
    total = 0.0
    for scored in scorer.score_windows(_read_texts(arguments, folder.pairs, notes)):
        lines += 1
        subwords += len(scored.ids) - 1
        words += scored.words
        total += scored.logprob
        if not arguments.total:
            text = f"{scored.logprob:.6f}"
            print(json.dumps(scored.plain(), ensure_ascii=False) if as_json else text)
    _warn_dropped(notes)
    if lines:
        found = compute_perplexity(total, lines=lines, subwords=subwords, words=words)
        file = sys.stdout if arguments.total else sys.stderr
        print(json.dumps(found.plain()) if as_json else found, file=file)


def _check_texts(arguments: Namespace, folder: ModelFolder) -> None:
    given = [path for path in (arguments.source, arguments.target) if path is not None]
    if given and not folder.pairs:
        raise ValueError(
            f"{folder.path} is a language model, expected texts alone. Use --input FILE, or "
            "standard input"
        )
    if len(given) == 1:
        raise ValueError("--source and --target belong together, expected both or none")
    if given and arguments.input is not None:
        raise ValueError("--input and --source, expected one of them")
    if given:
        check_lines(given, map(read_lines, given))
    elif arguments.input is not None:
        check_file(arguments.input)


def _read_texts(arguments: Namespace, pairs: bool, notes: Notes) -> Iterator[list[tuple[str, ...]]]:
    """Windows of (text,) or (source, target)."""
    from lightconv.decode.translator import read_windows, windows

    most = TextOptions().window
    if arguments.source is not None:
        paths = [arguments.source, arguments.target]
        return windows(side_by_side(paths, partial(read_lines, notes=notes)), most)

    def split(number: int, line: str) -> tuple[str, ...]:
        if pairs and line.count(TAB) != 1:
            raise ValueError(
                f"{arguments.input or 'standard input'}, line {number}: {line.count(TAB)} tabs, "
                "expected one between source and target. --source FILE --target FILE take two "
                "files instead"
            )
        return tuple(line.split(TAB)) if pairs else (line,)

    return _split_lines(read_windows(arguments.input, most, notes), split)


def _warn_dropped(notes: Notes) -> None:
    if warning := notes.warning():
        tell(f"warning: {warning}")


def _answer_lines(
    arguments: Namespace, *, pairs: bool, finish: Callable[[str], str] = str, **defaults: Any
) -> None:
    """Answers lines window by window, as they arrive."""
    options = _read_options(arguments, pairs=pairs, **defaults)
    prompts = getattr(arguments, "prompt", [])
    if arguments.input is not None:
        check_file(arguments.input)
    translator = _load(arguments, options)

    from lightconv.decode.translator import read_windows

    notes = Notes()
    window = options.text.window
    stream = iter([prompts]) if prompts else read_windows(arguments.input, window, notes)
    is_typed = arguments.input is None and not prompts and sys.stdin.isatty()
    if is_typed:
        tell("one line at a time; Ctrl-D ends")
    # Not if the answers, or the lines typed, are seen on the terminal.
    watched = sys.stderr.isatty() and not sys.stdout.isatty() and not is_typed
    has_prefixes = getattr(arguments, "prefix", False)
    lines = _split_lines(stream, _split_prefix if has_prefixes else lambda _, line: (line, ""))
    with Display(quiet=not watched) as display:
        if watched:
            translator.show = partial(display.show, "lines")
        for answer in translator.answer_windows(lines):
            rows = _format(answer, arguments.format, options.text, finish)
            # UTF-8, whatever the terminal's encoding.
            sys.stdout.buffer.write("".join(f"{row}\n" for row in rows).encode())
    sys.stdout.buffer.flush()
    _warn_dropped(notes)


def _split_lines(stream: Iterator[list[str]], split: Callable[[int, str], T]) -> Iterator[list[T]]:
    """Windows of lines, each with its number split into texts; flushes between windows."""
    done = 0
    for window in stream:
        yield list(map(split, count(done + 1), window))
        done += len(window)
        sys.stdout.flush()


def _split_prefix(number: int, line: str) -> tuple[str, str]:
    text, _, prefix = line.partition(TAB)
    if TAB in prefix:
        raise ValueError(
            f"line {number}: {line.count(TAB)} tabs, expected at most one, before the prefix"
        )
    return text, prefix


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


def _read_options(arguments: Namespace, *, pairs: bool | None, **defaults: Any) -> Options:
    """The search of the model folder, changed by the command line; checked without torch."""
    folder = find_model(arguments.model)
    if pairs is not None and folder.pairs != pairs:
        kind, use = "is a language model", "generate"
        if folder.pairs:
            kind, use = "translates or summarises", "translate` or `lightconv summarize"
        raise ValueError(f"{folder.path} {kind}, expected another model. Use `lightconv {use}`")
    decode = override(read_decode(folder.path, folder.tables, folder.config), arguments.set)
    given = vars(arguments).items()
    values = {name: value for name, value in given if name in NAMES and value is not None}
    return Options.of(decode, defaults | values, pairs=folder.pairs, sample=arguments.sample)


def _load(arguments: Namespace, options: Options) -> "Translator":
    """Loads torch, which takes its time, and the models."""
    from lightconv.decode.text import MarkedPipeline, load

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
    usual, add = TextOptions(), parser.add
    add("--input FILE", "read this instead of standard input; .gz, .bz2, .xz are unpacked")
    add("--format text|jsonl", "jsonl: scores, tokens, all outputs and times", default="text")
    add("--max-source N", f"most tokens of a line read at once (default: {usual.max_source})")
    add("--strict", "a longer line is an error")
    add("--subwords", "leave subwords as they are, with spaces between")
    add("--max-tokens N", f"most tokens of a batch (default: {usual.max_tokens})")
    add("--draft MODEL", "a faster model proposes words: same outputs; needs --beam 1", type=str)
    add("--window N", f"lines that are sorted by length together (default: {usual.window})")
    if command != "generate":
        add("--shortlist", "outputs have only words of `lightconv shortlist`: faster")
        add("--alignments", "also the source token of each target token, such as `0-0 1-2`")
        add("--prefix", "a line may have a tab, and behind it the words its output begins with")
    return parser


def _add_search(parser: Parser) -> None:
    """Options of all four commands: the model and its search."""
    add = parser.add
    parser.add_search()
    add("--n-best N", "outputs for each line (default: 1)")
    add("--sample", "draw outputs at random; --n-best says how many")
    add("--temperature T", "below 1 the probable becomes more so")
    add("--top-k K", "draw among the K most probable words only")
    add("--top-p P", "... among those that have probability P together")
    add("--seed N", "other draws for another seed", type=int)
