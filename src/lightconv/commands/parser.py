"""Arguments of a command: help that ends with examples, errors that name the nearest option."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from lightconv.console import suggest


class Parser(argparse.ArgumentParser):
    """Parser of one command; a wrong argument is a ValueError."""

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
        """--device: auto, cpu or cuda."""
        self.add_argument(
            "--device", choices=["auto", "cpu", "cuda"], default="auto", help="default: auto"
        )

    def parse(self, argv: Sequence[str]) -> argparse.Namespace:
        """Parses arguments; the error about an unknown option suggests the nearest one."""
        known = self._option_string_actions
        for argument in argv:
            name = argument.partition("=")[0]
            if argument == "--":
                break
            if name.startswith("--") and name not in known:
                self.error(f"unknown option '{name}'{suggest(name, known)}")
        return self.parse_args(argv)

    def error(self, message: str) -> NoReturn:
        stop = "" if message.endswith("?") else "."
        raise ValueError(f"{message}{stop} `{self.prog} --help` explains")


class _Help(argparse.HelpFormatter):
    """Wraps descriptions and keeps the lines of examples."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        if text.startswith("examples:"):
            return text
        return super()._fill_text(text, width, indent)
