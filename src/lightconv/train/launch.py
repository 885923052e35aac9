"""The ranks of a run as processes: where this one stands, and how to start several of them here.

`lightconv train --processes N` starts N processes on this machine and ends with them, however it
ends itself. torchrun does the same for several machines. Nothing here needs torch.
"""

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

from lightconv.processes import PARENT
from lightconv.train.signals import EXIT_INTERRUPT, EXIT_STOPPED

# What the launcher tells its processes besides torchrun's variables.
STORE = "LIGHTCONV_STORE"  # the file in which they find each other
# A rank's exit code when the others are gone: the launcher knows who went first, and says it.
EXIT_LOST = 76
EXIT_FAILURE = 1

MOST = 1024
GRACE = 30.0
PAUSE = 0.05

FORWARDED = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
Start = Callable[[Mapping[str, str]], int]


class Place(NamedTuple):
    """Which of how many processes this is, and which of those on its own machine."""

    rank: int
    size: int
    local_rank: int
    local_size: int


def find_place(env: Mapping[str, str]) -> Place | None:
    """What torchrun, or the launcher, says in the environment; None if this process is alone."""
    if "RANK" not in env or "WORLD_SIZE" not in env:
        return None
    rank, size = _number(env, "RANK"), _number(env, "WORLD_SIZE")
    place = Place(
        rank,
        size,
        _number(env, "LOCAL_RANK", rank),
        _number(env, "LOCAL_WORLD_SIZE", size),
    )
    if not (rank < size and place.local_rank < place.local_size <= size):
        raise ValueError(
            f"environment: {place}, expected ranks below their sizes. torchrun sets RANK, "
            "WORLD_SIZE, LOCAL_RANK and LOCAL_WORLD_SIZE; without it they must not be set"
        )
    return place


def check_processes(processes: int, place: Place | None, env: Mapping[str, str]) -> None:
    """Raises ValueError for a number that cannot be started."""
    if not 1 <= processes <= MOST:
        raise ValueError(f"--processes {processes} must be from 1 to {MOST}")
    if place is not None and STORE not in env:
        raise ValueError(
            f"--processes {processes}: torchrun has started {place.size} processes already. Leave "
            "out --processes, or torchrun"
        )


def is_restarted(env: Mapping[str, str]) -> bool:
    """Whether torchrun has started this process in the place of one that failed."""
    return env.get("TORCHELASTIC_RESTART_COUNT", "0") != "0"


def launch(argv: Sequence[str], processes: int) -> int:
    """Runs `lightconv` with these arguments in so many processes: the exit code of them all."""
    folder = Path(tempfile.mkdtemp(prefix="lightconv-"))
    env, note = rank_environment(os.environ, processes, folder / "store")
    _tell(note)
    debug = ["--debug"] if "--debug" in sys.argv else []  # which the command line keeps to itself
    command = [sys.executable, "-m", "lightconv", *argv, *debug]

    try:
        with Ranks(processes, lambda own: spawn(command, {**env, **own})) as ranks:
            return ranks.wait()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def spawn(command: Sequence[str], env: Mapping[str, str]) -> int:
    """Starts a process that the caller waits for by its number, which this returns.

    It has a session of its own: Ctrl-C at the terminal is for the launcher, which passes it on.
    """
    process = subprocess.Popen(command, env=env, stdin=subprocess.DEVNULL, start_new_session=True)
    process.returncode = 0  # the object has nothing to wait for
    return process.pid


def rank_environment(
    env: Mapping[str, str], processes: int, store: Path
) -> tuple[dict[str, str], str]:
    """The environment of all ranks on this machine, and a line about their threads."""
    found = {**env, STORE: str(store), PARENT: str(os.getpid())}
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    threads = found.setdefault("OMP_NUM_THREADS", str(max(1, (cores or 1) // processes)))
    loops = [name for _, name in socket.if_nameindex() if name.startswith("lo")]
    if loops:
        # They talk to each other on this machine alone.
        found.setdefault("GLOO_SOCKET_IFNAME", loops[0])
    plural = "" if threads == "1" else "s"
    return found, (
        f"{processes} processes with {threads} thread{plural} each on {cores} processors; "
        "OMP_NUM_THREADS sets another number"
    )


class Ranks:
    """Processes of one run; a context manager that leaves none of them behind.

    start  starts one, given the variables that only it has, and returns its number
    grace  seconds that the others have, once one has failed or the first has ended
    """

    def __init__(self, processes: int, start: Start, *, grace: float = GRACE) -> None:
        self.processes = processes
        self.grace = grace
        self._start = start
        self._running: dict[int, int] = {}  # by process: its rank
        self._codes: dict[int, int] = {}  # by rank, in order of their ends
        self._signals: list[int] = []  # those to be passed on
        self._passed: set[int] = set()
        self._interrupts = 0
        self._before: dict[int, Any] = {}
        self._deadline: float | None = None

    def __enter__(self) -> "Ranks":
        if threading.current_thread() is threading.main_thread():
            for number in FORWARDED:
                if signal.getsignal(number) != signal.SIG_IGN:
                    self._before[number] = signal.signal(number, self._note)
        try:
            for rank in range(self.processes):
                here = {"RANK": rank, "LOCAL_RANK": rank}
                sizes = {"WORLD_SIZE": self.processes, "LOCAL_WORLD_SIZE": self.processes}
                own = {name: str(value) for name, value in {**here, **sizes}.items()}
                self._running[self._start(own)] = rank
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._send(signal.SIGKILL)
        for process in self._running:
            with suppress(ChildProcessError):
                os.waitpid(process, 0)
        self._running = {}
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def wait(self) -> int:
        """Until all have ended; signals are passed on, and a failure of one ends the others."""
        while self._running:
            self._pass_on()
            self._collect()
            if self._deadline is not None and time.monotonic() > self._deadline:
                self._send(signal.SIGKILL)
            time.sleep(PAUSE)
        return self._conclude()

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._signals.append(number)

    def _pass_on(self) -> None:
        """The ranks agree on a stop among themselves, so Ctrl-C is for the first of them alone."""
        while self._signals:
            number = self._signals.pop(0)
            self._passed.add(number)
            if number != signal.SIGINT:
                self._send(number)
                continue
            self._interrupts += 1
            if self._interrupts > 1:
                self._send(signal.SIGKILL)
            else:
                self._send(number, ranks=[0])

    def _send(self, number: int, ranks: Sequence[int] | None = None) -> None:
        for process, rank in self._running.items():
            if ranks is None or rank in ranks:
                with suppress(ProcessLookupError):
                    os.kill(process, number)

    def _collect(self) -> None:
        """Takes note of those that have ended."""
        for process, rank in list(self._running.items()):
            ended, status = os.waitpid(process, os.WNOHANG)
            if not ended:
                continue
            del self._running[process]
            code = self._codes[rank] = os.waitstatus_to_exitcode(status)
            # The first rank may be writing for long after the others: only then they are not late.
            if rank == 0 or code not in (0, EXIT_STOPPED, EXIT_INTERRUPT):
                self._deadline = self._deadline or time.monotonic() + self.grace

    def _conclude(self) -> int:
        """One exit code, and a line if none of the ranks could say what happened."""
        if self._interrupts > 1:
            return EXIT_INTERRUPT
        bad = [(rank, code) for rank, code in self._codes.items() if code]
        spoken = [code for _, code in bad if code > 0 and code != EXIT_LOST]
        killed = [(rank, -code) for rank, code in bad if code < 0]
        if not bad or spoken:
            return spoken[0] if spoken else 0
        if not killed:
            _tell("error: the processes lost contact with each other. The same command goes on")
            return EXIT_FAILURE
        rank, number = killed[0]
        if number in self._passed:
            return 128 + number  # it was too early for it to listen
        _tell(
            f"error: process {rank} of {self.processes} was ended by {signal.Signals(number).name}"
            + (", as when memory runs out" if number == signal.SIGKILL else "")
            + ". The same command goes on from the last checkpoint"
        )
        return EXIT_FAILURE


def watch_parent(env: Mapping[str, str]) -> None:
    """Stops this process, as SIGTERM does, when the one that started it is gone.

    Nobody else would: a launcher that is killed outright leaves its processes behind.
    """
    if PARENT in env:
        parent = int(env[PARENT])
    elif "TORCHELASTIC_RUN_ID" in env:
        parent = os.getppid()
    else:
        return  # whoever started it may well go before it
    threading.Thread(target=_watch, args=(parent,), daemon=True, name="parent").start()


def clear_orphaned(env: Mapping[str, str]) -> None:
    """Removes what the launcher would have, if it is gone."""
    if PARENT in env and STORE in env and os.getppid() != int(env[PARENT]):
        shutil.rmtree(Path(env[STORE]).parent, ignore_errors=True)


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(0.5)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(GRACE)
    os._exit(EXIT_FAILURE)


def _number(env: Mapping[str, str], name: str, default: int = 0) -> int:
    text = env.get(name, str(default))
    if not text.isascii() or not text.isdigit() or len(text) > 9:
        raise ValueError(f"environment: {name}={text[:60]!r}, expected a whole number from 0 on")
    return int(text)


def _tell(text: str) -> None:
    with suppress(OSError):
        print(text, file=sys.stderr, flush=True)
