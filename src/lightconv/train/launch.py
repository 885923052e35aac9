"""Processes of a run: requests to stop, the place of a rank, and a launcher for this machine.

`lightconv train --processes N` starts N processes and ends with them. torchrun does the same for
several machines, but treats the exit code of a saved stop as a failure of the rank and forgets the
codes of ranks after a signal, so a failed save would look like a stop. Nothing here needs torch.
"""

import math
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import NamedTuple, Self

from lightconv.console import tell
from lightconv.device import count_cores
from lightconv.processes import EXIT_FAILURE, EXIT_INTERRUPT, EXIT_STOPPED, PARENT

# Environment variable of the launcher: the file in which its ranks find each other.
STORE = "LIGHTCONV_STORE"
# Exit code of a rank that lost the others: the launcher knows who ended first, and reports it.
EXIT_LOST = 76
# Keys of that file, set once all have met and at the first update: before there is nothing to save.
MET, TRAINING = "all-have-met", "all-are-training"
MOST = 1024
PAUSE = 0.05
_HINT = b"\nstopping after this update; Ctrl-C once more quits at once\n"


@contextmanager
def handled(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Passes SIGTERM, SIGHUP and Ctrl-C to `handler`, except those ignored before, as by nohup."""
    before = {}
    if threading.current_thread() is threading.main_thread():  # others may have no handlers
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            if signal.getsignal(number) != signal.SIG_IGN:
                before[number] = signal.signal(number, handler)
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)


class Stop(ExitStack):
    """A request to save and end; a context manager.

    While it is open, SIGTERM, SIGHUP and the first Ctrl-C are noted and interrupt nothing; a second
    Ctrl-C is a KeyboardInterrupt.

    code         0, or the exit code of the request
    max_seconds  time after which it asks by itself
    quiet        print nothing
    hard         a second Ctrl-C ends the process at once: an exception that comes while a pool of
                 threads holds a lock would wait forever. Checkpoints survive it as they do kill -9
    """

    def __init__(
        self, max_seconds: float | None = None, *, quiet: bool = False, hard: bool = False
    ) -> None:
        super().__init__()
        self._code, self._quiet, self._hard = 0, quiet, hard
        self._deadline = math.inf if max_seconds is None else time.monotonic() + max_seconds

    @property
    def code(self) -> int:
        return self._code or (EXIT_STOPPED if time.monotonic() >= self._deadline else 0)

    def __enter__(self) -> Self:
        self.enter_context(handled(self._note))
        return self

    def _note(self, number: int, frame: FrameType | None) -> None:
        if number != signal.SIGINT:
            self._code = self._code or EXIT_STOPPED
        elif self._code != EXIT_INTERRUPT:
            self._code = EXIT_INTERRUPT
            if not self._quiet:
                with suppress(OSError):
                    os.write(2, _HINT)  # not print: the signal may have come in the middle of one
        elif not self._hard:
            raise KeyboardInterrupt
        else:
            with suppress(OSError):
                if os.isatty(2):
                    os.write(2, b"\x1b[?25h")  # a live line may have hidden it
            os._exit(EXIT_INTERRUPT)


class RankPlace(NamedTuple):
    """Number of this process among all ranks, and among those of its machine."""

    rank: int
    size: int
    local_rank: int
    local_size: int


def find_place(env: Mapping[str, str]) -> RankPlace | None:
    """The place that torchrun or the launcher gave in the environment; None without one."""
    if "RANK" not in env or "WORLD_SIZE" not in env:
        return None
    given = {"LOCAL_RANK": env["RANK"], "LOCAL_WORLD_SIZE": env["WORLD_SIZE"], **env}
    found = {name: given[name] for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")}
    if all(text.isascii() and text.isdigit() and len(text) < 10 for text in found.values()):
        place = RankPlace(*map(int, found.values()))
        if place.rank < place.size and place.local_rank < place.local_size <= place.size:
            return place
    listed = ", ".join(f"{name}={text[:60]!r}" for name, text in found.items())
    raise ValueError(
        f"environment: {listed}, expected whole numbers, and ranks below their sizes. torchrun "
        "sets these; without it they must not be set"
    )


def check_processes(processes: int, place: RankPlace | None, env: Mapping[str, str]) -> None:
    if not 1 <= processes <= MOST:
        raise ValueError(f"--processes {processes} must be from 1 to {MOST}")
    if place is not None and STORE not in env:
        raise ValueError(
            f"--processes {processes}: torchrun has started {place.size} processes already. Omit "
            "--processes, or torchrun"
        )


def is_restarted(env: Mapping[str, str]) -> bool:
    """True if torchrun has started this process in place of one that failed."""
    return env.get("TORCHELASTIC_RESTART_COUNT", "0") != "0"


def launch(argv: Sequence[str], processes: int) -> int:
    """Runs `lightconv` with these arguments in that many processes; returns one exit code."""
    debug = ["--debug"] if "--debug" in sys.argv else []  # cli.main has removed it from argv
    command = [sys.executable, "-m", "lightconv", *argv, *debug]
    with _store() as (path, files):
        env, note = rank_environment(os.environ, processes, path)
        tell(note)

        def begun(number: int) -> bool:
            key = TRAINING if number == signal.SIGINT else MET
            return key.encode() in path.read_bytes()

        with Ranks(processes, lambda own: spawn(command, {**env, **own}, files), begun) as ranks:
            return ranks.wait()


@contextmanager
def _store() -> Iterator[tuple[Path, tuple[int, ...]]]:
    """A file for the ranks, and its descriptor; on Linux it has no name and is gone with them.

    A rank that looks for a file that was removed waits for minutes, and ends with nobody.
    """
    if not hasattr(os, "memfd_create"):
        with tempfile.TemporaryDirectory(prefix="lightconv-") as folder:
            yield Path(folder) / "store", ()
        return
    file = os.memfd_create("lightconv-store")
    try:
        yield Path(f"/proc/self/fd/{file}"), (file,)
    finally:
        os.close(file)


def spawn(
    command: Sequence[str], env: Mapping[str, str], files: Sequence[int] = ()
) -> "subprocess.Popen[bytes]":
    """Starts a rank in its own session: Ctrl-C at the terminal reaches the launcher only."""
    return subprocess.Popen(
        command, env=env, stdin=subprocess.DEVNULL, start_new_session=True, pass_fds=files
    )


def rank_environment(
    env: Mapping[str, str], processes: int, store: Path
) -> tuple[dict[str, str], str]:
    """Environment of all ranks on this machine, and a line about their threads."""
    found = {**env, STORE: str(store), PARENT: str(os.getpid())}
    cores = count_cores()
    threads = found.setdefault("OMP_NUM_THREADS", str(max(1, cores // processes)))
    loops = [name for _, name in socket.if_nameindex() if name.startswith("lo")]
    if loops:
        # The ranks communicate on this machine only.
        found.setdefault("GLOO_SOCKET_IFNAME", loops[0])
    plural = "" if threads == "1" else "s"
    return found, (
        f"{processes} processes with {threads} thread{plural} each on {cores} processors; "
        "OMP_NUM_THREADS sets another number"
    )


class Ranks(ExitStack):
    """Processes of one run; a context manager that leaves none of them behind.

    start  starts one, given the environment variables that only it has
    begun  true once they can save after that signal; before that it ends them at once
    grace  seconds that the others have once one has failed or the first has ended
    """

    def __init__(
        self,
        processes: int,
        start: "Callable[[Mapping[str, str]], subprocess.Popen[bytes]]",
        begun: Callable[[int], bool] = lambda number: True,
        *,
        grace: float = 30.0,
    ) -> None:
        super().__init__()
        self.processes = processes
        self.grace = grace
        self._start, self._begun = start, begun
        self._running: dict[int, subprocess.Popen[bytes]] = {}  # by rank
        self._codes: dict[int, int] = {}  # by rank, in the order of their ends
        self._signals: list[int] = []  # received, not yet passed on
        self._passed: list[int] = []
        self._early = 0  # the signal that came before they had begun
        self._ending: set[int] = set()  # ranks that were told to end because another has failed
        self._deadline = math.inf

    def __enter__(self) -> Self:
        self.enter_context(handled(lambda number, frame: self._signals.append(number)))
        sizes = dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE"), str(self.processes))
        try:
            for rank in range(self.processes):
                own = dict.fromkeys(("RANK", "LOCAL_RANK"), str(rank))
                self._running[rank] = process = self._start({**own, **sizes})
                self.callback(process.wait)
                self.callback(process.kill)
        except BaseException:
            self.close()
            raise
        return self

    def wait(self) -> int:
        """Waits for all; signals are passed on, and a failure of one ends the others."""
        while self._running:
            self._pass_on()
            self._collect()
            if time.monotonic() > self._deadline:
                self._send(signal.SIGKILL)
            time.sleep(PAUSE)
        return self._conclude()

    def _pass_on(self) -> None:
        while self._signals:
            number = self._signals.pop(0)
            self._passed.append(number)
            if not self._begun(number):
                self._early = number
            if self._early or self._passed.count(signal.SIGINT) > 1:
                self._send(signal.SIGKILL)
            elif number == signal.SIGINT and 0 in self._running:
                # The ranks agree on a stop among themselves.
                self._running[0].send_signal(number)
            else:
                self._send(number)

    def _send(self, number: int) -> None:
        for process in self._running.values():
            process.send_signal(number)

    def _collect(self) -> None:
        for rank, process in list(self._running.items()):
            code = process.poll()
            if code is None:
                continue
            del self._running[rank]
            told = rank in self._ending and code in (EXIT_STOPPED, -signal.SIGTERM)
            self._codes[rank] = EXIT_LOST if told else code
            # Rank 0 may still be writing when others end: that starts no deadline.
            saved = (0, EXIT_STOPPED, EXIT_INTERRUPT)
            if self._deadline == math.inf and (rank == 0 or code not in saved):
                self._deadline = time.monotonic() + self.grace
                if code:
                    # A rank that has not met the others yet would not notice.
                    self._ending = set(self._running)
                    self._send(signal.SIGTERM)

    def _conclude(self) -> int:
        if self._early or self._passed.count(signal.SIGINT) > 1:
            return 128 + (self._early or signal.SIGINT)
        bad = [(rank, code) for rank, code in self._codes.items() if code]
        spoken = [code for _, code in bad if code > 0 and code != EXIT_LOST]
        killed = [(rank, -code) for rank, code in bad if code < 0]
        if not bad or spoken:
            return spoken[0] if spoken else 0
        if not killed:
            tell("error: the processes lost contact with each other. The same command resumes")
            return EXIT_FAILURE
        rank, number = killed[0]
        if number in self._passed:
            return 128 + number  # the signal came before the rank had a handler
        name = signal.Signals(number).name + ", as when memory runs out" * (number == 9)
        who = f"process {rank} of {self.processes} was ended by {name}"
        tell(f"error: {who}. The same command resumes from the last checkpoint")
        return EXIT_FAILURE
