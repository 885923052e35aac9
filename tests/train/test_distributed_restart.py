"""R7: torchrun starts dead workers again, and the run goes on, bit for bit."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lightconv.train.launch import STORE
from tests.train.examples import fingerprint, model_config, prepare, write_recipe
from tests.train.ranks import ROOT, RankServer

# torchrun's own agent, in one process that forks its workers: they have everything imported. The
# worker is `lightconv train`, and says who it is.
AGENT = """
import json, os, sys
import torch._dynamo
from torch.distributed.launcher.api import LaunchConfig, elastic_launch
import lightconv.train.command, lightconv.train.distributed, lightconv.train.runner
from lightconv.cli import main

def work(folder, argv):
    name = f"{os.environ['TORCHELASTIC_RESTART_COUNT']}-{os.environ['RANK']}.pid"
    with open(os.path.join(folder, name), "w") as file:
        file.write(str(os.getpid()))
    code = main(argv)
    if code:
        os._exit(code)

folder, restarts, *argv = sys.argv[1:]
config = LaunchConfig(
    min_nodes=1, max_nodes=1, nproc_per_node=2, max_restarts=int(restarts), monitor_interval=0.05,
    rdzv_backend="c10d", rdzv_endpoint="localhost:0", run_id="test", start_method="fork",
)
elastic_launch(config, work)(folder, argv)
"""


def killed_and_restarted(rank_server: RankServer, folder: Path, kills: int) -> None:
    """Kills a worker of each attempt, the first or the second in turn, after some updates."""
    env = {name: value for name, value in os.environ.items() if name != STORE}
    env |= {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    env["PYTHONPATH"] = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    recipe = write_recipe(
        folder / "recipe.json", model_config(), max_steps=4 * kills + 8, save_every=2, log_every=1
    )
    command = ["train", str(recipe), "--data", str(prepare(folder / "data")), "--overwrite"]
    assert rank_server.run(*command, "--out", folder / "whole")[0]["code"] == 0
    run, pids = folder / "parts", folder / "pids"
    pids.mkdir()
    process = subprocess.Popen(
        [sys.executable, "-c", AGENT, str(pids), str(kills), *command, "--out", str(run)],
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    for attempt in range(kills):
        kill_one(process, run, pids, attempt)
    said, _ = process.communicate(timeout=200)
    assert process.returncode == 0, said
    assert len(list(pids.iterdir())) == 2 * (kills + 1)
    assert said.count("resumed from step ") == kills
    assert fingerprint(run) == fingerprint(folder / "whole")


def kill_one(process: "subprocess.Popen[str]", run: Path, pids: Path, attempt: int) -> None:
    end = time.monotonic() + 60.0
    victim = pids / f"{attempt}-{attempt % 2}.pid"
    while last_step(run) < 4 * attempt + 3 or not victim.exists():
        assert process.poll() is None and time.monotonic() < end
        time.sleep(0.005)
    os.kill(int(victim.read_text()), signal.SIGKILL)


def last_step(run: Path) -> int:
    path = run / "log.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    try:
        return int(json.loads(lines[-1])["step"]) if lines else 0
    except ValueError:
        return 0


def test_killed_twice(rank_server: RankServer, tmp_path: Path) -> None:
    killed_and_restarted(rank_server, tmp_path, 2)


@pytest.mark.slow
def test_killed_eight_times(rank_server: RankServer, tmp_path: Path) -> None:
    killed_and_restarted(rank_server, tmp_path, 8)
