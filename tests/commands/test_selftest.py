"""`lightconv selftest`: one JSON line for each promise, and the exit code."""

import json
from pathlib import Path
from typing import Any

import pytest

from lightconv import selftest
from lightconv.cli import main
from lightconv.selftest import Promise, expect


def holds(folder: Path, full: bool) -> dict[str, Any]:
    (folder / "file").write_text("x")
    return {"full": full, "folder": str(folder)}


def breaks(folder: Path, full: bool) -> dict[str, Any]:
    expect(folder.is_dir(), "there is a folder")
    expect([], "one is not two")
    return {}


def fails(folder: Path, full: bool) -> dict[str, Any]:
    raise KeyError("x")


@pytest.fixture
def three(monkeypatch: pytest.MonkeyPatch) -> None:
    checks = {"A": holds, "B": breaks, "C": fails}
    found = tuple(Promise(name, f"text of {name}", check) for name, check in checks.items())
    monkeypatch.setattr(selftest, "PROMISES", found)


@pytest.mark.usefixtures("three")
def test_a_line_for_each(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["selftest"]) == 1
    out, err = capsys.readouterr()
    a, b, c = map(json.loads, out.splitlines())
    assert (a["promise"], a["text"], a["holds"], a["full"]) == ("A", "text of A", True, False)
    assert a["seconds"] >= 0.0
    assert not Path(a["folder"]).exists()
    assert (b["holds"], b["broken"]) == (False, "one is not two")
    assert (c["holds"], c["broken"]) == (False, "KeyError: 'x'")
    assert err == "2 of 3 promises are broken\n"


@pytest.mark.usefixtures("three")
def test_some_of_them(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["selftest", "--full", "--only", "A"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert json.loads(line)["full"] is True
    assert main(["selftest", "--only", "R99"]) == 2
    assert "--only R99, expected one of A, B, C" in capsys.readouterr().err
    assert main(["selftest", "--list"]) == 0
    assert capsys.readouterr().out == "A    text of A\nB    text of B\nC    text of C\n"
