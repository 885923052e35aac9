"""Being asked to stop: noted, not obeyed at once, and only while it matters."""

import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from lightconv.train.launch import Stop


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_is_noted(number: signal.Signals) -> None:
    with Stop() as stop:
        os.kill(os.getpid(), number)
        assert stop.code == 75
        os.kill(os.getpid(), number)
        assert stop.code == 75


def test_what_is_ignored_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
    try:
        with Stop() as stop:
            os.kill(os.getpid(), signal.SIGHUP)
            assert stop.code == 0
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize("before", [[], [signal.SIGTERM]])
def test_the_second_interrupt_is_one(
    before: list[signal.Signals], capfd: pytest.CaptureFixture[str]
) -> None:
    with Stop() as stop:
        for number in (*before, signal.SIGINT):
            os.kill(os.getpid(), number)
        assert stop.code == 130
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert "Ctrl-C once more quits at once" in capfd.readouterr().err


def test_handlers_are_put_back() -> None:
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    with pytest.raises(KeyError), Stop():
        assert signal.getsignal(signal.SIGTERM) != before[0]
        raise KeyError
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == before


def test_the_clock() -> None:
    for seconds, code in ((None, 0), (60.0, 0), (0.05, 75)):
        with Stop(seconds) as stop:
            time.sleep(0.06)
            assert stop.code == code


def test_another_thread_has_the_clock_alone() -> None:
    codes = []

    def work() -> None:
        with Stop(max_seconds=0.0) as stop:
            codes.append(stop.code)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(30)
    assert codes == [75]


def test_the_second_interrupt_can_end_the_process() -> None:
    code = (
        "import os, signal; from lightconv.train.launch import Stop\n"
        "with Stop(hard=True, quiet=True):\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "    try:\n"
        "        os.kill(os.getpid(), signal.SIGINT)\n"
        "    finally:\n"
        "        print('still there')"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, b"", b"")
