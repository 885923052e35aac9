"""`make cross`: the C++ kernels compiled for other systems; those of ARM run under QEMU.

ziglang has the compilers, Debian's qemu-user-static the emulator. The random cases of
tests/sanitize, the engine's programs among them, run in the emulator. The operators' tests run here
and call kernels in an emulated process: each problem is sent there with its memory (remote.py).
"""

import os
import re
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path
from unittest import mock

from lightconv.ops import build
from tests.sanitize.__main__ import compile_program

FOLDER, ROOT = Path(__file__).parent, Path(__file__).parents[2]
OUT = ROOT / "build" / "cross"
ZIG = (sys.executable, "-m", "ziglang", "c++", "-target")
TARGETS = {
    "aarch64-linux-gnu.2.28": "aarch64",
    "aarch64-macos": "arm64",
    "x86_64-windows-gnu": "x86_64",
}
# Of the compiler's library, for __builtin_cpu_supports; ziglang's has none for Windows.
FEATURES = 'extern "C" { int __cpu_model[4], __cpu_features2[8]; void __cpu_indicator_init() {} }'
EMULATED = "aarch64-linux-musl"
TESTS = ("kernels", "frame", "step", "options", "gradients", "residual", "isolation", "attention")
CASES = 300
run = partial(subprocess.run, check=True)


def compile_objects(target: str, machine: str) -> tuple[list[str], list[str]]:
    """Compiler and objects of the kernels for a system."""
    (OUT / target).mkdir(parents=True, exist_ok=True)
    flags = [flag for flag in build.FLAGS if "windows" not in target or flag != "-fPIC"]
    compiler = [*ZIG, target, *flags]
    with mock.patch("platform.machine", return_value=machine):
        objects = build.kernel_commands(compiler, str(OUT / target))
    for command in objects.values():
        run(command)
    return compiler, list(objects)


def check_library(target: str, machine: str) -> None:
    """Links a stripped library; what remains of its names must be the whole C interface."""
    compiler, objects = compile_objects(target, machine)
    library = OUT / target / "kernels"
    if "windows" in target:
        (OUT / target / "features.cpp").write_text(FEATURES)
        objects.append(str(OUT / target / "features.cpp"))
    run([*compiler, "-shared", "-s", *objects, "-o", str(library)])
    source = (build.SOURCES / "library.cpp").read_text()
    wanted = set(re.findall(r'"default"\)\)\)[^(]*?(lightconv_\w+)\(', source))
    data = library.read_bytes()
    found = {each.decode() for each in re.findall(rb"\b_?(lightconv_\w+)\0", data)}
    assert len(wanted) > 10 and found == wanted, f"{target}: {found ^ wanted}"
    print(f"{target}: {len(wanted)} functions, {len(data):,} bytes", flush=True)


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
    """The random cases and the operators' tests, with kernels compiled for ARM."""
    qemu = find_qemu()
    compiler, objects = compile_objects(EMULATED, "aarch64")
    with mock.patch("platform.machine", return_value="aarch64"):
        cases = compile_program([*ZIG, EMULATED, "-static"], (), OUT / EMULATED)
    run([qemu, str(cases), str(CASES)])
    server = OUT / EMULATED / "server"
    sources = [str(FOLDER / "server.cpp"), f"-I{build.SOURCES}"]
    run([*compiler, "-static", *sources, *objects, "-o", str(server)])
    tests = [f"tests/ops/test_{name}.py" for name in TESTS]
    command = [sys.executable, "-m", "pytest", "-p", "tests.cross.remote", "-k", "not band", *tests]
    where = {"LIGHTCONV_CROSS": f"{qemu} {server}", "LIGHTCONV_REQUIRE_NATIVE": "1"}
    return run(command, cwd=ROOT, env=os.environ | where, check=False).returncode


def main() -> int:
    os.environ.setdefault("ZIG_GLOBAL_CACHE_DIR", str(OUT / "cache"))
    for target, machine in TARGETS.items():
        check_library(target, machine)
    return emulate()


if __name__ == "__main__":
    sys.exit(main())
