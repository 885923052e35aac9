"""Build of the C++ kernels into one shared library. Standard library only: setup.py runs it too.

The sources know neither torch nor Python, so the library's name depends on their text and the
machine's architecture alone: a new torch or Python needs no new build, a changed source does.
"""

import hashlib
import os
import platform
import shutil
import stat
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
    "-Wno-psabi",
)
# GCC alone: its predictive commoning trades loads for moves in the tap loops.
GCC_FLAGS = ("-fno-predictive-commoning",)
# Runs a compiler in a group that is killed once the other end of stdin is closed, as by the end of
# this process, however it ends.
_TIED = 'exec 3<&0; (read _ <&3; kill -9 0) & "$@" </dev/null; code=$?; kill -9 $!; exit $code'
_X86 = ("x86_64", "AMD64", "amd64")


class BuildError(RuntimeError):
    """The kernels could not be compiled."""


def instruction_sets() -> dict[str, tuple[int, tuple[str, ...]]]:
    """Name -> (bytes of a vector, compiler flags), weakest first.

    The order is the order of linking: of functions that several objects hold, the linker keeps the
    first, which then runs on every machine.
    """
    sets: dict[str, tuple[int, tuple[str, ...]]] = {"base": (16, ())}
    if platform.machine() in _X86:
        sets["avx2"] = (32, ("-mavx2", "-mfma", "-mf16c"))
        sets["avx512"] = (64, ("-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mfma"))
    return sets


def library_name() -> str:
    """File name of the library that these sources give on this kind of machine."""
    digest = hashlib.sha256()
    for path in sorted(SOURCES.iterdir()):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    digest.update(
        repr((FLAGS, GCC_FLAGS, instruction_sets(), sys.platform, platform.machine())).encode()
        + b"sealed"  # ends with its SHA-256
    )
    return f"_kernels-{digest.hexdigest()[:16]}.so"


def compiler() -> list[str]:
    """The C++ compiler as a command: $CXX, or the first of c++, g++, clang++ on the path."""
    wanted = os.environ.get("CXX", "").split()  # perhaps "ccache g++"
    for name in wanted[:1] or ("c++", "g++", "clang++"):
        if found := shutil.which(name):
            return [found, *wanted[1:]]
    what = f"the compiler $CXX={wanted[0]!r}" if wanted else "a C++ compiler (c++, g++ or clang++)"
    raise BuildError(f"{what} was not found; install one (Debian, Ubuntu: apt install g++)")


def kernel_commands(command: list[str], folder: str) -> dict[str, list[str]]:
    """Object file -> the command that compiles it with the compiler and flags of `command`."""
    commands = {}
    for name, (vector_bytes, flags) in instruction_sets().items():
        defines = [f"-DLIGHTCONV_ISA={name}", f"-DVEC_BYTES={vector_bytes}"]
        for part in ("kernels", "engine"):
            source = f"{SOURCES}/{part}.cpp"
            commands[f"{folder}/{name}-{part}.o"] = [*command, *flags, *defines, "-c", source]
    commands[f"{folder}/library.o"] = [*command, "-c", f"{SOURCES}/library.cpp"]
    return {target: [*line, "-o", target] for target, line in commands.items()}


def build(target: Path) -> None:
    """Compiles and links `target`, which is replaced atomically."""
    if sys.platform == "win32":
        raise BuildError("the kernels cannot be built on Windows; use WSL")
    cxx = compiler()
    version = subprocess.run([*cxx, "--version"], capture_output=True, text=True, check=False)
    more = () if "clang" in version.stdout else GCC_FLAGS
    target.parent.mkdir(parents=True, exist_ok=True)
    for left in target.parent.glob(".build-*"):  # of a build that was killed; builds have a lock
        shutil.rmtree(left, ignore_errors=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".build-") as folder:
        commands = kernel_commands([*cxx, *FLAGS, *more], folder)
        with ThreadPoolExecutor(max_workers=os.cpu_count() or 1) as pool:
            list(pool.map(_run, commands.values()))
        linked = Path(folder, "linked.so")
        _run([*cxx, "-shared", *commands, "-o", str(linked)])
        linked.chmod(0o755)
        with linked.open("r+b") as file:  # the loader ignores what follows the sections
            file.write(hashlib.sha256(file.read()).digest())
        linked.replace(target)


def find_fault(path: Path) -> str:
    """Why a library must not be loaded: other users could have written it, or it is damaged.

    Empty if it may be loaded. Loading a truncated library kills the process.
    """
    own = (0, os.getuid())
    for place in (path.parent.resolve(), path):
        found = place.lstat()
        if place == path and not stat.S_ISREG(found.st_mode):
            return f"{place} is not a regular file"
        if found.st_uid not in own:
            return f"{place} belongs to user {found.st_uid}, expected root or user {own[1]}"
        if found.st_mode & (stat.S_IWOTH | (0 if _is_private(found) else stat.S_IWGRP)):
            return f"{place} can be written by other users (mode {found.st_mode & 0o7777:o})"
    data = path.read_bytes()
    if hashlib.sha256(data[:-32]).digest() != data[-32:]:
        return f"{path} is damaged: its SHA-256 is not the one that its last 32 bytes hold"
    return ""


def _is_private(found: os.stat_result) -> bool:
    """True if the file's group has no other members than its owner, or is root's."""
    import grp
    import pwd

    try:
        name = pwd.getpwuid(found.st_uid).pw_name
        return not found.st_gid or set(grp.getgrgid(found.st_gid).gr_mem) <= {name}
    except KeyError:
        return found.st_gid == os.getgid()


def _run(command: list[str]) -> None:
    watched, ours = os.pipe()
    try:
        done = subprocess.run(
            ["sh", "-c", _TIED, "sh", *command],
            stdin=watched,
            start_new_session=True,
            capture_output=True,
            text=True,
            check=False,
        )
    finally:
        os.close(watched)
        os.close(ours)
    if done.returncode != 0:
        said = (done.stderr or done.stdout).strip().splitlines()
        first = next((line for line in said if "error" in line), said[0] if said else "no output")
        raise BuildError(f"{' '.join(command[:1])} failed on {Path(command[-3]).name}: {first}")
