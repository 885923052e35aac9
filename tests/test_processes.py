"""Work in several processes: order, errors, and how far ahead the input is read."""

import itertools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

import pytest

from lightconv import processes as workers
from lightconv.corpora import apt
from lightconv.processes import exit_code, spread
from lightconv.train import DivergenceError


def double(number: int) -> int:
    if number == 13:
        raise ValueError("unlucky")
    return 2 * number


def test_results_are_in_order_and_errors_arrive(monkeypatch: pytest.MonkeyPatch) -> None:
    for processes in (1, 2):
        assert list(spread(double, range(10), processes)) == list(range(0, 20, 2))
        results = spread(double, range(12, 30), processes)
        assert next(results) == 24
        with pytest.raises(ValueError, match="unlucky"):
            next(results)
    with pytest.raises(ValueError, match="processes=0 must be at least 1"):
        list(spread(double, [], 0))
    monkeypatch.setattr(workers, "_Worker", None)
    assert list(spread(double, [], 2)) == [], "no items, no processes"


def test_the_input_is_read_as_it_is_needed() -> None:
    read = []

    def numbers() -> Iterator[int]:
        for number in range(100, 200):
            read.append(number)
            yield number

    results = spread(double, numbers(), 2)
    assert next(results) == 200
    assert len(read) <= 4
    results.close()  # type: ignore[attr-defined]


ENDLESS = """
import itertools, os, signal
from lightconv.processes import spread

def pid(number):
    return os.getpid()

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # it may be ignored in tests
    for found in spread(pid, itertools.count(), 2):
        print(found, flush=True)
"""


def start(*command: object) -> tuple[subprocess.Popen[str], IO[str]]:
    """A Python process in a group of its own, and its output."""
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    arguments = [sys.executable, *map(str, command)]
    parent = subprocess.Popen(arguments, **pipes, text=True, start_new_session=True)
    assert parent.stdout is not None
    return parent, parent.stdout


def test_processes_do_not_outlive_their_parent(tmp_path: Path) -> None:
    script = tmp_path / "endless.py"
    script.write_text(ENDLESS)
    parent, lines = start(script)
    workers = {int(lines.readline()) for _ in range(200)}
    parent.kill()
    parent.communicate()
    begin = time.monotonic()
    while any(Path(f"/proc/{worker}").exists() for worker in workers):
        assert time.monotonic() - begin < 30
        time.sleep(0.1)


@pytest.mark.parametrize("delay", [0.0, 0.1, 0.3])
def test_ctrl_c_while_processes_start(tmp_path: Path, delay: float) -> None:
    script = tmp_path / "endless.py"
    begin = "signal.signal(signal.SIGINT, signal.default_int_handler)\nprint('begun', flush=True)\n"
    script.write_text(f"import signal\n{begin}{ENDLESS}")
    parent, lines = start(script)
    lines.readline()
    time.sleep(delay)
    os.killpg(parent.pid, signal.SIGINT)  # all processes of the group, as a terminal does
    try:
        _, err = parent.communicate(timeout=60)
    finally:
        parent.kill()
    assert parent.returncode != 0
    assert err.count("Traceback") <= 1, "none of the processes complains"


# --- Processes that die: always an error, never an endless wait


def kill_own_process(number: Any) -> Any:
    if number == 5 or isinstance(number, bytes):
        os.kill(os.getpid(), signal.SIGKILL)
    return number


# Items larger than any pipe.
LARGE = [bytes([number]) * (3 << 20) for number in range(8)]


@pytest.mark.parametrize(
    ("function", "items", "end"),
    [
        (kill_own_process, range(100), "SIGKILL"),
        (kill_own_process, LARGE, "SIGKILL"),
        (os._exit, [7], "exit code 7"),
    ],
)
def test_a_process_that_dies_is_an_error(function: Any, items: Any, end: str) -> None:
    with pytest.raises(ChildProcessError, match=rf"a worker process died \({end}\)"):
        list(spread(function, items, 2))


def test_items_and_results_larger_than_any_pipe() -> None:
    assert list(spread(bytes, LARGE, 2)) == LARGE


def test_a_process_that_cannot_start(tmp_path: Path) -> None:
    """Started anew, the script would run itself again: the processes refuse to."""
    script = tmp_path / "unguarded.py"
    script.write_text(
        "from lightconv.processes import spread\nprint(list(spread(abs, range(9), 2)))\n"
    )
    done = subprocess.run(
        [sys.executable, script], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 1
    last = done.stderr.rstrip().splitlines()[-1]
    assert last.startswith("ChildProcessError: a worker process died (exit code 1)")
    assert "if __name__ == '__main__'" in last


def test_an_end_that_somebody_else_holds_open(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the end of its pipe a death is noticed by the process's exit."""
    held = []
    context = workers.get_context("spawn")
    make_pipe = context.Pipe

    def leaking() -> tuple[Any, Any]:
        ours, theirs = make_pipe()
        held.append(os.dup(theirs.fileno()))
        return ours, theirs

    monkeypatch.setattr(type(context), "Pipe", lambda self: leaking())
    try:
        with pytest.raises(ChildProcessError, match="exit code 7"):
            list(spread(os._exit, [7], 2))
    finally:
        for handle in held:
            os.close(handle)


class UntravelledError(Exception):
    """Pickled, it comes back without one of its arguments."""

    def __init__(self, what: str, where: str) -> None:
        super().__init__(f"{what} at {where}")


def fail(number: int) -> None:
    raise UntravelledError("lost", "sea")


def make_unpicklable(number: int) -> Any:
    return lambda: number


def test_errors_and_results_that_cannot_travel() -> None:
    with pytest.raises(RuntimeError, match="UntravelledError: lost at sea") as caught:
        list(spread(fail, [1], 2))
    assert "def fail" in caught.value.__notes__[0] or "in fail" in caught.value.__notes__[0]
    with pytest.raises(Exception, match=r"pickle|local object"):
        list(spread(make_unpicklable, [1], 2))


def test_nothing_is_left_when_it_is_no_longer_wanted() -> None:
    results = spread(own_pid, itertools.count(), 2)
    found = {next(results) for _ in range(10)}
    results.close()  # type: ignore[attr-defined]
    assert not any(Path(f"/proc/{pid}").exists() for pid in found)


def own_pid(number: int) -> int:
    return os.getpid()


def test_exit_codes() -> None:
    codes = {ValueError: 2, FileNotFoundError: 2, FileExistsError: 2, NotADirectoryError: 2}
    codes |= {OSError: 1, ChildProcessError: 1, RuntimeError: 1, KeyboardInterrupt: 130}
    codes |= {DivergenceError: 3}
    for error, code in codes.items():
        assert exit_code(error()) == code


WATCHED = """
import ctypes, signal, sys
from lightconv.processes import watch_parent
watch_parent(int(sys.argv[1]), interval=0.05)
signal.signal(signal.SIGTERM, lambda *_: print("asked", flush=True))
print("ready", flush=True)
ctypes.PyDLL(None).sleep(600)  # holds the GIL: no thread and no handler runs
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel of Linux tells children")
def test_the_kernel_ends_a_child_that_cannot_watch() -> None:
    """R19"""
    code = (
        "import os, subprocess, sys, time\n"
        "subprocess.Popen([sys.executable, '-c', sys.argv[1], str(os.getpid())])\n"
        "time.sleep(600)"
    )
    parent, lines = start("-c", code, WATCHED)
    assert lines.readline() == "ready\n"
    parent.kill()
    began = time.monotonic()
    assert lines.readline() == "", "nobody has the other end any more"
    assert time.monotonic() - began < 2.0
    parent.communicate()


FOREIGN = {
    "compiler": "from lightconv.ops.build import _run; _run(['sh', '-c', 'sleep 77 & sleep 77'])",
    "apt": "import subprocess; from lightconv.corpora.apt import _TIED as tied; "
    "subprocess.run([*tied, 'sleep', '77'])",
}


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
@pytest.mark.parametrize("name", FOREIGN)
def test_programs_of_others_end_with_the_command(
    name: str, number: signal.Signals, tmp_path: Path
) -> None:
    """R19: compilers, with the processes they start, and apt."""
    if name == "apt" and not apt._TIED:
        pytest.skip("there is no setpriv, so there is no apt of Debian")
    mark = f"foreign-{tmp_path}"
    code = f"import signal; signal.signal(2, signal.default_int_handler)\n{FOREIGN[name]}"
    process = subprocess.Popen(
        [sys.executable, "-c", code], env={**os.environ, "MARK": mark}, stderr=subprocess.DEVNULL
    )
    begin = time.monotonic()
    while sum(b"sleep" in line for line in commands(mark)) < 1 + (name == "compiler"):
        assert time.monotonic() - begin < 30
        time.sleep(0.05)
    process.send_signal(number)
    begin = time.monotonic()
    process.wait(30)
    while commands(mark):
        assert time.monotonic() - begin < 2.0
        time.sleep(0.05)


def commands(mark: str) -> list[bytes]:
    """Command lines of the processes that have this mark in their environment."""
    found = []
    for path in Path("/proc").iterdir():
        with suppress(OSError):
            if path.name.isdigit() and mark.encode() in (path / "environ").read_bytes():
                found.append((path / "cmdline").read_bytes())
    return found


IMPORTING = """
import os, signal, sys
sys.path.insert(0, sys.argv[1])
signal.signal(signal.SIGINT, signal.default_int_handler)
from lightconv import __main__, cli
cli.COMMANDS["list"] = (f"paper:{sys.argv[2]}", "")
sys.argv[1:] = ["list"]
import lightconv.commands.paper as paper
def imports(argv):
    import interrupted
    print("went on")
def ignores(argv):
    class Last:
        def __del__(self):
            os.kill(os.getpid(), signal.SIGINT)
            sum(range(1000))
    Last()
    print("went on")
def plain(argv):
    os.kill(os.getpid(), signal.SIGINT)
    print("went on")
paper.imports, paper.ignores, paper.plain = imports, ignores, plain
sys.exit(__main__.main())
"""


@pytest.mark.parametrize("where", ["imports", "ignores", "plain"])
def test_ctrl_c_is_quiet_where_python_is_not(where: str, tmp_path: Path) -> None:
    """R19: a module that makes another error of it, and a place where exceptions are ignored."""
    (tmp_path / "interrupted.py").write_text(
        "import os, signal\ntry:\n    os.kill(os.getpid(), signal.SIGINT)\n    sum(range(1000))\n"
        "except BaseException:\n    raise ImportError('initialization failed')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", IMPORTING, tmp_path, where],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


LEAVING = """
import atexit, sys, threading, time
from lightconv import __main__, cli
import lightconv.commands.paper as paper
class Kept:
    def __del__(self):
        print("cleaned up")
kept = Kept()
def leave(argv):
    atexit.register(print, "hook")
    threading.Thread(target=lambda: (time.sleep(0.2), print("thread"))).start()
    print("command")
    return 3
paper.leave = leave
cli.COMMANDS["list"] = ("paper:leave", "")
sys.argv[1:] = ["list"]
sys.exit(__main__.main())
"""


def test_a_command_ends_without_the_clean_up_of_python() -> None:
    """R19: of torch it takes a second; threads, exit functions, output and code are kept."""
    done = subprocess.run(
        [sys.executable, "-c", LEAVING], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (3, "command\nthread\nhook\n", "")
