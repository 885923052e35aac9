"""Compiles the C++ kernels into one shared library. Standard library only: setup.py runs it too.

The sources know neither torch nor Python, so the library's name depends on their text and the
machine's architecture alone: a new torch or Python needs no new build, a changed source does.
"""

import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

SOURCES = Path(__file__).parent / "csrc"
FLAGS = (
    "-std=c++17",
    "-O3",
    "-fPIC",
    "-fvisibility=hidden",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-fno-predictive-commoning",  # it trades loads for register moves in the tap loops
    "-Wno-psabi",
)
_X86 = ("x86_64", "AMD64", "amd64")


class BuildError(RuntimeError):
    """The kernels could not be compiled; the message says why and what to do."""


def instruction_sets() -> dict[str, tuple[int, tuple[str, ...]]]:
    """Name -> (bytes of a vector, compiler flags), weakest first.

    The order is the order of linking: of functions that several objects hold, the linker keeps the
    first, which then runs on every machine.
    """
    sets: dict[str, tuple[int, tuple[str, ...]]] = {"base": (16, ())}
    if platform.machine() in _X86:
        sets["avx2"] = (32, ("-mavx2", "-mfma"))
        sets["avx512"] = (64, ("-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mfma"))
    return sets


def library_name() -> str:
    """The file name of the library these sources give on this kind of machine."""
    digest = hashlib.sha256()
    for path in sorted(SOURCES.iterdir()):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    digest.update(repr((FLAGS, instruction_sets(), sys.platform, platform.machine())).encode())
    return f"_kernels-{digest.hexdigest()[:16]}.so"


def compiler() -> str:
    """The C++ compiler: $CXX, or the first of c++, g++, clang++ on the path."""
    wanted = os.environ.get("CXX", "").split()
    for name in wanted[:1] or ("c++", "g++", "clang++"):
        if found := shutil.which(name):
            return found
    what = f"the compiler $CXX={wanted[0]!r}" if wanted else "a C++ compiler (c++, g++ or clang++)"
    raise BuildError(f"{what} was not found; install one (Debian, Ubuntu: apt install g++)")


def build(target: Path, extra_flags: tuple[str, ...] = ()) -> None:
    """Compiles and links `target`; it appears whole or not at all, also beside another build."""
    if sys.platform == "win32":
        raise BuildError("the kernels are not built on Windows; use WSL")
    cxx = [compiler(), *os.environ.get("CXX", "").split()[1:]]  # CXX="ccache g++"
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".build-") as folder:
        objects: list[str] = []
        commands: list[list[str]] = []
        for name, (vector_bytes, flags) in instruction_sets().items():
            defines = (f"-DLIGHTCONV_ISA={name}", f"-DVEC_BYTES={vector_bytes}")
            objects.append(f"{folder}/{name}.o")
            source = str(SOURCES / "kernels.cpp")
            commands.append(
                [*cxx, *FLAGS, *extra_flags, *flags, *defines, "-c", source, "-o", objects[-1]]
            )
        objects.append(f"{folder}/library.o")
        source = str(SOURCES / "library.cpp")
        commands.append([*cxx, *FLAGS, *extra_flags, "-c", source, "-o", objects[-1]])
        with ThreadPoolExecutor(max_workers=os.cpu_count() or 1) as pool:
            list(pool.map(_run, commands))
        linked = f"{folder}/linked.so"
        _run([*cxx, "-shared", *extra_flags, *objects, "-o", linked])
        _seal(Path(linked))
        Path(linked).replace(target)


def _seal(path: Path) -> None:
    """Appends a checksum, which the loader of a library does not mind."""
    data = path.read_bytes()
    path.write_bytes(data + hashlib.sha256(data).digest())


def is_sealed(path: Path) -> bool:
    """Whether the file is there as `build` wrote it; loading a truncated one kills the process."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return False
    return hashlib.sha256(data[:-32]).digest() == data[-32:]


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        said = (done.stderr or done.stdout).strip().splitlines()
        first = next((line for line in said if "error" in line), said[0] if said else "no output")
        raise BuildError(f"{' '.join(command[:1])} failed on {Path(command[-3]).name}: {first}")
