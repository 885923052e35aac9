"""Writers of checkpoints that are killed at each operation on files.

Each runs in a fork of a process that has torch imported and no threads: `tests.harness.server`.
"""

import errno
import json
import os
import resource
import shutil
import signal
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch

from lightconv.train.checkpoints import Checkpoints, SaveError
from lightconv.train.loop import Loop

OPERATIONS = ("open", "write", "fsync", "mkdir", "rename", "unlink", "rmdir")
Action = Callable[[str, tuple[Any, ...]], None]


def watch(around: Callable[[str, tuple[Any, ...], Callable[[], Any]], Any]) -> None:
    """Calls `around` with name, arguments and the call itself in the place of every operation.

    For a process that will end: nothing is put back.
    """

    def watched(name: str, real: Any, *args: Any, **kwargs: Any) -> Any:
        return around(name, args, partial(real, *args, **kwargs))

    for name in OPERATIONS:
        setattr(os, name, partial(watched, name, getattr(os, name)))


def interrupt_at(point: int, action: Action) -> list[str]:
    """Does `action` before operation number `point`; the list grows by the name of each."""
    names: list[str] = []

    def count(name: str, args: tuple[Any, ...], call: Callable[[], Any]) -> Any:
        names.append(name)
        if len(names) - 1 == point:
            action(name, args)
        return call()

    watch(count)
    return names


def kill(name: str, args: tuple[Any, ...]) -> None:
    """Ends the process before the operation."""
    os.kill(os.getpid(), signal.SIGKILL)


def kill_halfway(name: str, args: tuple[Any, ...]) -> None:
    """Ends the process after half of a write, or before another operation."""
    if name == "write":
        with os.fdopen(os.dup(args[0]), "wb", buffering=0) as file:
            file.write(args[1][: len(args[1]) // 2])
    os.kill(os.getpid(), signal.SIGKILL)


def crash_at(step: int, point: int, halfway: bool) -> None:
    """Kills a run at an operation of its save at `step`.

    It ends after that save in any case, and prints the names of all operations as JSON.
    """
    real = Loop._save

    def save(self: Loop) -> None:
        if self.trainer.step != step:
            return real(self)
        names = interrupt_at(point, kill_halfway if halfway else kill)
        real(self)
        os.write(1, json.dumps(names).encode())
        os._exit(0)

    Loop._save = save  # type: ignore[method-assign]


def worth_it(names: list[str]) -> list[int]:
    """All operations except those in the middle of a row of writes: its first two and last stay."""

    def middle(place: int) -> bool:
        row = names[max(place - 2, 0) : place + 2]
        return row == ["write"] * 4

    return [place for place in range(len(names)) if not middle(place)]


# --- Cases

OLD, LAST, NEW, NEXT = 50, 100, 200, 300
Result = dict[str, Any]


def contents(step: int, version: int = 0) -> tuple[dict[str, dict[str, torch.Tensor]], Result]:
    """Tensors and values of a checkpoint; all depend on the step."""
    model = torch.arange(20, dtype=torch.float32) + step + version
    state = torch.full((20,), step * 0.3 + version)
    states = [f"state/{name}/{key}" for name in ("a", "b.c") for key in ("exp_avg", "exp_avg_sq")]
    tensors = {"model": {"a": model, "b.c": model.clone()}, "optimizer": {}}
    tensors["optimizer"] = {name: state.clone() for name in states}
    return tensors, {"epoch": step // 10, "version": version}


def save(folder: Path, step: int, version: int = 0) -> None:
    tensors, values = contents(step, version)
    with Checkpoints(folder, keep_last=2, keep_best=0) as checkpoints:
        checkpoints.save(step, tensors, values)


def try_to_save(folder: Path, step: int, version: int = 0) -> Result:
    """Nothing, or why it was refused and the names of the files then."""
    try:
        save(folder, step, version)
    except SaveError as error:
        cause = getattr(error.__cause__, "errno", None)
        return {"refused": str(error), "cause": cause, "left": names(folder)}
    return {}


def identify(folder: Path) -> Result:
    """Identity of the latest checkpoint, compared with what was written in every number."""
    found = Checkpoints(folder).latest()
    assert found is not None
    tensors, values = contents(found.step, found.values["version"])
    assert found.values == values
    assert found.tensors.keys() == tensors.keys()
    for part, named in tensors.items():
        assert found.tensors[part].keys() == named.keys()
        assert all(torch.equal(found.tensors[part][name], named[name]) for name in named)
    return {"step": found.step, "version": values["version"], "skipped": len(found.skipped)}


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def in_child(work: Callable[[], Any]) -> Any:
    """The result of `work` in a forked process, or the signal that killed it."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(reader)
            os.write(writer, json.dumps(work()).encode())
        except BaseException as error:
            os.write(writer, json.dumps({"error": f"{type(error).__name__}: {error}"}).encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as file:
        data = file.read()
    _, status = os.waitpid(child, 0)
    return json.loads(data) if data else {"killed": os.WTERMSIG(status)}


def fail(name: str, args: tuple[Any, ...]) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def template(folder: Path, scene: str) -> tuple[int, int]:
    """Prepares a folder; returns the step and version to save next.

    new      one more checkpoint, which removes the oldest
    again    the newest again, with other contents
    remains  one more checkpoint beside the remains of killed writers
    """
    save(folder, OLD)
    save(folder, LAST)
    if scene == "again":
        return LAST, 1
    if scene == "remains":
        shutil.copytree(folder / f"step-{OLD:08d}", folder / f".step-{OLD:08d}.00000001.gone")
        shutil.copytree(folder / f"step-{OLD:08d}", folder / f".step-{OLD:08d}.00000002.old")
        (folder / f".step-{NEW:08d}.00000003.new").mkdir()
        (folder / f"step-{LAST:08d}").rename(folder / f".step-{LAST:08d}.00000004.old")
    return NEW, 0


def at_every_point(folder: Path, scene: str, action: Action) -> Iterator[Result]:
    """Saves with `action` at each operation in turn, until one save completes."""
    before = folder / "before"
    step, version = template(before, scene)
    point, ended = 0, False
    while not ended:
        work = folder / "work"
        shutil.copytree(before, work)

        def write(point: int = point, work: Path = work) -> Result:
            operations = interrupt_at(point, action)
            return try_to_save(work, step, version) or {"ended": len(operations) <= point}

        result = in_child(write)
        ended = result.get("ended", False)
        after = identify(work)
        save(work, NEXT)
        then = {"after": after, "next": identify(work), "names": names(work)}
        yield result | {"point": point} | then
        shutil.rmtree(work)
        point += 1


def order(folder: Path) -> Iterator[Result]:
    """All operations of one save with their paths."""
    template(folder, "new")
    log: list[Result] = []
    paths: dict[int, str] = {}

    def note(name: str, args: tuple[Any, ...], call: Callable[[], Any]) -> Any:
        result = call()
        if name == "open":
            paths[result] = str(args[0])
        target = paths[args[0]] if name in ("write", "fsync") else str(args[0])
        log.append({"name": name, "path": target, "to": str(args[1]) if name == "rename" else ""})
        return result

    watch(note)
    save(folder, NEW)
    yield from log


def small_disk(folder: Path) -> Iterator[Result]:
    """Files may not be longer than so many bytes."""
    template(folder, "new")
    for limit in (0, 1, 100, 300, 600):

        def write(limit: int = limit) -> Result:
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
            return try_to_save(folder, NEW)

        yield in_child(write) | identify(folder) | {"limit": limit, "names": names(folder)}
    save(folder, NEW)
    yield identify(folder)


def closed_folder(folder: Path) -> Iterator[Result]:
    """The folder is not writable."""
    template(folder, "new")
    (folder / ".lock").unlink()
    folder.chmod(0o555)

    def write() -> Result:
        if os.getuid() == 0:  # nothing is closed to root
            os.setuid(65534)
        return try_to_save(folder, NEW) | {"names": names(folder)} | identify(folder)

    yield in_child(write)
    folder.chmod(0o755)


def two_writers(folder: Path) -> Iterator[Result]:
    """A second process is refused while the first lives; a child left behind does not count."""
    ready, tell = os.pipe()
    owner = os.fork()
    if owner == 0:
        held = Checkpoints(folder)  # the lock is released with it
        held.claim()
        if os.fork() == 0:  # a worker that outlives its parent
            os.write(tell, f"{os.getpid():10d}".encode())
            signal.pause()
        signal.pause()
    worker = int(os.read(ready, 10))

    def claim() -> Result:
        Checkpoints(folder).claim()
        return {}

    try:
        yield in_child(claim)
        yield in_child(lambda: {"steps": Checkpoints(folder).steps()})
        os.kill(owner, signal.SIGKILL)
        os.waitpid(owner, 0)
        yield in_child(claim)
    finally:
        os.kill(worker, signal.SIGKILL)


ACTIONS = {"kill": kill, "halfway": kill_halfway, "fail": fail}
SCENES = ("kill-new", "kill-again", "kill-remains", "halfway-new", "fail-new", "fail-again")
CASES: dict[str, Callable[[Path], Iterator[Result]]] = {
    **{
        name: partial(at_every_point, scene=scene, action=ACTIONS[action])
        for name, (action, scene) in ((name, name.split("-")) for name in SCENES)
    },
    "order": order,
    "small-disk": small_disk,
    "closed-folder": closed_folder,
    "two-writers": two_writers,
}


def run(name: str, folder: str) -> list[Result]:
    """Results of a case, in a process of its own; the last one may be an error."""

    def work() -> list[Result]:
        results = []
        try:
            for result in CASES[name](Path(folder) / name):
                results.append(result)  # noqa: PERF402 - those before an error are wanted too
        except Exception as error:
            results.append({"error": f"{type(error).__name__}: {error}"})
        return results

    found: list[Result] = in_child(work)
    return found
