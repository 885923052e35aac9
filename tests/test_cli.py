"""The command line: quick without torch, kind to mistakes, and a doctor that tells the truth."""

import json
import os
import subprocess
import sys
import time

import pytest

import lightconv
from lightconv import cli


def run(*arguments: str, **settings: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "lightconv", *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **settings},
    )


def test_help_names_every_command() -> None:
    done = run("--help")
    assert done.returncode == 0
    assert all(name in done.stdout for name in cli.COMMANDS)


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["nonsense"]], ids=" ".join)
def test_answers_without_torch(arguments: list[str]) -> None:
    code = (
        "import sys; from lightconv.cli import main; main(sys.argv[1:]);"
        "sys.exit('torch' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, check=False
    )
    assert done.returncode == 0


def test_help_is_quick() -> None:
    times = []
    for _ in range(3):
        start = time.perf_counter()
        run("--help")
        times.append(time.perf_counter() - start)
    assert min(times) < 0.5


def test_import_costs_little_beyond_torch() -> None:
    code = (
        "import time, torch; start = time.perf_counter(); import lightconv; lightconv.DynamicConv;"
        "print(time.perf_counter() - start)"
    )
    times = [
        float(subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout)
        for _ in range(3)
    ]
    assert min(times) < 0.3


def test_unknown_command_suggests_the_nearest() -> None:
    done = run("docter")
    assert done.returncode == 2
    assert done.stderr == "error: unknown command 'docter'; did you mean 'doctor'?\n"


def test_no_command_shows_the_help() -> None:
    done = run()
    assert done.returncode == 2
    assert "usage: lightconv" in done.stdout


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


def test_doctor_prints_a_table() -> None:
    done = run("doctor")
    assert "dynamicconv_backward" in done.stdout
    assert "instruction set" in done.stdout


def test_doctor_without_kernels_says_so_and_fails() -> None:
    done = run("doctor", LIGHTCONV_NATIVE="0", LIGHTCONV_REQUIRE_NATIVE="0")
    assert done.returncode == 1
    assert "turned off by LIGHTCONV_NATIVE=0" in done.stdout


def test_doctor_with_an_unknown_instruction_set_is_one_line() -> None:
    done = run("doctor", LIGHTCONV_ISA="mmx")
    assert done.returncode == 1
    assert "LIGHTCONV_ISA=mmx" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_closed_pipe_is_quiet() -> None:
    command = f"{sys.executable} -m lightconv doctor --json | head -c 1"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, check=False)
    assert done.returncode == 0
    assert done.stderr == ""


def test_explain_rejects_unknown_operators() -> None:
    with pytest.raises(ValueError, match=r"operator must be one of .*dynamicconv.*'conv'"):
        lightconv.explain("conv")
