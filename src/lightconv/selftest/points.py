"""Operations on files, counted: a process can end itself at each of them."""

import json
import os
import signal
from collections.abc import Callable
from typing import Any

OPERATIONS = ("open", "write", "fsync", "mkdir", "rename", "unlink", "rmdir")
Action = Callable[[str, tuple[Any, ...]], None]


def interrupt_at(point: int, action: Action) -> Callable[[], list[str]]:
    """From now on operation number `point` (from 0) does `action` first; tells which there were.

    Only for a process that will end: nothing is put back.
    """
    names: list[str] = []

    def patch(name: str) -> None:
        real = getattr(os, name)

        def counted(*args: Any, **kwargs: Any) -> Any:
            names.append(name)
            if len(names) - 1 == point:
                action(name, args)
            return real(*args, **kwargs)

        setattr(os, name, counted)

    for name in OPERATIONS:
        patch(name)
    return lambda: names


def kill(name: str, args: tuple[Any, ...]) -> None:
    """Ends the process before the operation."""
    os.kill(os.getpid(), signal.SIGKILL)


def kill_halfway(name: str, args: tuple[Any, ...]) -> None:
    """The same, but a write gets half of its bytes out."""
    if name == "write":
        with os.fdopen(os.dup(args[0]), "wb", buffering=0) as file:
            file.write(args[1][: len(args[1]) // 2])
    os.kill(os.getpid(), signal.SIGKILL)


def crash_at(step: int, point: int, halfway: bool) -> None:
    """When a run saves at `step`, it is killed at that operation on files.

    It ends after that save in any case, and prints the names of all operations as JSON.
    """
    from lightconv.train.loop import Loop

    real = Loop._save

    def save(self: Loop) -> None:
        if self.trainer.step != step:
            return real(self)
        names = interrupt_at(point, kill_halfway if halfway else kill)
        real(self)
        os.write(1, json.dumps(names()).encode())
        os._exit(0)

    Loop._save = save  # type: ignore[method-assign]


def worth_it(names: list[str]) -> list[int]:
    """Every operation but those in the middle of a row of writes: its first two and its last."""

    def middle(place: int) -> bool:
        row = names[max(place - 2, 0) : place + 2]
        return row == ["write"] * 4

    return [place for place in range(len(names)) if not middle(place)]
