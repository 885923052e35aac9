"""`--processes N`: what ranks are told, how they end, and that none is left behind."""

import json
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from lightconv.train import launch
from lightconv.train.checkpoints import Checkpoints
from lightconv.train.launch import EXIT_LOST, STORE, RankPlace, Ranks, Stop, find_place, spawn
from tests.harness.examples import prepare, small_config, write_recipe

ROOT = Path(__file__).parent.parent.parent
ENV = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])}


# --- Where a process stands


def test_the_place_is_what_torchrun_says() -> None:
    assert find_place({}) is None
    assert find_place({"RANK": "3"}) is None
    full = {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4"}
    assert find_place(full) == RankPlace(5, 8, 1, 4)
    assert find_place({"RANK": "1", "WORLD_SIZE": "2"}) == RankPlace(1, 2, 1, 2)
    for count, restarted in (("0", False), ("2", True)):
        assert launch.is_restarted({"TORCHELASTIC_RESTART_COUNT": count}) == restarted
    assert not launch.is_restarted({})


@pytest.mark.parametrize(
    "name, text",
    [
        ("RANK", "x"),
        ("RANK", "2"),
        ("WORLD_SIZE", "-2"),
        ("WORLD_SIZE", "9" * 99),
        ("LOCAL_RANK", "²"),
        ("LOCAL_WORLD_SIZE", "3"),
    ],
)
def test_a_place_that_cannot_be(name: str, text: str) -> None:
    with pytest.raises(ValueError, match=f"{name}='{text[:60]}'.*expected whole numbers"):
        find_place({"RANK": "1", "WORLD_SIZE": "2", name: text})


def test_how_many_processes() -> None:
    launch.check_processes(2, None, {})
    launch.check_processes(2, RankPlace(0, 2, 0, 2), {STORE: "/tmp/x"})
    for number in (0, -1, 5000):
        with pytest.raises(ValueError, match=f"--processes {number} must be from 1 to"):
            launch.check_processes(number, None, {})
    with pytest.raises(ValueError, match="torchrun has started 4 processes already"):
        launch.check_processes(2, RankPlace(0, 4, 0, 4), {})


def test_threads_are_divided(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    for processes, threads in ((2, "4"), (3, "2"), (16, "1")):
        env, note = launch.rank_environment({"A": "b"}, processes, tmp_path)
        assert (env["OMP_NUM_THREADS"], env["A"], env[STORE]) == (threads, "b", str(tmp_path))
        assert note.startswith(f"{processes} processes with {threads} thread")
    env, note = launch.rank_environment({"OMP_NUM_THREADS": "5"}, 2, tmp_path)
    assert env["OMP_NUM_THREADS"] == "5"
    assert note.startswith("2 processes with 5 threads each on 8 processors")


# --- Requests to stop


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_is_noted(number: signal.Signals) -> None:
    with Stop() as stop:
        for _ in range(2):
            os.kill(os.getpid(), number)
            assert stop.code == 75


def test_handlers_are_put_back_and_what_is_ignored_stays_ignored() -> None:
    first = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    before = [signal.getsignal(number) for number in numbers]
    try:
        with pytest.raises(KeyError), Stop() as stop:
            os.kill(os.getpid(), signal.SIGHUP)
            assert stop.code == 0
            assert signal.getsignal(signal.SIGTERM) != before[0]
            raise KeyError
        assert [signal.getsignal(number) for number in numbers] == before
    finally:
        signal.signal(signal.SIGHUP, first)


@pytest.mark.parametrize("before", [[], [signal.SIGTERM]])
def test_the_second_interrupt_is_one(
    before: list[signal.Signals], capfd: pytest.CaptureFixture[str]
) -> None:
    with Stop() as stop:
        for number in (*before, signal.SIGINT):
            os.kill(os.getpid(), number)
        assert stop.code == 130
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert "Ctrl-C once more quits at once" in capfd.readouterr().err


def test_the_clock() -> None:
    for seconds, code in ((None, 0), (60.0, 0), (0.05, 75)):
        with Stop(seconds) as stop:
            time.sleep(0.06)
            assert stop.code == code


def test_another_thread_has_the_clock_alone() -> None:
    codes = []
    thread = threading.Thread(target=lambda: codes.append(Stop(max_seconds=0.0).__enter__().code))
    thread.start()
    thread.join(30)
    assert codes == [75]


def test_the_second_interrupt_can_end_the_process() -> None:
    code = """
import os, signal; from lightconv.train.launch import Stop
with Stop(hard=True, quiet=True):
    os.kill(os.getpid(), signal.SIGINT)
    try:
        os.kill(os.getpid(), signal.SIGINT)
    finally:
        print('still there')
"""
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, b"", b"")


# --- How they end


def scripts(*codes: str) -> Callable[[Any], subprocess.Popen[bytes]]:
    """Ranks that run these lines of Python."""

    def start(own: Any) -> subprocess.Popen[bytes]:
        code = "import os, signal, sys, time\n" + codes[int(own["RANK"])]
        return spawn([sys.executable, "-S", "-c", code], {**os.environ, **own})

    return start


@pytest.mark.parametrize(
    "codes, code, words",
    [
        (["", ""], 0, ""),
        (["sys.exit(3)", "sys.exit(3)"], 3, ""),
        # Late ones are ended, but not while the first, which writes, is among them.
        (["time.sleep(60)", "sys.exit(2)"], 2, ""),
        (["sys.exit(75)", "time.sleep(60)"], 75, ""),
        (["time.sleep(1); sys.exit(75)", "sys.exit(75)"], 75, ""),
        (["time.sleep(1)", ""], 0, ""),
        # Who went first without a word.
        (
            [f"time.sleep(0.3); sys.exit({EXIT_LOST})", "os.kill(os.getpid(), 9)"],
            1,
            "error: process 1 of 2 was ended by SIGKILL, as when memory runs out. The same",
        ),
        (["os.kill(os.getpid(), 11)", f"sys.exit({EXIT_LOST})"], 1, "process 0 of 2 was ended by"),
        ([f"sys.exit({EXIT_LOST})"] * 2, 1, "error: the processes lost contact"),
        # A rank that is told to stop for that does not hide it.
        (
            [
                "signal.signal(15, lambda *_: sys.exit(75)); time.sleep(60)",
                "time.sleep(0.3); os.kill(os.getpid(), 9)",
            ],
            1,
            "process 1 of 2 was ended by SIGKILL",
        ),
        # One could still say it.
        ([f"time.sleep(0.2); sys.exit({EXIT_LOST})", "sys.exit(1)"], 1, ""),
    ],
)
def test_one_exit_code(
    codes: list[str], code: int, words: str, capfd: pytest.CaptureFixture[str]
) -> None:
    began = time.monotonic()
    with Ranks(2, scripts(*codes), grace=0.5) as ranks:
        assert ranks.wait() == code
    assert time.monotonic() - began < 30.0
    err = capfd.readouterr().err
    assert words in err
    assert err.count("\n") == (words != "")


def test_none_is_left_when_one_cannot_be_started(tmp_path: Path) -> None:
    pids = []

    def start(own: Any) -> subprocess.Popen[bytes]:
        if own["RANK"] == "1":
            raise OSError("no more processes")
        process = scripts("time.sleep(60)")(own)
        pids.append(process.pid)
        return process

    with pytest.raises(OSError, match="no more"), Ranks(2, start):
        pass
    with pytest.raises(ProcessLookupError):
        os.kill(pids[0], 0)


# --- Signals, to a launcher in a process of its own

LAUNCHER = """
import os, sys
from lightconv.train.launch import Ranks, rank_environment, spawn
from pathlib import Path
folder = Path(sys.argv[1])
env, _ = rank_environment(os.environ, 2, folder / "store" / "file")
command = [sys.executable, "-c", (folder / "rank.py").read_text(), str(folder)]
with Ranks(2, lambda own: spawn(command, {**env, **own}), grace=1.0) as ranks:
    code = ranks.wait()
sys.exit(code)
"""
# Says that it is ready, then which signals it got; two of them end it.
RANK = """
import os, signal, sys, time
from pathlib import Path
from lightconv.processes import PARENT, watch_parent
folder, rank = Path(sys.argv[1]), os.environ["RANK"]
got = []
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    signal.signal(number, lambda number, frame: got.append(number))
watch_parent(int(os.environ[PARENT]))
(folder / f"{rank}.pid").write_text(str(os.getpid()))
while not got and not (folder / "stop").exists():
    time.sleep(0.01)
(folder / f"{rank}.got").write_text(str(got))
(folder / "stop").touch()
if "stubborn" in os.environ:
    time.sleep(60)
sys.exit(75)
"""


@pytest.fixture
def launched(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    processes = []

    def start(**env: str) -> subprocess.Popen[str]:
        (tmp_path / "rank.py").write_text(RANK)
        (tmp_path / "store").mkdir()
        process = subprocess.Popen(
            [sys.executable, "-c", LAUNCHER, str(tmp_path)], env={**ENV, **env}, text=True
        )
        processes.append(process)
        wait_for(lambda: all(read(tmp_path / f"{rank}.pid") for rank in (0, 1)))
        return process

    yield start
    for process in processes:
        process.kill()
        process.wait(30)


def read(path: Path) -> str:
    return path.read_text() if path.exists() else ""


def wait_for(what: Callable[[], object], seconds: float = 30.0) -> None:
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end
        time.sleep(0.01)


def is_gone(pid: int) -> bool:
    """Whether a process has ended; one that nobody waits for still has a number."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


@pytest.mark.parametrize(
    "number, got",
    [
        (signal.SIGTERM, ["[15]", "[15]"]),
        (signal.SIGHUP, ["[1]", "[1]"]),
        # The ranks agree among themselves.
        (signal.SIGINT, ["[2]", "[]"]),
    ],
)
def test_signals_are_passed_on(
    number: int, got: list[str], launched: Callable[..., Any], tmp_path: Path
) -> None:
    launcher = launched()
    launcher.send_signal(number)
    assert launcher.wait(30) == 75
    found = [read(tmp_path / f"{rank}.got") for rank in (0, 1)]
    assert found[0] == got[0]
    assert found[1] in (got[1], "[]")


def test_the_second_ctrl_c_ends_all_at_once(launched: Callable[..., Any], tmp_path: Path) -> None:
    launcher = launched(stubborn="1")
    launcher.send_signal(signal.SIGINT)
    wait_for(lambda: read(tmp_path / "0.got"))
    launcher.send_signal(signal.SIGINT)
    assert launcher.wait(30) == 130
    assert all(is_gone(int(read(tmp_path / f"{rank}.pid"))) for rank in (0, 1))


def test_a_killed_launcher_leaves_nothing(launched: Callable[..., Any], tmp_path: Path) -> None:
    launcher = launched()
    launcher.kill()
    launcher.wait(30)
    pids = [int(read(tmp_path / f"{rank}.pid")) for rank in (0, 1)]
    wait_for(lambda: all(is_gone(pid) for pid in pids), 2.0)
    assert not read(tmp_path / "0.got") + read(tmp_path / "1.got"), "killed, not asked"


def test_a_signal_before_they_have_met_ends_all_at_once() -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        deaf = "signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(60)"
        with Ranks(2, scripts(deaf, deaf), lambda number: False) as ranks:
            threading.Timer(0.3, os.kill, (os.getpid(), number)).start()
            began = time.monotonic()
            assert ranks.wait() == 128 + number
        assert time.monotonic() - began < 10.0


# --- All of it


def command(folder: Path, **changes: Any) -> list[str]:
    never = dict.fromkeys(("max_steps", "save_every", "validate_every"), 100_000)
    fields = {"log_every": 1, "tokens_per_update": 92, **never, **changes}
    recipe = write_recipe(folder / "recipe.json", small_config(), **fields)
    data = prepare(folder / "data")
    run = ["train", str(recipe), "--data", str(data), "--out", str(folder / "run")]
    return [sys.executable, "-m", "lightconv", *run, "--processes", "2"]


def test_a_run_in_two_processes(tmp_path: Path) -> None:
    env = {name: value for name, value in ENV.items() if name != "OMP_NUM_THREADS"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    launcher = subprocess.Popen(command(tmp_path), env=env, text=True, **pipes)
    log = tmp_path / "run" / "log.jsonl"
    wait_for(lambda: read(log).count("\n") > 3, 60.0)
    launcher.send_signal(signal.SIGINT)
    out, err = launcher.communicate(timeout=60)
    assert launcher.returncode == 130, err
    lines = err.splitlines()
    assert lines[0].startswith("2 processes with ")
    assert lines[-1].startswith("stopped at step ")
    assert err.count("Ctrl-C once more quits at once") == 1
    assert "at most 60 positions on 2 devices" in out
    (step,) = Checkpoints(tmp_path / "run" / "checkpoints").steps()
    assert json.loads(read(log).splitlines()[-1])["step"] == step


def marked(mark: str) -> list[int]:
    """Processes that have inherited this mark in their environment."""
    found = []
    for path in Path("/proc").iterdir():
        with suppress(OSError):
            if path.name.isdigit() and mark.encode() in (path / "environ").read_bytes():
                found += [] if is_gone(int(path.name)) else [int(path.name)]
    return found


@pytest.fixture
def busy() -> Iterator[None]:
    """Another program that wants a core."""
    with subprocess.Popen([sys.executable, "-S", "-c", "while True: pass"]) as process:
        yield
        process.kill()


def seconds_until(done: Callable[[], bool], most: float) -> float:
    """Time until then, without times at which this process itself was stopped."""
    spent, last = 0.0, time.monotonic()
    while not done():
        time.sleep(0.01)
        last, gap = time.monotonic(), time.monotonic() - last
        spent += gap if gap < 1.0 else 0.0
        assert spent < most
    return spent


@pytest.mark.parametrize(
    "number, tries",
    [
        (signal.SIGKILL, 3),
        (signal.SIGINT, 4),
        pytest.param(signal.SIGKILL, 200, marks=pytest.mark.slow),
        pytest.param(signal.SIGINT, 100, marks=pytest.mark.slow),
    ],
)
def test_a_launcher_ends_at_any_moment(
    number: signal.Signals, tries: int, busy: None, tmp_path: Path
) -> None:
    """R19: after 2 s no process is left, nobody waits for the dead, and there is no traceback."""
    mark = f"lightconv-test-{os.getpid()}-{tmp_path}"
    env, said, rng = {**ENV, "MARK": mark}, tmp_path / "stderr", random.Random(number + tries)
    slowest = 0.0
    for attempt in range(tries):
        # An equal share of the tries in each part of a start, which takes about 4 s.
        seconds = 6.0 * (attempt + rng.random()) / tries
        arguments = [*command(tmp_path), "--overwrite"]
        with said.open("w") as file:
            launcher = subprocess.Popen(arguments, env=env, stderr=file, stdout=subprocess.DEVNULL)
        time.sleep(seconds)
        launcher.send_signal(number)
        spent = seconds_until(lambda process=launcher: process.poll() is not None, 20.0)
        # Without a handler yet, Python dies of the signal, or says so and ends with 1.
        code = launcher.returncode
        early = number == signal.SIGINT and seconds < 0.5 and "KeyboardInterrupt" in read(said)
        assert code in (-number, 128 + number) or (early and code == 1), (seconds, read(said))
        slowest = max(slowest, spent + seconds_until(lambda: not marked(mark), 20.0))
        assert slowest < 2.0, f"{number.name} after {seconds:.2f} s: gone after {slowest:.2f} s"
        # Python's own start, before the first line of the command, is not quiet.
        places = re.findall(r'File ".*/lightconv/(?!__init__\.py)', said.read_text())
        assert not places, f"{number.name} after {seconds:.2f} s: {said.read_text()}"
    print(f"{tries} times {number.name}: the slowest was gone after {slowest:.2f} s")


@pytest.mark.slow
@pytest.mark.parametrize("who", ["launcher", "first", "second"])
def test_killed_processes_leave_a_run_to_go_on_with(who: str, tmp_path: Path) -> None:
    arguments = command(tmp_path, save_every=5)
    launcher = subprocess.Popen(arguments, env=ENV, text=True, stderr=subprocess.PIPE)
    log = tmp_path / "run" / "log.jsonl"
    wait_for(lambda: read(log).count("\n") > 10, 60.0)
    listed = Path(f"/proc/{launcher.pid}/task/{launcher.pid}/children").read_text().split()
    ranks = [int(pid) for pid in listed]
    victim = {"launcher": launcher.pid, "first": ranks[0], "second": ranks[1]}[who]
    os.kill(victim, signal.SIGKILL)
    _, err = launcher.communicate(timeout=120)  # the ranks, too, have stderr
    code = launcher.returncode
    wait_for(lambda: all(is_gone(pid) for pid in ranks), 60.0)
    if who == "launcher":
        assert code == -9
        assert "stopped at step " not in err, "killed as the launcher was"
    else:
        assert code == 1
        number = ["first", "second"].index(who)
        assert f"error: process {number} of 2 was ended by SIGKILL" in err.splitlines()[-1]
        assert err.count("error") == 1
    steps = Checkpoints(tmp_path / "run" / "checkpoints").steps()
    again = [*arguments, "--set", f"train.max_steps={steps[-1] + 5}", "--allow-changes"]
    rest = subprocess.run(again, env=ENV, text=True, capture_output=True, timeout=120, check=False)
    assert rest.returncode == 0, rest.stderr
    assert "resumed from step " in rest.stderr
