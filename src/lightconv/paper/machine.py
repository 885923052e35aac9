"""Where a result comes from: the processor and the commit, never the name of a machine."""

import os
import platform
import subprocess
from pathlib import Path

import lightconv


def describe_processor() -> dict[str, str]:
    """Model and number of processors, Python."""
    return {
        "processor": _model() or platform.processor() or platform.machine(),
        "processors": str(_count()),
        "python": platform.python_version(),
    }


def find_commit() -> str | None:
    """The commit of the checkout that this package runs from; `+` behind it if it was changed.

    None where there is no checkout: an installed package may lie in somebody else's.
    """
    root = Path(lightconv.__file__).resolve().parents[2]
    if not (root / ".git").exists() or not (root / "src" / "lightconv").is_dir():
        return None
    try:
        commit = _git(root, "rev-parse", "--short=12", "HEAD")
        # What was written down beside the code, results for instance, changes nothing in it.
        changed = _git(root, "status", "--porcelain", "--", "src")
    except (OSError, subprocess.SubprocessError):
        return None
    return commit + ("+" if changed else "")


def _git(root: Path, *arguments: str) -> str:
    done = subprocess.run(
        ["git", "-C", str(root), *arguments],
        capture_output=True,
        text=True,
        check=True,
        timeout=30,
    )
    return done.stdout.strip()


def _model() -> str | None:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return None
    named = (line.partition(":") for line in lines)
    return next((value.strip() for name, _, value in named if name.strip() == "model name"), None)


def _count() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
