"""The command `lightconv`: a dict of sub-commands, each a function that takes its arguments.

Nothing heavy is imported here: a sub-command's module is loaded when it runs, so that --help,
--version and mistyped names answer at once.
"""

import argparse
import difflib
import os
import sys
import traceback
from collections.abc import Callable, Collection, Sequence
from importlib import import_module
from pathlib import Path
from typing import NoReturn

from lightconv import __version__

# name -> (module:function, what it does)
COMMANDS = {
    "list": ("lightconv.catalogue:list_recipes", "list the paper's models by name"),
    "show": ("lightconv.catalogue:show_recipe", "print a recipe, or its parameters"),
    "prepare": ("lightconv.data.command:main", "make token data of a corpus or of your own text"),
    "train": ("lightconv.train.command:main", "train a recipe, or go on with a run"),
    "average": ("lightconv.train.average.command:main", "make a model of a run's checkpoints"),
    "plot": ("lightconv.train.command:plot", "draw the curves of runs"),
    "translate": ("lightconv.decode.command:translate", "translate text, line by line"),
    "summarize": ("lightconv.decode.command:summarize", "summarise text, one article per line"),
    "generate": ("lightconv.decode.command:generate", "go on with text"),
    "interactive": ("lightconv.decode.command:interactive", "answer what is typed"),
    "score": ("lightconv.decode.score.command:main", "say how likely a model finds given text"),
    "evaluate": ("lightconv.evaluate.command:main", "score a model, or texts, with a signature"),
    "tune": ("lightconv.evaluate.tune.command:main", "choose length penalty and checkpoints"),
    "table": ("lightconv.paper.command:main", "show, print or run the paper's tables"),
    "demo": ("lightconv.demo.command:main", "train a small model and show what it can do"),
    "import": ("lightconv.interop.command:main", "make a model folder of a fairseq checkpoint"),
    "selftest": ("lightconv.selftest.command:main", "check what is promised about failures"),
    "doctor": ("lightconv.doctor:main", "show which kernels run on this machine, and why"),
}

EXIT_FAILURE = 1  # the machine or the program failed
EXIT_INPUT = 2  # what the user gave cannot be used
EXIT_INTERRUPT = 130

# Of the system's errors, those about a name the user gave.
_INPUT_ERRORS = (
    ValueError,
    FileNotFoundError,
    FileExistsError,
    IsADirectoryError,
    NotADirectoryError,
)


class Parser(argparse.ArgumentParser):
    """The arguments of a command; its help ends with examples, its errors are ValueErrors."""

    def __init__(self, command: str, description: str, *examples: str) -> None:
        super().__init__(
            prog=f"lightconv {command}",
            description=description,
            epilog="\n".join(["examples:", *(f"  {example}" for example in examples)]),
            formatter_class=_Help,
        )

    def add_model(self) -> None:
        """MODEL, a folder."""
        self.add_argument("model", metavar="MODEL", type=Path, help="a model folder, or a run")

    def add_settings(self, text: str, *, metavar: str = "PATH=VALUE") -> None:
        """--set, any number of times."""
        self.add_argument("--set", metavar=metavar, action="append", default=[], help=text)

    def add_device(self) -> None:
        """--device: where it is computed."""
        self.add_argument(
            "--device", choices=["auto", "cpu", "cuda"], default="auto", help="default: auto"
        )

    def parse(self, argv: Sequence[str]) -> argparse.Namespace:
        """The arguments; an unknown option is answered with the nearest one."""
        known = self._option_string_actions
        for argument in argv:
            name = argument.partition("=")[0]
            if argument == "--":
                break
            if name.startswith("--") and name not in known:
                self.error(f"unknown option '{name}'{_suggest(name, known)}")
        return self.parse_args(argv)

    def error(self, message: str) -> NoReturn:
        stop = "" if message.endswith("?") else "."
        raise ValueError(f"{message}{stop} `{self.prog} --help` explains")


class _Help(argparse.HelpFormatter):
    """Wraps descriptions, leaves examples as they are written."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        if text.startswith("examples:"):
            return text
        return super()._fill_text(text, width, indent)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one sub-command and returns the exit code; an error is one line on stderr."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    debug = "--debug" in arguments
    arguments = [argument for argument in arguments if argument != "--debug"]
    try:
        code = _run(arguments)
        sys.stdout.flush()
    except KeyboardInterrupt:
        return EXIT_INTERRUPT
    except BrokenPipeError:  # the reader, `head` perhaps, has seen enough
        _drop_output()
        return 0
    except Exception as error:
        if debug:
            traceback.print_exc()
        print(f"error: {_describe(error)}", file=sys.stderr)
        if isinstance(error, OSError) and error.errno and error.filename is None:
            _drop_output()
        return exit_code(error)
    return code


def exit_code(error: BaseException) -> int:
    """What a command that ends with this error returns."""
    if isinstance(error, KeyboardInterrupt):
        return EXIT_INTERRUPT
    return EXIT_INPUT if isinstance(error, _INPUT_ERRORS) else EXIT_FAILURE


def _drop_output() -> None:
    """What stdout did not take, Python would try to write once more as it ends, and complain."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _run(arguments: list[str]) -> int:
    if arguments[:1] == ["help"] and len(arguments) > 1:
        arguments = [arguments[1], "--help"]
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(_help())
        return 0 if arguments else EXIT_INPUT
    if arguments[0] in ("-V", "--version"):
        print(f"lightconv {__version__}")
        return 0
    try:
        return _find(arguments[0])(arguments[1:])
    except SystemExit as stop:  # argparse, after it has printed its help
        return stop.code if isinstance(stop.code, int) else 0


def _find(name: str) -> Callable[[Sequence[str]], int]:
    if name not in COMMANDS:
        raise ValueError(f"unknown command '{name}'{_suggest(name, COMMANDS)}")
    module, function = COMMANDS[name][0].split(":")
    found: Callable[[Sequence[str]], int] = getattr(import_module(module), function)
    return found


def _suggest(name: str, known: Collection[str]) -> str:
    """The end of an error about a name: the nearest one, else all of them."""
    near = difflib.get_close_matches(name, known, n=1)
    if near:
        return f"; did you mean '{near[0]}'?"
    return f"; known: {', '.join(known)}" if known else ""


def _describe(error: Exception) -> str:
    """An error as one line."""
    if isinstance(error, OSError) and error.filename is not None:
        text = f"{error.filename}: {error.strerror}"
    elif isinstance(error, ValueError | OSError):
        text = str(error)
    else:
        text = f"{type(error).__name__}: {error}. `--debug` shows where"
    return " ".join(text.split())


def _help() -> str:
    width = max(map(len, COMMANDS))
    lines = [f"  {name:<{width}}  {text}" for name, (_, text) in COMMANDS.items()]
    return "\n".join(
        [
            "usage: lightconv COMMAND [ARGUMENTS]",
            "",
            "Lightweight and dynamic convolutions: layers, models and the paper's tables.",
            "",
            "commands:",
            *lines,
            "",
            "`lightconv COMMAND --help` explains a command; --debug, anywhere, adds the traceback",
            "to an error. For example, from nothing to a translation:",
            "  lightconv doctor",
            "  lightconv prepare debian-en-de --out data/debian",
            "  lightconv train debian-en-de-dynamicconv-small --data data/debian --out runs/first",
            "  lightconv evaluate runs/first --data data/debian --floor",
            "  echo 'A fast text editor.' | lightconv translate runs/first",
            "and the paper:",
            "  lightconv list iwslt",
            "  lightconv show iwslt-de-en-dynamicconv --params",
            "  lightconv table ablation",
        ]
    )
