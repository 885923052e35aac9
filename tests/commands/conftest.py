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

    def refused(self, *words: str) -> bool:
        """One line on stderr with these words, nothing on stdout."""
        assert self.code == 2 and self.out == "", self
        assert self.err.startswith("error: ") and self.err.count("\n") == 1, self.err
        return all(word in self.err for word in words)


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
