"""R20: two machines that train together by torchrun, as network namespaces on this one.

The 20 runs of the slow test take a minute each; some of them:
`python -m pytest -m slow tests/train/test_hosts.py -k "run0 or run1"`.
"""

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.harness.examples import fingerprint, model_config, prepare, write_recipe
from tests.train.test_launch import ENV

STEPS, RUNS = 600, 20
KINDS = ("cut", "first", "second", "both")
# Seconds for a start, a fault and what is left of a run, on a busy machine.
LONGEST = 900.0
ADDRESSES = ("10.177.20.1", "10.177.20.2")


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)


class Host:
    """A machine: its network, and torchrun, which is started again whenever it has failed."""

    def __init__(self, number: int, folder: Path, arguments: list[str]) -> None:
        self.name, self.link = f"lc{os.getpid()}-{number}", f"lc{os.getpid()}l{number}"
        self.said = folder / f"host{number}.txt"
        agent = ["--nnodes=2", "--nproc-per-node=1", "--rdzv-backend=c10d", "--rdzv-id=tests"]
        agent += [f"--rdzv-endpoint={ADDRESSES[0]}:29471", f"--local-addr={ADDRESSES[number]}"]
        # The name of the machine is that of both.
        agent += [f"--rdzv-conf=is_host={1 - number},read_timeout=10"]
        agent += ["--max-restarts=50", "--monitor-interval=0.1", "-m", "lightconv"]
        command = [sys.executable, "-m", "torch.distributed.run", *agent, *arguments]
        self.command = ["ip", "netns", "exec", self.name, *command]
        self.env = {**ENV, "GLOO_SOCKET_IFNAME": self.link, "OMP_NUM_THREADS": "1"}
        self.agent: subprocess.Popen[bytes] | None = None

    def run(self) -> int | None:
        """The exit code of torchrun, once it has succeeded."""
        if self.agent is None or self.agent.poll():
            with self.said.open("ab") as said:
                self.agent = subprocess.Popen(
                    self.command, env=self.env, stdout=said, stderr=subprocess.STDOUT
                )
        return self.agent.poll()

    def kill(self) -> None:
        """As by a power cut: nobody is told, everything is gone."""
        self.connect(False)
        done = subprocess.run(["ip", "netns", "pids", self.name], capture_output=True, check=False)
        for pid in done.stdout.split():
            with suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
        if self.agent is not None:
            self.agent.wait()
        self.connect(True)

    def connect(self, up: bool) -> None:
        ip("-n", self.name, "link", "set", self.link, "up" if up else "down")


class Task(NamedTuple):
    """Arguments of the run, and the fingerprint of one without any fault."""

    arguments: list[str]
    expected: dict[str, Any]


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> Task:
    folder = tmp_path_factory.mktemp("whole")
    changes: dict[str, Any] = {"max_steps": STEPS, "save_every": 20, "log_every": 10}
    recipe = write_recipe(folder / "recipe.json", model_config(), **changes)
    words = ["train", str(recipe), "--data", str(prepare(folder / "data"))]
    whole = [*words, "--out", str(folder / "run"), "--processes", "2"]
    done = subprocess.run(
        [sys.executable, "-m", "lightconv", *whole], env=ENV, capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return Task(words, fingerprint(folder / "run"))


@pytest.fixture
def hosts(task: Task, tmp_path: Path) -> Iterator[tuple[Host, Host]]:
    if shutil.which("ip") is None:
        pytest.skip("there is no program ip (package iproute2), so there are no two machines")
    words = [*task.arguments, "--out", str(tmp_path / "run")]
    found = tuple(Host(number, tmp_path, words) for number in (0, 1))
    try:
        try:
            for host in found:
                ip("netns", "add", host.name)
            ends = ["name", found[0].link, "type", "veth", "peer", "name", found[1].link]
            ip("link", "add", *ends)
            for host, address in zip(found, ADDRESSES, strict=True):
                ip("link", "set", host.link, "netns", host.name)
                ip("-n", host.name, "address", "add", f"{address}/24", "dev", host.link)
                ip("-n", host.name, "link", "set", "lo", "up")
                host.connect(True)
        except subprocess.CalledProcessError as error:
            pytest.skip(f"this machine cannot have network namespaces: {error.stderr.strip()}")
        yield found[0], found[1]
    finally:
        for host in found:
            with suppress(subprocess.CalledProcessError):
                host.kill()
            subprocess.run(["ip", "netns", "del", host.name], capture_output=True, check=False)


def last_step(run: Path) -> int:
    path = run / "log.jsonl"
    return path.read_bytes().count(b'"train"') * 10 if path.exists() else 0


@pytest.mark.parametrize(
    "number, seconds",
    [
        pytest.param(2, 5.0, id="quick"),
        *(pytest.param(n, 30.0, id=f"run{n}", marks=pytest.mark.slow) for n in range(RUNS)),
    ],
)
def test_two_machines_with_faults(
    number: int, seconds: float, task: Task, hosts: tuple[Host, Host], tmp_path: Path
) -> None:
    """R20: the link is cut, one machine or both die; the run ends as one without any fault.

    Each run has two faults, and all pairs have their turn.
    """
    run, began = tmp_path / "run", time.monotonic()
    faults = KINDS[number % 4], KINDS[number // 4 % 4]
    chance = random.Random(number)
    for place, fault in enumerate([*faults, ""]):
        step, deadline = last_step(run), time.monotonic() + LONGEST
        # The fault comes in the middle of training; torchrun may be starting, too.
        later = chance.randrange(STEPS // 10, STEPS // 3)
        while last_step(run) < step + later or not fault:
            codes = [host.run() for host in hosts]
            if codes == [0, 0]:
                break
            said = "".join(host.said.read_text()[-3000:] for host in hosts)
            assert time.monotonic() < deadline, f"fault {place}, step {last_step(run)}: {said}"
            time.sleep(0.02)
        assert not fault or codes != [0, 0], "the run has ended before its faults"
        print(f"{time.monotonic() - began:.0f} s, step {last_step(run)}: {fault}", flush=True)
        if fault == "cut":
            hosts[place % 2].connect(False)
            time.sleep(seconds)
            hosts[place % 2].connect(True)
        for host in {"first": hosts[:1], "second": hosts[1:], "both": hosts}.get(fault, ()):
            host.kill()
    assert fingerprint(run) == task.expected
