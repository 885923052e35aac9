"""The command line: quick without torch, kind to mistakes, and a doctor that tells the truth."""

import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

import lightconv.data
import lightconv.decode
import lightconv.train
from lightconv import cli


def start(*command: str, **settings: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, **settings}
    return subprocess.run(command, capture_output=True, text=True, check=False, env=env)


def run(*arguments: str, **settings: str) -> subprocess.CompletedProcess[str]:
    return start(sys.executable, "-m", "lightconv", *arguments, **settings)


def python(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return start(sys.executable, "-c", code, *arguments)


def test_help(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, code in ((["--help"], 0), ([], 2)):
        assert cli.main(arguments) == code
        out = capsys.readouterr().out
        assert "usage: lightconv" in out and max(map(len, out.splitlines())) <= 80
        assert all(name in out for name in cli.COMMANDS)
    assert cli.main(["docter"]) == 2
    err = capsys.readouterr().err
    assert err == "error: unknown command 'docter'; did you mean 'doctor'?\n"


TORCH_FREE = [
    *("--help", "--version", "nonsense", "list", "list --help", "show --help"),
    *("show wmt-en-de-dynamicconv --set train.max_steps=3", "show wmt-en-de-dynamicconf"),
    *("table", "table ablatoin", "table ablation --scale paper"),
    *("average nowhere --out x", "import --help"),
    "import fairseq x.pt --dict nowhere --out y",
]


@pytest.mark.parametrize("arguments", TORCH_FREE)
def test_answers_without_torch_and_numpy(arguments: str) -> None:
    numpy = {"--scale", "average", "import"} & {*arguments.split()}
    heavy = {"torch"} if numpy else {"numpy", "torch"}
    code = (
        "import sys; from lightconv.cli import main; main(sys.argv[1:]);"
        f"sys.exit(len({heavy} & sys.modules.keys()))"
    )
    assert python(code, *arguments.split()).returncode == 0


@pytest.mark.parametrize("arguments", ["--help", "list", "show --help"])
def test_help_and_list_are_quick(arguments: str) -> None:
    times = []
    for _ in range(3):
        before = seconds_of_children()
        run(*arguments.split())
        times.append(seconds_of_children() - before)
    assert min(times) < 0.5


def seconds_of_children() -> float:
    """On a processor: what others do on the machine does not count."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def test_import_costs_little_beyond_torch() -> None:
    code = (
        "import time, torch; start = time.process_time(); import lightconv; lightconv.DynamicConv;"
        "print(time.process_time() - start)"
    )
    assert min(float(python(code).stdout) for _ in range(3)) < 0.3


@pytest.mark.parametrize("command", cli.COMMANDS)
def test_help_and_an_unknown_option(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert cli.main([command, "--help"]) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"usage: lightconv {command}")
    assert max(map(len, out.splitlines())) <= 80
    assert f"\nexamples:\n  lightconv {command}" in out
    assert cli.main(["help", command]) == 0
    assert capsys.readouterr().out == out
    assert cli.main([command, "--zzzzzz"]) == 2
    err = capsys.readouterr().err
    bare = command == "completion"  # it has no other options
    known = "-h, --help. " if bare else "-h, --help, --"
    assert err.startswith(f"error: unknown option '--zzzzzz'; known: {known}")
    assert err.endswith(f"`lightconv {command} --help` explains\n") and err.count("\n") == 1


def test_help_on_a_narrow_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "1")
    assert cli.main(["plot", "--help"]) == 0
    assert "\nDraws loss,\n" in capsys.readouterr().out


def test_options_cannot_be_shortened(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["list", "--param"]) == 2
    assert "did you mean '--params'? `lightconv list --help` explains" in capsys.readouterr().err


def pretend(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    """Makes `lightconv doctor` fail with this error."""

    def fail(argv: list[str]) -> int:
        raise error

    monkeypatch.setattr("lightconv.commands.machine.doctor", fail)


@pytest.mark.parametrize(
    "error, code, line",
    [
        (ValueError("heads=7\ndoes not  divide dim=512"), 2, "heads=7 does not divide dim=512"),
        (FileNotFoundError(2, "No such file or directory", "x"), 2, "x: No such file or directory"),
        (IsADirectoryError(21, "Is a directory", "x"), 2, "x: Is a directory"),
        (FileExistsError(17, "File exists", "x"), 2, "x: File exists"),
        (PermissionError(13, "Permission denied", "x"), 1, "x: Permission denied"),
        (OSError(28, "No space left on device", "x"), 1, "x: No space left on device"),
        (RuntimeError("out of memory"), 1, "RuntimeError: out of memory. `--debug` shows where"),
        (KeyError("x"), 1, "KeyError: 'x'. `--debug` shows where"),
        (KeyboardInterrupt(), 130, ""),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else "",
)
def test_errors_are_one_line(
    error: BaseException,
    code: int,
    line: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    pretend(monkeypatch, error)
    assert cli.main(["doctor"]) == code
    assert capsys.readouterr() == ("", f"error: {line}\n" if line else "")


@pytest.mark.parametrize("arguments", [["--debug", "doctor"], ["doctor", "--debug"]])
def test_debug_adds_the_traceback(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pretend(monkeypatch, ValueError("no"))
    assert cli.main(arguments) == 2
    err = capsys.readouterr().err
    assert err.startswith("Traceback")
    assert err.endswith("ValueError: no\nerror: no\n")


def test_doctor_says_what_explain_says() -> None:
    done = run("doctor", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["lightconv"] == lightconv.__version__
    assert found["instruction_set"] in ("base", "avx2", "avx512")
    for row in found["operators"]:
        if row["device"] == "cpu":
            assert row["kernel"] == f"C++ {found['instruction_set']}"
            assert row["kernel"] in lightconv.explain(row["operator"])


def test_doctor_prints_a_table_and_fails_without_kernels() -> None:
    done = run("doctor")
    assert "dynamicconv_backward" in done.stdout
    assert "instruction set" in done.stdout
    done = run("doctor", LIGHTCONV_NATIVE="0", LIGHTCONV_REQUIRE_NATIVE="0")
    assert done.returncode == 1
    assert "turned off by LIGHTCONV_NATIVE=0" in done.stdout
    done = run("doctor", LIGHTCONV_ISA="mmx")
    assert done.returncode == 1
    assert "LIGHTCONV_ISA=mmx" in done.stderr and "Traceback" not in done.stderr


# Unbuffered, every line is refused as it is written; buffered, nothing is before the end.
@pytest.mark.parametrize("arguments", ["doctor --json", "list", "--help"])
def test_a_closed_pipe_is_quiet(arguments: str) -> None:
    # `true` does not read at all; what is written is small and leaves only at the very end.
    command = f"set -o pipefail; {sys.executable} -m lightconv {arguments} | true"
    done = start("bash", "-c", command, PYTHONUNBUFFERED="")
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
def test_a_full_disk_is_one_line() -> None:
    command = f"{sys.executable} -m lightconv --help > /dev/full"
    done = start("bash", "-c", command, PYTHONUNBUFFERED="")
    assert (done.returncode, done.stderr) == (1, "error: [Errno 28] No space left on device\n")


def test_explain_rejects_unknown_operators() -> None:
    with pytest.raises(ValueError, match=r"operator must be one of .*dynamicconv.*'conv'"):
        lightconv.explain("conv")


def test_importing_them_does_not_import_torch() -> None:
    names = ("config", "recipe", "data", "decode", "models", "train", "train.config")
    modules = ", ".join(f"lightconv.{name}" for name in names)
    code = f"import sys, {modules}; sys.exit('torch' in sys.modules)"
    assert python(code).returncode == 0


@pytest.mark.parametrize(
    "package",
    [lightconv.data, lightconv.decode, lightconv.models, lightconv.train],
    ids=lambda p: p.__name__,
)
def test_every_name_is_there(package: object) -> None:
    for name in package.__all__:  # type: ignore[attr-defined]
        assert getattr(package, name) is not None
    with pytest.raises(AttributeError, match=r"module 'lightconv\.\w+' has no attribute 'Nothing'"):
        _ = package.Nothing  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "arguments, code, out",
    [
        ("list <&-", 0, True),
        ("list >&-", 0, False),
        ("list 2>&-", 0, True),
        ("no 2>&-", 2, False),
        ("list <&- >&- 2>&-", 0, False),
    ],
)
def test_closed_streams(arguments: str, code: int, out: bool) -> None:
    """D9: nothing is said where nobody listens, and no file is opened in their place."""
    done = start("sh", "-c", f"{sys.executable} -m lightconv {arguments}")
    assert (done.returncode, done.stderr, bool(done.stdout)) == (code, "", out)


def test_no_error_commands_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    """D9"""
    assert cli.main(["\x1b]0;title\x07\x1b[31m\u009b31m\nname é"]) == 2
    err = capsys.readouterr().err
    assert "\\x1b]0;title\\x07\\x1b[31m\\x9b31m name é'" in err
    assert err.removesuffix("\n").isprintable()
