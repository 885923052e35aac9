"""No silence of more than two seconds: a thread writes when nothing else does."""

import io
import time

import pytest

from lightconv.demo import watch
from lightconv.demo.watch import Watch


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
    assert lines[0] == "  thinking: 0 s so far"
    assert lines[-2] == "  a note"
    assert lines[-1].startswith("  thinking: 0.") and lines[-1].endswith(" s")


def test_also_between_two_things(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "PAUSE", 0.1)
    monkeypatch.setattr(watch, "BLINK", 0.02)
    file = io.StringIO()
    with Watch(file, idle="preparing") as shown:
        time.sleep(0.3)
        shown.show("reading")
        shown.end()
    assert file.getvalue().startswith("  preparing: 0 s so far\n")
    assert file.getvalue().count("reading") == 1


def test_counts_and_ends() -> None:
    file = io.StringIO()
    with Watch(file) as shown:
        shown.show("reading", 1, 3)
        shown.show("reading", 3, 3)
        shown.show("writing")
    first, second = file.getvalue().splitlines()
    assert first.startswith("  reading: 3 of 3 in 0.")
    assert second.startswith("  writing: 0.")


def test_a_terminal_sees_one_line_change(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "BLINK", 0.02)
    file = Terminal()
    with Watch(file) as shown:
        shown.show("thinking")
        time.sleep(0.2)
    text = file.getvalue()
    assert text.count("\r\x1b[K  thinking: 0 s so far") >= 2
    assert text.count("\n") == 1


def test_an_error_is_not_called_an_end() -> None:
    file = io.StringIO()
    with pytest.raises(KeyError), Watch(file) as shown:
        shown.show("thinking")
        raise KeyError
    assert file.getvalue() == ""
