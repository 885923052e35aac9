"""Arguments of a command: help with examples, errors that name the nearest option, completion."""

import argparse
import shutil
import textwrap
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, NoReturn

from lightconv.console import read_duration, set_json, suggest

# The only argument of a command whose parser is asked for.
DESCRIBE = "--describe-parser"


class DescribedError(Exception):
    """Raised in place of parsing; it holds the parser of the command."""

    def __init__(self, parser: "Parser") -> None:
        self.parser = parser


class Parser(argparse.ArgumentParser):
    """Parser of one command; a wrong argument is a ValueError."""

    def __init__(self, command: str, description: str, *examples: str) -> None:
        width = max(shutil.get_terminal_size().columns - 2, 11)
        super().__init__(
            prog=f"lightconv {command}",
            description=textwrap.fill(description, width),
            epilog="\n".join(["examples:", *(_wrap(each, width) for each in examples)]),
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )

    def add(self, usage: str, text: str, *, group: Any = None, **more: Any) -> None:
        """Adds an argument as a usage line has it: `--beam N`, `--set NAME=VALUE ...`, `[MODEL]`.

        The word for the value tells its type; `...` repeats it; without a value it is a switch.
        """
        name, *words = usage.strip("[]").split()
        is_option, is_many = name.startswith("-"), words[-1:] == ["..."]
        metavar = name if not is_option else next(iter(words), "")
        if not metavar:
            more = {"action": "store_true"} | more
        elif "|" in metavar:
            more = {"choices": metavar.split("|")} | more
            if "jsonl" in more["choices"]:  # json is another name of it
                more["type"] = lambda text: "jsonl" if text == "json" else text
        else:
            more = {"metavar": metavar, "type": TYPES.get(metavar, str)} | more
        if is_option and is_many:
            more |= {"action": "append", "default": []}
        elif not is_option and (is_many or "[" in usage):
            more["nargs"] = "+" if is_many else "?"
        (group or self).add_argument(name if is_option else name.lower(), help=text, **more)

    def share(self, *names: str) -> None:
        """Adds arguments that several commands have."""
        for name in names:
            usage, text, more = SHARED[name]
            self.add(usage, text, **more)

    def add_search(self, model: str = "MODEL") -> None:
        """A model, and options of beam search: values, further models and the backend."""
        self.add(model, SHARED["MODEL"][1])
        self.add("--beam N", "the width of the search (default: the model's own)")
        self.add("--set NAME=VALUE ...", "another value of the search: alpha=0.6, min_len=5, ...")
        text = "another model of the same data: the mean of all is searched; may be repeated"
        self.add("--ensemble MODEL ...", text)
        self.share("--device")
        text = "native: the C++ engine, on processors; default: auto, which says if it cannot"
        self.add("--engine auto|native|torch", text)
        text = "linear layers in 8 bits, or 16 where the CPU can; default: none"
        self.add("--quantize none|int8|bf16", text)

    def parse(self, argv: Sequence[str]) -> argparse.Namespace:
        """Parses arguments; the error about an unknown option suggests the nearest one."""
        if list(argv) == [DESCRIBE]:
            raise DescribedError(self)
        known = self._option_string_actions
        for argument in argv:
            name = argument.partition("=")[0]
            if argument == "--":
                break
            if name.startswith("--") and name not in known:
                self.error(f"unknown option '{name}'{suggest(name, known)}")
        found = self.parse_args(argv)
        set_json(on=getattr(found, "format", None) == "json")
        return found

    def given(self, options: argparse.Namespace, *names: str) -> list[str]:
        """Options that are not as by default, as they are written: `--max-time`."""
        changed = (name for name in names if getattr(options, name) != self.get_default(name))
        return [f"--{name.replace('_', '-')}" for name in changed]

    def error(self, message: str) -> NoReturn:
        stop = "" if message.endswith("?") else "."
        raise ValueError(f"{message}{stop} `{self.prog} --help` explains")


def _wrap(example: str, width: int) -> str:
    """An example as lines of a shell; one with a comment stays whole."""
    parts = (
        [example] if "#" in example else textwrap.wrap(example, width - 6, break_on_hyphens=False)
    )
    return "  " + " \\\n      ".join(parts)


def count(text: str) -> int:
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text[:60]!r}, expected a whole number, at least 1")
    return number


def counts(text: str) -> list[int]:
    """`1,5,10` as numbers, each once."""
    return sorted({count(part) for part in text.split(",")})


def seconds(text: str) -> float:
    """`30m` as a number."""
    try:
        return read_duration(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


# Types of values by their words in a usage line; others are text.
TYPES: dict[str, Any] = {"N": count, "A,B,C": counts, "K": int, "T": float, "P": float}
TYPES["TIME"] = seconds
TYPES |= dict.fromkeys(
    ("CHECKPOINT", "DIR", "FILE", "FOLDER", "MODEL", "PAGE", "PATH", "RUN", "RUNS"), Path
)

PREPARED = "a folder of `lightconv prepare`"
SHARED: dict[str, tuple[str, str, dict[str, Any]]] = {
    "MODEL": ("MODEL", "a model folder, or a run", {}),
    "--data": ("--data DIR", PREPARED, {"required": True}),
    "--device": ("--device auto|cpu|cuda", "default: auto", {"default": "auto"}),
    "--dry-run": ("--dry-run", "print, and write nothing", {}),
    "--format": ("--format text|json", "json: tables as objects, a line each", {"default": "text"}),
    "--limit": ("--limit N", "only the first N lines", {}),
    "--max-time": ("--max-time TIME", "stop and save after that time: 90s, 30m, 8h, 2d", {}),
    "--set": ("--set PATH=VALUE ...", "change a value of the recipe, as often as you like", {}),
    "--split": ("--split NAME", "default: valid", {"default": "valid"}),
}


@contextmanager
def warnings_told(tell: Callable[[str], None]) -> Iterator[None]:
    """Warnings of the library as lines for the user, each once."""
    tell_once = cache(tell)
    with warnings.catch_warnings():
        warnings.simplefilter("always", UserWarning)
        warnings.showwarning = lambda message, *_, **__: tell_once(f"warning: {message}")
        yield


# --- Completion for shells

Command = Callable[[Sequence[str]], int | None]  # an exit code, or nothing for 0
SHELLS = ("bash", "zsh", "fish")
# zsh runs the functions of bash.
ZSH = "autoload -U +X bashcompinit && bashcompinit\n"
BASH = """_lightconv() {
  local cur="${COMP_WORDS[COMP_CWORD]}" words=""
  if [ "$COMP_CWORD" -eq 1 ]; then words="@NAMES@"; else
    case "${COMP_WORDS[1]} ${COMP_WORDS[COMP_CWORD-1]} $cur" in
@CASES@
    esac
  fi
  if [ -n "$words" ]; then COMPREPLY=($(compgen -W "$words" -- "$cur"))
  else COMPREPLY=($(compgen -f -- "$cur")); fi
}
complete -o filenames -F _lightconv lightconv"""


def completion(argv: Sequence[str], commands: Mapping[str, Command]) -> None:
    """Prints the script of a shell; `commands` are the other commands by name."""
    parser = Parser(
        "completion",
        "Prints a script that completes commands, options and their values in a shell.",
        "lightconv completion fish | source            # in config.fish",
        "lightconv completion bash > ~/.lightconv.sh   # and `source` it in ~/.bashrc",
        "lightconv completion zsh > ~/.lightconv.sh    # in ~/.zshrc, after compinit",
    )
    parser.add("SHELL", ", ".join(SHELLS), choices=SHELLS)
    shell = parser.parse(argv).shell
    found = {name: _options(command) for name, command in commands.items()}
    if shell == "fish":
        print("\n".join(_fish(found)))
    else:
        print(ZSH * (shell == "zsh") + _bash(found))


def _options(command: Command) -> dict[str, list[str]]:
    """Options of a command with the values that each may have, from its parser."""
    try:
        command([DESCRIBE])
    except DescribedError as found:
        actions = found.parser._actions
    long = [(name, each) for each in actions for name in each.option_strings if name[:2] == "--"]
    return {name: [str(value) for value in each.choices or ()] for name, each in long}


def _bash(found: Mapping[str, Mapping[str, list[str]]]) -> str:
    cases = [f'      "completion "*) words="{" ".join(SHELLS)}";;']
    for command, options in found.items():
        values = {name: each for name, each in options.items() if each}
        cases += [
            f'      "{command} {name} "*) words="{" ".join(values[name])}";;' for name in values
        ]
        cases.append(f'      "{command} "*" -"*) words="{" ".join(options)}";;')
    names = " ".join([*found, "completion"])
    return BASH.replace("@NAMES@", names).replace("@CASES@", "\n".join(cases))


def _fish(found: Mapping[str, Mapping[str, list[str]]]) -> list[str]:
    first = "complete -c lightconv -n __fish_use_subcommand -f -a"
    lines = [f"{first} '{' '.join([*found, 'completion'])}'"]
    seen = "complete -c lightconv -n '__fish_seen_subcommand_from"
    lines.append(f"{seen} completion' -f -a '{' '.join(SHELLS)}'")
    for command, options in found.items():
        for name, values in options.items():
            choice = f" -x -a '{' '.join(values)}'" if values else ""
            lines.append(f"{seen} {command}' -l {name[2:]}{choice}")
    return lines
