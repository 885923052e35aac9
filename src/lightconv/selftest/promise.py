"""What a promise is: a sentence, and a check that finds figures or says how it is broken."""

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

Figures = dict[str, Any]


class BrokenError(Exception):
    """A promise that does not hold; the message says where."""


class Promise(NamedTuple):
    """check  gets an empty folder and whether to take its time; raises BrokenError"""

    name: str
    text: str
    check: Callable[[Path, bool], Figures]


def expect(condition: object, message: str) -> None:
    """Raises BrokenError unless the condition is true; `assert` would vanish under -O."""
    if not condition:
        raise BrokenError(message)


@contextmanager
def scratch() -> Iterator[Path]:
    """An empty folder, in memory where there is such a place: a kill is no power cut."""
    memory = Path("/dev/shm")
    where = memory if os.access(memory, os.W_OK) else None
    folder = Path(tempfile.mkdtemp(dir=where, prefix="lightconv-"))
    folder.chmod(0o755)  # a check gives up its rights, and must still get there
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
