"""`make cross`: the C++ kernels compiled for other systems; those of ARM run under QEMU.

ziglang has the compilers, Debian's qemu-user-static the emulator. The operators' tests run here and
call kernels in an emulated process: each problem is sent there with its memory (remote.py).
"""

import os
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from lightconv.ops import build

FOLDER, ROOT = Path(__file__).parent, Path(__file__).parents[2]
OUT = ROOT / "build" / "cross"
TARGETS = {
    "aarch64-linux-gnu.2.28": "aarch64",
    "aarch64-macos": "arm64",
    "x86_64-windows-gnu": "x86_64",
}
EMULATED = "aarch64-linux-musl"
TESTS = ("kernels", "frame", "step", "options", "gradients", "residual", "isolation")
run = partial(subprocess.run, check=True)


def compile_objects(target: str, machine: str) -> tuple[list[str], list[str]]:
    """Compiler and objects of the kernels for a system."""
    folder = OUT / target
    folder.mkdir(parents=True, exist_ok=True)
    flags = [flag for flag in build.FLAGS if "windows" not in target or flag != "-fPIC"]
    compiler = [sys.executable, "-m", "ziglang", "c++", "-target", target, *flags]
    objects = build.kernel_commands(compiler, str(folder), machine)
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(run, objects.values()))
    return compiler, list(objects)


def check_library(target: str, machine: str) -> None:
    """Links a stripped library; what remains of its names must be the whole C interface."""
    compiler, objects = compile_objects(target, machine)
    library = OUT / target / "kernels"
    run([*compiler, "-shared", "-s", *objects, "-o", str(library)])
    wanted = re.findall(r"\)\)\) .*?(lightconv_\w+)\(", (build.SOURCES / "library.cpp").read_text())
    data = library.read_bytes()
    missing = [name for name in set(wanted) if name.encode() + b"\0" not in data]
    assert len(set(wanted)) > 10 and not missing, f"{target} does not export {missing}"
    print(f"{target}: {len(set(wanted))} functions, {len(data):,} bytes", flush=True)


def find_qemu() -> str:
    """qemu-aarch64-static, unpacked from Debian's package if it is not installed."""
    name = "qemu-aarch64-static"
    unpacked = OUT / "qemu" / "usr" / "bin" / name
    if not shutil.which(name) and not unpacked.exists():
        unpacked.parents[2].mkdir(parents=True, exist_ok=True)
        run(["apt-get", "-q", "download", "qemu-user-static"], cwd=OUT)
        package = next(OUT.glob("qemu-user-static_*.deb"))
        run(["dpkg-deb", "-x", str(package), str(OUT / "qemu")])
    return shutil.which(name) or str(unpacked)


def emulate() -> int:
    """The operators' tests, with kernels compiled for ARM in an emulated process."""
    compiler, objects = compile_objects(EMULATED, "aarch64")
    server = OUT / EMULATED / "server"
    sources = [str(FOLDER / "server.cpp"), f"-I{build.SOURCES}"]
    run([*compiler, "-static", *sources, *objects, "-o", str(server)])
    tests = [f"tests/ops/test_{name}.py" for name in TESTS]
    command = [sys.executable, "-m", "pytest", "-p", "tests.cross.remote", *tests]
    where = {"LIGHTCONV_CROSS": f"{find_qemu()} {server}", "LIGHTCONV_REQUIRE_NATIVE": "1"}
    return run(command, cwd=ROOT, env=os.environ | where, check=False).returncode


def main() -> int:
    for target, machine in TARGETS.items():
        check_library(target, machine)
    return emulate()


if __name__ == "__main__":
    sys.exit(main())
