"""Bulk translation on a local Ray: a worker killed, then the whole job killed and run again."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import lightconv

GOLDEN = Path(__file__).parents[1] / "golden"
MODEL = GOLDEN / "end" / "pairs"
LINES = (GOLDEN / "texts" / "train.en").read_text().splitlines()
COUNT = 50_000


def _start(folder: Path) -> subprocess.Popen[bytes]:
    names = [str(folder / name) for name in ("in.en", "out", "done")]
    command = [sys.executable, "-m", "tests.serve.ray_job", str(MODEL), *names]
    environment = {**os.environ, "RAY_TMPDIR": "/tmp", "OMP_NUM_THREADS": "1"}
    with (folder / "log").open("ab") as log:
        return subprocess.Popen(
            command, stdout=log, stderr=log, env=environment, start_new_session=True
        )


def _processes(session: int) -> dict[int, str]:
    """Processes of the job by number: what each calls itself."""
    found = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            if int(path.read_text().rpartition(")")[2].split()[3]) == session:
                found[int(path.parent.name)] = (path.parent / "cmdline").read_text()
        except OSError:
            continue
    return found


def _wait(folder: Path, job: subprocess.Popen[bytes], parts: int) -> None:
    """Returns when that many parts are written."""
    end = time.monotonic() + 300
    while len(list((folder / "out").glob("*.parquet"))) < parts:
        assert job.poll() is None and time.monotonic() < end, (folder / "log").read_text()
        time.sleep(0.02)


@pytest.mark.slow
def test_every_line_once_whoever_dies(tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="the extra `ray`")
    from lightconv.ray import write_lines

    lines = [LINES[i * 7919 % len(LINES)] for i in range(COUNT)]
    (tmp_path / "in.en").write_text("".join(f"{line}\n" for line in lines))
    job = _start(tmp_path)
    try:
        _wait(tmp_path, job, 1)
        engines = [pid for pid, name in _processes(job.pid).items() if "MapBatches" in name]
        assert engines, _processes(job.pid)
        os.kill(engines[0], signal.SIGKILL)
        _wait(tmp_path, job, 20)
        assert job.poll() is None
    finally:
        for pid in _processes(job.pid):
            os.kill(pid, signal.SIGKILL)
        job.wait()
    written = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").iterdir()}
    job = _start(tmp_path)
    assert job.wait(500) == 0, (tmp_path / "log").read_text()
    after = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").iterdir()}
    kept = written.items() & after.items()
    assert len(kept) >= 19  # Ray removes one that was written halfway
    assert write_lines(tmp_path / "out", tmp_path / "out.eo") == COUNT
    alone = dict(zip(LINES, lightconv.load(MODEL).translate(LINES), strict=True))
    assert (tmp_path / "out.eo").read_text().splitlines() == [alone[line] for line in lines]
