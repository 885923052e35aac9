"""torchrun's agent in one process that forks its workers, which have everything imported.

Run as `python -m tests.harness.agent FOLDER RESTARTS ARGUMENTS...`. Two workers run `lightconv`
with the arguments; each writes its process id to FOLDER/ATTEMPT-RANK.pid.
"""

import os
import sys
from collections.abc import Sequence
from pathlib import Path

RANKS = 2


def work(folder: str, argv: Sequence[str]) -> None:
    from lightconv.cli import main

    attempt, rank = os.environ["TORCHELASTIC_RESTART_COUNT"], os.environ["RANK"]
    (Path(folder) / f"{attempt}-{rank}.pid").write_text(str(os.getpid()))
    code = main(argv)
    if code:
        os._exit(code)


def serve(folder: str, restarts: int, argv: Sequence[str]) -> None:
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    import lightconv.commands.train
    import lightconv.train.distributed
    import lightconv.train.loop  # noqa: F401

    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=RANKS,
        max_restarts=restarts,
        monitor_interval=0.05,
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        run_id="tests",
        start_method="fork",
    )
    elastic_launch(config, work)(folder, argv)


if __name__ == "__main__":
    serve(sys.argv[1], int(sys.argv[2]), sys.argv[3:])
