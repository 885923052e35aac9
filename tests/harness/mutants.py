"""Small faults of mutants.txt, one at a time in a copy of the tree: do the tests find each?

python -m tests.harness.mutants [PART OF A FILE'S PATH ...]
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[2]
LIMIT = 900.0  # seconds of the tests of one fault


class Mutant(NamedTuple):
    """Texts `old` and `new` of a file, and the tests that must fail; paths from the root."""

    file: str
    tests: tuple[str, ...]
    old: str
    new: str


def mutants() -> Iterator[Mutant]:
    _, *blocks = Path(__file__).with_suffix(".txt").read_text().strip().split("\n\n")
    for block in blocks:
        head, old, new = block.split("\n")
        file, _, tests = head.partition(": ")
        paths = tuple(f"tests/{test}" for test in tests.split())
        yield Mutant(f"src/lightconv/{file}", paths, old[2:], new[2:])


def copy_tree(to: Path) -> None:
    """The files that git tracks, or would if they were added."""
    command = ["git", "-C", str(ROOT), "ls-files", "-z", "-co", "--exclude-standard"]
    names = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    for name in filter(None, names.split("\0")):
        if (ROOT / name).exists():
            (to / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, to / name, follow_symlinks=False)


def failure(tree: Path, tests: Sequence[str], **more: str) -> str:
    """The first test that fails, or does not end; nothing if all pass."""
    env = {**os.environ, "PYTHONPATH": str(tree / "src"), "PYTHONDONTWRITEBYTECODE": "1", **more}
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *tests]
    how: dict[str, Any] = {"capture_output": True, "text": True, "timeout": LIMIT}
    try:
        done = subprocess.run(command, check=False, cwd=tree, env=env, **how)
    except subprocess.TimeoutExpired:
        return "a test does not end"
    if done.returncode not in (0, 1):
        raise RuntimeError(f"{tests}: pytest ends with {done.returncode}\n{done.stdout[-2000:]}")
    return "".join(re.findall(r"^(?:FAILED|ERROR) (\S*)", done.stdout, re.MULTILINE)[:1])


def main(*parts: str) -> int:
    chosen = [each for each in mutants() if any(part in each.file for part in parts or ("",))]
    with tempfile.TemporaryDirectory() as folder:
        tree, cache = Path(folder) / "tree", Path(folder) / "cache"
        copy_tree(tree)
        if failed := failure(tree, sorted({test for mutant in chosen for test in mutant.tests})):
            raise RuntimeError(f"{failed} fails without a fault")
        missed = 0
        for mutant in chosen:
            path = tree / mutant.file
            text = path.read_text()
            if text.count(mutant.old) != 1:
                raise ValueError(f"{mutant.file}: {mutant.old!r} must stand there once")
            path.write_text(text.replace(mutant.old, mutant.new))
            native = {"LIGHTCONV_CACHE": str(cache)} if path.suffix == ".h" else {}
            found = failure(tree, mutant.tests, **native)
            path.write_text(text)
            missed += not found
            print(f"{mutant.file}: {mutant.new}\n    {found or 'MISSED'}")
    print(f"found {len(chosen) - missed} of {len(chosen)}")
    return int(missed > 0)


if __name__ == "__main__":
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    sys.exit(main(*sys.argv[1:]))
