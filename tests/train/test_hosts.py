"""R20: two machines that train together by torchrun, as network namespaces on this one."""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.harness.examples import fingerprint, model_config, prepare, write_recipe
from tests.train.test_launch import ENV

STEPS, EACH = 1200, 100
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


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[tuple[Host, Host]]:
    if shutil.which("ip") is None:
        pytest.skip("there is no program ip (package iproute2), so there are no two machines")
    changes: dict[str, Any] = {"max_steps": STEPS, "save_every": 20, "log_every": 10}
    recipe = write_recipe(tmp_path / "recipe.json", model_config(), **changes)
    words = ["train", str(recipe), "--data", str(prepare(tmp_path / "data"))]
    whole = [*words, "--out", str(tmp_path / "whole"), "--processes", "2"]
    found = tuple(Host(n, tmp_path, [*words, "--out", str(tmp_path / "run")]) for n in (0, 1))
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
        done = subprocess.run(
            [sys.executable, "-m", "lightconv", *whole], env=ENV, capture_output=True, check=False
        )
        assert done.returncode == 0, done.stderr
        yield found[0], found[1]
    finally:
        for host in found:
            with suppress(subprocess.CalledProcessError):
                host.kill()
            subprocess.run(["ip", "netns", "del", host.name], capture_output=True, check=False)


def last_step(run: Path) -> int:
    path = run / "log.jsonl"
    return path.read_bytes().count(b"\n") * 10 if path.exists() else 0


@pytest.mark.parametrize(
    "faults, seconds",
    [
        (["cut", "second"], 5.0),
        pytest.param(["cut", "first", "second", "both"] * 5, 30.0, marks=pytest.mark.slow),
    ],
)
def test_two_machines_with_faults(
    faults: list[str], seconds: float, hosts: tuple[Host, Host], tmp_path: Path
) -> None:
    """R20: the link is cut, one machine or both die; the run ends as one without any fault."""
    run, begun = tmp_path / "run", time.monotonic()
    for place, fault in enumerate([*faults, ""]):
        step, deadline = last_step(run), time.monotonic() + LONGEST
        # The fault comes in the middle of training; torchrun may be starting, too.
        while last_step(run) < step + STEPS // (2 + len(faults)) or not fault:
            codes = [host.run() for host in hosts]
            if codes == [0, 0]:
                break
            said = "".join(host.said.read_text()[-3000:] for host in hosts)
            assert time.monotonic() < deadline, f"fault {place}, step {last_step(run)}: {said}"
            time.sleep(0.02)
        assert not fault or codes != [0, 0], "the run has ended before its faults"
        print(f"{time.monotonic() - begun:.0f} s, step {last_step(run)}: {fault}", flush=True)
        if fault == "cut":
            hosts[place % 2].connect(False)
            time.sleep(seconds)
            hosts[place % 2].connect(True)
        for host in {"first": hosts[:1], "second": hosts[1:], "both": hosts}.get(fault, ()):
            host.kill()
    print(f"{len(faults)} faults in {time.monotonic() - begun:.0f} s")
    assert fingerprint(run) == fingerprint(tmp_path / "whole")
