"""No silence of more than two seconds: a thread writes when nothing else does."""

import io
import re
import time

import pytest
from lightconv.demo.watch import Watch

from lightconv.demo import watch


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_file_gets_lines_while_nothing_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "PAUSE", 0.1)
    monkeypatch.setattr(watch, "BLINK", 0.02)
    file = io.StringIO()
    with Watch(file) as shown:
        shown.show("thinking")
        time.sleep(0.5)
        shown.note("a note")
    lines = file.getvalue().splitlines()
    assert re.fullmatch(r"  thinking: \d+ s so far", lines[0])
    assert "  a note" in lines
    assert re.fullmatch(r"  thinking: \d+\.\d s", lines[-1])


def test_also_between_two_things(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "PAUSE", 0.1)
    monkeypatch.setattr(watch, "BLINK", 0.02)
    file = io.StringIO()
    with Watch(file, idle="preparing") as shown:
        time.sleep(0.3)
        shown.show("reading")
        shown.end()
    lines = file.getvalue().splitlines()
    assert re.fullmatch(r"  preparing: \d+ s so far", lines[0])
    assert re.fullmatch(r"  reading: \d+\.\d s", lines[-1])


def test_counts_and_ends() -> None:
    file = io.StringIO()
    with Watch(file) as shown:
        shown.show("reading", 1, 3)
        shown.show("reading", 3, 3)
        shown.show("writing")
    # A machine that stood still for two seconds may have written more.
    first, second = (line for line in file.getvalue().splitlines() if "so far" not in line)
    assert first.startswith("  reading: 3 of 3 in ")
    assert second.startswith("  writing: ")


def test_a_terminal_sees_one_line_change(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "BLINK", 0.02)
    file = Terminal()
    with Watch(file) as shown:
        shown.show("thinking")
        time.sleep(0.2)
    text = file.getvalue()
    assert len(re.findall(r"\r\x1b\[K  thinking: \d+ s so far", text)) >= 2
    assert text.count("\n") == 1


def test_an_error_is_not_called_an_end() -> None:
    file = io.StringIO()
    with pytest.raises(KeyError), Watch(file) as shown:
        shown.show("thinking")
        raise KeyError
    assert "so far" in file.getvalue() or file.getvalue() == ""
