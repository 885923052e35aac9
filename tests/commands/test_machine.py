"""`lightconv selftest`: one JSON line for each promise, and the exit code."""

import json
from pathlib import Path
from typing import Any

import pytest

from lightconv import selftest
from lightconv.selftest import Promise, expect
from tests.commands.conftest import Run


def holds(folder: Path, full: bool) -> dict[str, Any]:
    (folder / "file").write_text("x")
    return {"full": full, "folder": str(folder)}


def breaks(folder: Path, full: bool) -> dict[str, Any]:
    expect(folder.is_dir(), "there is a folder")
    expect([], "one is not two")
    return {}


def fails(folder: Path, full: bool) -> dict[str, Any]:
    raise KeyError("x")


@pytest.fixture(autouse=True)
def three(monkeypatch: pytest.MonkeyPatch) -> None:
    checks = {"A": holds, "B": breaks, "C": fails}
    found = tuple(Promise(name, f"text of {name}", check) for name, check in checks.items())
    monkeypatch.setattr(selftest, "PROMISES", found)


def test_a_line_for_each(run: Run) -> None:
    done = run("selftest")
    a, b, c = map(json.loads, done.out.splitlines())
    assert (a["promise"], a["text"], a["holds"], a["full"]) == ("A", "text of A", True, False)
    assert a["seconds"] >= 0.0 and not Path(a["folder"]).exists()
    assert (b["holds"], b["broken"]) == (False, "one is not two")
    assert (c["holds"], c["broken"]) == (False, "KeyError: 'x'")
    assert (done.code, done.err) == (1, "2 of 3 promises are broken\n")


def test_some_of_them(run: Run) -> None:
    done = run("selftest", "--full", "--only", "A")
    assert done.code == 0 and json.loads(done.out)["full"] is True
    assert run("selftest", "--only", "R99").refused("--only R99, expected one of A, B, C")
    listed = "A    text of A\nB    text of B\nC    text of C\n"
    assert run("selftest", "--list") == (0, listed, "")
