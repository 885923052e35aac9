"""`make sanitize`: the C++ kernels under ASan + UBSan and under TSan, over random shapes."""

import functools
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from lightconv.ops import build

HARNESS = tuple(Path(__file__).with_name(f"{name}.cpp") for name in ("harness", "programs"))
RUNS = {
    "address,undefined": (2000, ("-fno-sanitize-recover=all",)),
    "thread": (300, ()),
}


def run(sanitizers: str, cases: int, flags: tuple[str, ...]) -> None:
    """Builds the kernels and the harness with these sanitizers and runs it."""
    common = [*build.compiler(), "-std=c++17", "-O1", "-g", f"-fsanitize={sanitizers}", *flags]
    common += ["-Wno-psabi", "-pthread", f"-I{build.SOURCES}"]
    with tempfile.TemporaryDirectory() as folder:
        objects = build.kernel_commands(common, folder)
        for source in HARNESS:
            target = f"{folder}/{source.stem}.o"
            objects[target] = [*common, "-c", str(source), "-o", target]
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(functools.partial(subprocess.run, check=True), objects.values()))
        program = f"{folder}/harness"
        subprocess.run([*common, *objects, "-o", program], check=True)
        print(f"{sanitizers}: {cases} random shapes", flush=True)
        subprocess.run([program, str(cases)], check=True)


def main() -> int:
    """Runs every sanitizer; the first report ends the run."""
    for sanitizers, (cases, flags) in RUNS.items():
        try:
            run(sanitizers, cases, flags)
        except subprocess.CalledProcessError as error:
            print(f"failed under -fsanitize={sanitizers}: {error}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
