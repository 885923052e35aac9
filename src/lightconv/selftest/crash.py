"""Writers of checkpoints that are killed, one at each operation on files.

Each runs in a fork of a process that has torch imported and no threads: `lightconv.selftest.forks`.
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

from lightconv.selftest.points import OPERATIONS, Action, interrupt_at, kill, kill_halfway
from lightconv.selftest.promise import BrokenError, expect
from lightconv.train.checkpoints import Checkpoints, SaveError

OLD, LAST, NEW, NEXT = 50, 100, 200, 300
Result = dict[str, Any]


def contents(step: int, version: int = 0) -> tuple[dict[str, dict[str, torch.Tensor]], Result]:
    """What the checkpoint of a step holds: all of it says which step it is of."""
    tensors = {
        "model": {
            name: torch.arange(20, dtype=torch.float32) + step + version for name in ("a", "b.c")
        },
        "optimizer": {
            f"state/{name}/{key}": torch.full((20,), step * 0.3 + version)
            for name in ("a", "b.c")
            for key in ("exp_avg", "exp_avg_sq")
        },
    }
    return tensors, {"epoch": step // 10, "version": version}


def save(folder: Path, step: int, version: int = 0) -> None:
    """Writes it, and keeps two."""
    tensors, values = contents(step, version)
    with Checkpoints(folder, keep_last=2, keep_best=0) as checkpoints:
        checkpoints.save(step, tensors, values)


def identify(folder: Path) -> Result:
    """Which checkpoint is the latest; it must be that one in every number."""
    found = Checkpoints(folder).latest()
    if found is None:
        raise BrokenError("there is no checkpoint")
    tensors, values = contents(found.step, found.values["version"])
    expect(found.values == values, f"step {found.step} has other values")
    expect(found.tensors.keys() == tensors.keys(), f"step {found.step} has other parts")
    for part, named in tensors.items():
        read = found.tensors[part]
        same = read.keys() == named.keys() and all(
            torch.equal(read[name], tensor) for name, tensor in named.items()
        )
        expect(same, f"step {found.step}: other tensors in {part}")
    return {"step": found.step, "version": values["version"], "skipped": len(found.skipped)}


def names(folder: Path) -> list[str]:
    """What lies there."""
    return sorted(path.name for path in folder.iterdir())


def in_child(work: Callable[[], Any]) -> Any:
    """What `work` returns in a forked process; how that ended, if it was killed."""
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
    """The disk is full."""
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def template(folder: Path, scene: str) -> tuple[int, int]:
    """Prepares a folder; the step and version that is saved then.

    new      a checkpoint more, after which the oldest goes
    again    the newest once more, with other contents
    remains  a checkpoint more where others were killed: before, while replacing, while removing
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
    """Saves with `action` at each operation in turn, until one save has come to its end."""
    before = folder / "before"
    step, version = template(before, scene)
    point, ended = 0, False
    while not ended:
        work = folder / "work"
        shutil.copytree(before, work)

        def write(point: int = point, work: Path = work) -> Result:
            names_of = interrupt_at(point, action)
            try:
                save(work, step, version)
            except SaveError as error:
                return {"refused": str(error), "left": names(work)}
            return {"ended": len(names_of()) <= point}

        result = in_child(write)
        ended = result.get("ended", False)
        after = identify(work)
        save(work, NEXT)
        then = {"after": after, "next": identify(work), "names": names(work)}
        yield result | {"point": point} | then
        shutil.rmtree(work)
        point += 1


def order(folder: Path) -> Iterator[Result]:
    """Every operation of one save, with what it acts on."""
    template(folder, "new")
    log: list[Result] = []
    paths: dict[int, str] = {}

    def patch(name: str) -> None:
        real = getattr(os, name)

        def logged(*args: Any, **kwargs: Any) -> Any:
            result = real(*args, **kwargs)
            if name == "open":
                paths[result] = str(args[0])
            target = paths[args[0]] if name in ("write", "fsync") else str(args[0])
            log.append({"name": name, "path": target, "to": str(args[1]) if len(args) > 1 else ""})
            return result

        setattr(os, name, logged)

    for name in OPERATIONS:
        patch(name)
    save(folder, NEW)
    yield from [entry if entry["name"] == "rename" else entry | {"to": ""} for entry in log]


def small_disk(folder: Path) -> Iterator[Result]:
    """No file may be longer than so many bytes."""
    save(folder, OLD)
    save(folder, LAST)
    for limit in (0, 1, 100, 300, 600):

        def write(limit: int = limit) -> Result:
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
            try:
                save(folder, NEW)
            except SaveError as error:
                return {"refused": str(error), "cause": getattr(error.__cause__, "errno", None)}
            return {}

        yield in_child(write) | identify(folder) | {"limit": limit, "names": names(folder)}
    save(folder, NEW)
    yield identify(folder)


def closed_folder(folder: Path) -> Iterator[Result]:
    """The folder cannot be written to, by someone who is not its owner or by its owner."""
    save(folder, OLD)
    save(folder, LAST)
    (folder / ".lock").unlink()
    folder.chmod(0o555)

    def write() -> Result:
        if os.getuid() == 0:  # nothing is closed to root
            os.setuid(65534)
        try:
            save(folder, NEW)
        except SaveError as error:
            return {"refused": str(error), "names": names(folder)} | identify(folder)
        return {}

    yield in_child(write)
    folder.chmod(0o755)


def two_writers(folder: Path) -> Iterator[Result]:
    """A second process is refused while the first lives, even if that leaves a child behind."""
    ready, tell = os.pipe()
    owner = os.fork()
    if owner == 0:
        held = Checkpoints(folder)  # the lock is released with it
        held.claim()
        if os.fork() == 0:  # a worker that nobody ends
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


CASES: dict[str, Callable[[Path], Iterator[Result]]] = {
    "kill-new": lambda folder: at_every_point(folder, "new", kill),
    "kill-again": lambda folder: at_every_point(folder, "again", kill),
    "kill-remains": lambda folder: at_every_point(folder, "remains", kill),
    "halfway-new": lambda folder: at_every_point(folder, "new", kill_halfway),
    "fail-new": lambda folder: at_every_point(folder, "new", fail),
    "fail-again": lambda folder: at_every_point(folder, "again", fail),
    "order": order,
    "small-disk": small_disk,
    "closed-folder": closed_folder,
    "two-writers": two_writers,
}


def run(name: str, folder: Path) -> list[Result]:
    """The results of a case; the last one may be an error."""
    results = []
    try:
        for result in CASES[name](folder / name):
            results.append(result)  # noqa: PERF402 - those before an error are wanted too
    except Exception as error:
        results.append({"error": f"{type(error).__name__}: {error}"})
    return results


def run_all(folder: str, *cases: str) -> int:
    """Prints the results of some cases, or of all, as JSON; each is a process of its own."""
    found = {case: in_child(partial(run, case, Path(folder))) for case in cases or CASES}
    print(json.dumps(found))
    return 0
