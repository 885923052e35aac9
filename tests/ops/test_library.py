"""How the C++ kernels are found, built and loaded, and what happens when that fails.

`native()` decides once per process, so each case runs in a process of its own, forked from one that
has imported the package and nothing more. A stub stands in for the compiler where compiling is not
the point: it copies the library that this test run uses.
"""

import contextlib
import ctypes
import io
import multiprocessing
import os
import shutil
import subprocess
import sys
import textwrap
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch

import lightconv
from lightconv import ops
from lightconv.ops import build, library, reference

FOREIGN = next(Path(torch.__file__).parent.glob("lib/libc10.*"))  # a library, but not ours
SETTINGS = ("LIGHTCONV_CACHE", "LIGHTCONV_ISA", "LIGHTCONV_NATIVE", "LIGHTCONV_REQUIRE_NATIVE")


class Outcome(NamedTuple):
    isa: str  # empty when the formulas run
    reason: str
    said: str  # on the standard error
    warned: list[str]
    error: float  # of an operator and its gradient, against the formula


def use_kernels(settings: dict[str, str], package: str) -> Outcome:
    """Runs in a process of its own; `package` is where an installed library would be."""
    for name in (*SETTINGS, "CXX"):
        os.environ.pop(name, None)
    os.environ.update(settings)
    library.__file__ = f"{package}/library.py"
    with warnings.catch_warnings(record=True) as caught, io.StringIO() as said:
        warnings.simplefilter("always")
        with contextlib.redirect_stderr(said):
            error = max(difference() for _ in range(2))
            found = library.native()
        warned = [str(warning.message) for warning in caught]
        return Outcome(found.isa, found.reason, said.getvalue(), warned, error)


def difference() -> float:
    torch.manual_seed(0)
    x, weight = torch.randn(2, 9, 6).double(), torch.randn(2, 9, 2, 4).double()
    results = []
    for function in (ops.dynamicconv, reference.convolve):
        leaf = x.clone().requires_grad_()
        out = function(leaf, weight, 3)
        results.append(torch.cat([out, *torch.autograd.grad(out.square().sum(), leaf)]))
    return (results[0] - results[1]).abs().max().item()


Start = Callable[..., "Future[Outcome]"]


@pytest.fixture(scope="module")
def processes() -> Iterator[ProcessPoolExecutor]:
    server = multiprocessing.get_context("forkserver")
    server.set_forkserver_preload(["lightconv.ops"])
    with ProcessPoolExecutor(2, mp_context=server, max_tasks_per_child=1) as pool:
        yield pool


@pytest.fixture
def start(processes: ProcessPoolExecutor, tmp_path: Path) -> Start:
    """Starts use_kernels with these settings, an empty cache and nothing installed."""

    def started(**settings: str) -> "Future[Outcome]":
        settings = {"LIGHTCONV_CACHE": str(tmp_path / "cache")} | settings
        return processes.submit(use_kernels, settings, str(tmp_path / "package"))

    return started


@pytest.fixture
def stub(tmp_path: Path, kernels: ctypes.CDLL) -> Path:
    """A compiler that writes down its calls and links the library of this run."""
    return write_compiler(
        tmp_path,
        f"""
        echo "$@" >> {tmp_path}/calls
        for last; do :; done
        case " $* " in
            *" -shared "*) /bin/sleep ${{SECONDS_TO_LINK:-0}}; /bin/cp {kernels._name} "$last" ;;
            *" --version "*) echo "stub 1.0" ;;
            *) : > "$last" ;;
        esac
        """,
    )


def write_compiler(folder: Path, script: str) -> Path:
    path = folder / "compiler"
    path.write_text("#!/bin/sh\n" + textwrap.dedent(script))
    path.chmod(0o755)
    return path


def links(folder: Path) -> int:
    """How often the stub has linked."""
    return sum("-shared" in line for line in (folder / "calls").read_text().splitlines())


def libraries(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("*.so"))


def check_right(outcome: Outcome) -> None:
    assert outcome.error < 1e-12
    assert outcome.isa in build.instruction_sets()
    assert outcome.reason.startswith("C++ library ")
    assert outcome.warned == []


def check_formulas(outcome: Outcome, *words: str) -> None:
    """The formulas run, after exactly one warning."""
    assert outcome.error == 0.0
    assert outcome.isa == ""
    [warning] = outcome.warned
    for word in ("slow formulas run instead", "lightconv doctor", "LIGHTCONV_NATIVE=0", *words):
        assert word in warning


# --- found or built -------------------------------------------------------------------------------


def test_built_once_into_the_cache(start: Start, stub: Path, tmp_path: Path) -> None:
    first = start(CXX=str(stub)).result()
    check_right(first)
    assert "compiling the CPU kernels once" in first.said
    assert str(tmp_path / "cache") in first.said
    second = start(CXX="/nonexistent").result()  # needs no compiler any more
    check_right(second)
    assert second.said == ""
    assert first.reason == second.reason
    assert links(tmp_path) == 1
    assert libraries(tmp_path / "cache") == [build.library_name()]


def test_the_installed_library_comes_first(
    start: Start, kernels: ctypes.CDLL, tmp_path: Path
) -> None:
    (tmp_path / "package").mkdir()
    shutil.copy(kernels._name, tmp_path / "package" / build.library_name())
    outcome = start(CXX="/nonexistent").result()
    check_right(outcome)
    assert str(tmp_path / "package") in outcome.reason
    assert not (tmp_path / "cache").exists()


def test_two_processes_build_at_once(start: Start, stub: Path, tmp_path: Path) -> None:
    settings = {"CXX": str(stub), "SECONDS_TO_LINK": "1"}
    for started in [start(**settings), start(**settings)]:
        check_right(started.result())
    assert links(tmp_path) == 1
    left = {path.name for path in (tmp_path / "cache").iterdir()}
    assert left - {".lock"} == {build.library_name()}


def test_folders_of_the_user(start: Start, stub: Path, tmp_path: Path) -> None:
    """With a compiler that has arguments, as in "ccache g++"."""
    outcome = start(LIGHTCONV_CACHE="", XDG_CACHE_HOME=str(tmp_path), CXX=f"env {stub}").result()
    check_right(outcome)
    assert libraries(tmp_path / "lightconv") == [build.library_name()]
    assert links(tmp_path) == 1


@pytest.mark.parametrize("place", ["file", "file/below"])
def test_a_cache_that_cannot_be_written(
    start: Start, stub: Path, tmp_path: Path, place: str
) -> None:
    """A file where the folder should be; a mode would not stop root."""
    (tmp_path / "file").touch()
    (tmp_path / "tmp").mkdir()
    folders = {"LIGHTCONV_CACHE": f"{tmp_path}/{place}", "TMPDIR": f"{tmp_path}/tmp"}
    outcome = start(CXX=str(stub), **folders).result()
    check_right(outcome)
    assert f"{tmp_path}/{place}" in outcome.said
    assert "Set LIGHTCONV_CACHE to a writable folder" in outcome.said
    assert f"{tmp_path}/tmp" in outcome.reason


@pytest.mark.parametrize("damage", ["empty", "garbage", "truncated", "flipped", "foreign"])
def test_a_damaged_library_is_built_again(
    start: Start, stub: Path, kernels: ctypes.CDLL, tmp_path: Path, damage: str
) -> None:
    whole = Path(kernels._name).read_bytes()
    middle = len(whole) // 2
    data = {
        "empty": b"",
        "garbage": b"garbage" * 1000,
        "truncated": whole[:middle],
        "flipped": whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :],
        "foreign": FOREIGN.read_bytes(),
    }[damage]
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / build.library_name()).write_bytes(data)
    outcome = start(CXX=str(stub)).result()
    check_right(outcome)
    assert f"{build.library_name()} is damaged" in outcome.said
    assert links(tmp_path) == 1


def test_an_installed_library_of_something_else(start: Start, tmp_path: Path) -> None:
    """Not ours to replace: one warning that names it."""
    (tmp_path / "package").mkdir()
    installed = tmp_path / "package" / build.library_name()
    shutil.copy(FOREIGN, installed)
    check_formulas(start().result(), str(installed))


# --- not built ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "variable, value, words",
    [
        ("CXX", "/nonexistent", ["the compiler $CXX='/nonexistent' was not found", "install g++"]),
        ("PATH", "/", ["a C++ compiler (c++, g++ or clang++) was not found", "install g++"]),
        ("CXX", "broken", ["failed on kernels.cpp", "vec.h:1: error: no such luck"]),
    ],
)
def test_no_working_compiler(
    start: Start, tmp_path: Path, variable: str, value: str, words: list[str]
) -> None:
    if value == "broken":
        value = str(write_compiler(tmp_path, 'echo "vec.h:1: error: no such luck" >&2; exit 1'))
    check_formulas(start(**{variable: value}).result(), *words)
    assert libraries(tmp_path / "cache") == []


def test_required(start: Start) -> None:
    required = start(CXX="/nonexistent", LIGHTCONV_REQUIRE_NATIVE="1")
    with pytest.raises(RuntimeError, match=r"LIGHTCONV_REQUIRE_NATIVE=1.*/nonexistent.*not found"):
        required.result()


def test_turned_off(start: Start, tmp_path: Path) -> None:
    outcome = start(LIGHTCONV_NATIVE="0").result()
    assert outcome == Outcome("", "turned off by LIGHTCONV_NATIVE=0", "", [], 0.0)
    assert not (tmp_path / "cache").exists()


@pytest.fixture
def plain_process(tmp_path: Path) -> Callable[..., "subprocess.CompletedProcess[str]"]:
    """From the first import to the exit, as a user sees it, from a copy of the package."""
    shutil.copytree(
        Path(lightconv.__file__).parent,
        tmp_path / "copy" / "lightconv",
        ignore=shutil.ignore_patterns("_kernels*", "__pycache__"),
    )
    program = """
        import torch
        from lightconv.ops import lightconv
        for _ in range(2):
            print(lightconv(torch.ones(1, 4, 2), torch.ones(1, 2), 1).sum().item())
    """

    def run(**settings: str) -> "subprocess.CompletedProcess[str]":
        inherited = {name: value for name, value in os.environ.items() if name not in SETTINGS}
        return subprocess.run(
            [sys.executable, "-c", textwrap.dedent(program)],
            env=inherited | {"PYTHONPATH": str(tmp_path / "copy")} | settings,
            capture_output=True,
            text=True,
            check=True,
        )

    return run


def test_a_plain_process_without_a_compiler(plain_process: Any, tmp_path: Path) -> None:
    done = plain_process(PATH="", CXX="", LIGHTCONV_CACHE=str(tmp_path / "cache"))
    assert done.stdout.split() == ["14.0", "14.0"]
    assert done.stderr.count("slow formulas run instead") == 1
    assert "apt install g++" in done.stderr


def test_a_temporary_library_goes_with_its_process(
    plain_process: Any, stub: Path, tmp_path: Path
) -> None:
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    done = plain_process(CXX=str(stub), LIGHTCONV_CACHE=str(stub), TMPDIR=str(temporary))
    assert done.stdout.split() == ["14.0", "14.0"]
    assert f"compiling the CPU kernels into {temporary}" in done.stderr
    assert links(tmp_path) == 1
    assert list(temporary.glob("lightconv-*")) == []


def test_a_kernel_without_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    full = library.Native(SimpleNamespace(kernel=lambda *numbers: sum(numbers)), "", "")  # type: ignore[arg-type]
    monkeypatch.setattr(library, "native", lambda: full)
    library.call("kernel", 1, -1)
    with pytest.raises(MemoryError, match="kernel could not allocate"):
        library.call("kernel", 1, 2)


# --- instruction sets -----------------------------------------------------------------------------


@pytest.mark.parametrize("isa", ["", *build.instruction_sets(), "nonsense"])
def test_instruction_sets(start: Start, stub: Path, instruction_sets: list[str], isa: str) -> None:
    """The best one by default."""
    started = start(LIGHTCONV_ISA=isa, CXX=str(stub))
    if not isa or isa in instruction_sets:
        check_right(started.result())
        assert started.result().isa == (isa or instruction_sets[-1])
    else:
        known = ", ".join(build.instruction_sets())
        with pytest.raises(RuntimeError, match=f"LIGHTCONV_ISA={isa} does not run.*known: {known}"):
            started.result()


# --- the library's name ---------------------------------------------------------------------------


def test_the_name_follows_the_sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = build.library_name()
    shutil.copytree(build.SOURCES, tmp_path / "csrc")
    monkeypatch.setattr(build, "SOURCES", tmp_path / "csrc")
    assert build.library_name() == before
    with (tmp_path / "csrc" / "problem.h").open("a") as file:
        file.write("\n")
    assert build.library_name() != before


def test_build_needs_neither_torch_nor_the_package() -> None:
    """setup.py runs it before anything is installed."""
    program = f"runpy.run_path({build.__file__!r}); sys.exit('torch' in sys.modules)"
    command = [sys.executable, "-I", "-S", "-c", f"import runpy, sys; {program}"]
    subprocess.run(command, check=True)
