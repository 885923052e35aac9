"""The command `lightconv`: a dict of sub-commands, each a function that takes its arguments.

Nothing heavy is imported here: a sub-command's module is loaded when it runs, so that --help,
--version and mistyped names answer at once.
"""

import difflib
import os
import sys
from collections.abc import Callable, Sequence
from importlib import import_module

from lightconv import __version__

# name -> (module:function, what it does)
COMMANDS = {
    "doctor": ("lightconv.doctor:main", "show which kernels run on this machine, and why"),
}

EXIT_INPUT = 2  # what the user gave cannot be used


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
            "`lightconv COMMAND --help` explains a command. For example:",
            "  lightconv doctor",
        ]
    )


def _find(name: str) -> Callable[[Sequence[str]], int] | None:
    if name not in COMMANDS:
        return None
    module, function = COMMANDS[name][0].split(":")
    found: Callable[[Sequence[str]], int] = getattr(import_module(module), function)
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one sub-command and returns the exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(_help())
        return 0 if arguments else EXIT_INPUT
    if arguments[0] in ("-V", "--version"):
        print(f"lightconv {__version__}")
        return 0
    command = _find(arguments[0])
    if command is None:
        near = difflib.get_close_matches(arguments[0], COMMANDS, n=1)
        hint = f"did you mean '{near[0]}'?" if near else f"known: {', '.join(COMMANDS)}"
        print(f"error: unknown command '{arguments[0]}'; {hint}", file=sys.stderr)
        return EXIT_INPUT
    try:
        return command(arguments[1:])
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # the reader, `head` perhaps, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
