"""`make cross`: the C++ kernels compiled and linked for other systems, by ziglang; not run."""

import os
import re
import subprocess
import sys
from functools import partial
from pathlib import Path
from unittest import mock

from lightconv.ops import build

OUT = Path(__file__).parents[2] / "build" / "cross"
ZIG = (sys.executable, "-m", "ziglang", "c++", "-target")
TARGETS = {
    "aarch64-linux-gnu.2.28": "aarch64",
    "aarch64-macos": "arm64",
    "x86_64-windows-gnu": "x86_64",
}
# Of the compiler's library, for __builtin_cpu_supports; ziglang's has none for Windows.
FEATURES = 'extern "C" { int __cpu_model[4], __cpu_features2[8]; void __cpu_indicator_init() {} }'
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


def main() -> None:
    os.environ.setdefault("ZIG_GLOBAL_CACHE_DIR", str(OUT / "cache"))
    for target, machine in TARGETS.items():
        check_library(target, machine)


if __name__ == "__main__":
    main()
