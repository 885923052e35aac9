"""A command called as people call it: lines in, lines out."""

import io
import sys
from collections.abc import Callable
from typing import NamedTuple

import pytest

from lightconv import cli


class Done(NamedTuple):
    code: int
    out: str
    err: str

    def refused(self, *words: str, after: str | None = None) -> bool:
        """Nothing but one line on stderr, with these words; lines before it begin with `after`."""
        *before, error = self.err.splitlines()
        assert self.code == 2 and self.out == "" and error.startswith("error: "), self
        assert all(after and line.startswith(after) for line in before), self
        return all(word in error for word in words)


Run = Callable[..., Done]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    def call(*arguments: object, stdin: bytes | str = b"", typed: bool = False) -> Done:
        data = stdin.encode() if isinstance(stdin, str) else stdin
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))
        monkeypatch.setattr(sys.stdin, "isatty", lambda: typed)
        code = cli.main([str(argument) for argument in arguments])
        return Done(code, *capsys.readouterr())

    return call
