"""The folder in which a corpus is prepared: which stages are done, so that a restart goes on.

It lies beside the prepared folder, under a hidden name. What belongs to the result is written into
its folder `result`, which gets the name of the prepared folder when all of it is there.
"""

import fcntl
import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from lightconv.config import differences, from_dict, to_dict
from lightconv.data.origin import Origin
from lightconv.files import replace_file, sync

STATE_FILE = "state.json"
LOCK_FILE = "lock"
# A prepared folder that is about to be replaced.
REPLACED = "replaced"


def work_folder(out: Path) -> Path:
    """Where the prepared folder `out` is made."""
    return out.absolute().with_name(f".{out.absolute().name}.prepare")


class Work:
    """A context manager; only one process at a time is in it.

    origin   what decides the result: a folder begun with another one is begun anew
    changed  what was other in what was begun here before; empty if nothing was
    stages   what is done: the name of each stage, and what it found out
    """

    def __init__(self, out: Path, origin: Origin) -> None:
        self.out = out.absolute()
        self.folder = work_folder(out)
        self.result = self.folder / "result"
        self.origin = origin
        self.changed: list[str] = []
        self.stages: dict[str, Any] = {}

    def __enter__(self) -> Self:
        self.folder.mkdir(parents=True, exist_ok=True)
        self._lock = os.open(self.folder / LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Not the lock of a folder that has been removed in the meantime.
            ours = os.path.samestat(os.fstat(self._lock), (self.folder / LOCK_FILE).stat())
        except OSError:
            ours = False
        if not ours:
            os.close(self._lock)
            raise ValueError(
                f"another process prepares {self.out}. Wait until it has ended, or choose another "
                "folder"
            )
        replaced = self.folder / REPLACED
        if replaced.exists() and not self.out.exists():
            replaced.rename(self.out)
        self._read()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        # What the user gave cannot be used: something will be changed, and all of it done again.
        if kind is not None and issubclass(kind, ValueError):
            self.remove()
        os.close(self._lock)

    def finish(self, stage: str, found: Mapping[str, Any]) -> None:
        """Records that a stage is done; its files must be on the disk."""
        self.stages[stage] = dict(found)
        self._write()

    def publish(self) -> None:
        """The result gets its name; what has it now is removed, and so is this folder."""
        sync(self.result)
        if self.out.exists():
            self.out.rename(self.folder / REPLACED)
        self.result.rename(self.out)
        sync(self.out.parent)
        self.remove()

    def remove(self) -> None:
        """Removes the folder and all that was done in it."""
        # First what says which stages are done: a half removed folder is not gone on with.
        (self.folder / STATE_FILE).unlink(missing_ok=True)
        shutil.rmtree(self.folder, ignore_errors=True)

    def _read(self) -> None:
        """Finds what is done; removes it if it was begun with another origin."""
        old, stages = self._begun()
        if old == self.origin:
            self.stages = stages
            return
        if old is not None:
            self.changed = differences(old, self.origin)
        for path in self.folder.iterdir():
            if path.is_dir():
                shutil.rmtree(path)
            elif path.name != LOCK_FILE:
                path.unlink()
        self.result.mkdir()
        self._write()

    def _begun(self) -> tuple[Origin | None, dict[str, Any]]:
        try:
            state = json.loads((self.folder / STATE_FILE).read_bytes())
            return from_dict(Origin, state["origin"]), state["stages"]
        except (OSError, ValueError, KeyError, TypeError):  # none, or not one of this version
            return None, {}

    def _write(self) -> None:
        state = {"origin": to_dict(self.origin), "stages": self.stages}
        replace_file(self.folder / STATE_FILE, json.dumps(state, indent=1).encode())
