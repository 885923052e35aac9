"""`make sanitize`: the C++ code under ASan, UBSan and TSan, over random cases; `make fuzz`."""

import functools
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from lightconv.ops import build

FOLDER = Path(__file__).parent
RUNS = {
    "address,undefined": (2000, ("-fno-sanitize-recover=all",)),
    "thread": (300, ()),
}
# The fuzzer's inputs that reach different code, kept from run to run, and those that failed.
INPUTS = FOLDER.parents[1] / "build" / "fuzz"
FUZZER = "fuzzer,address,undefined,float-cast-overflow"


def compile_program(compiler: list[str], flags: tuple[str, ...], to: Path) -> Path:
    """Builds the kernels and the cases."""
    common = [*compiler, "-std=c++17", "-O1", "-g", *flags]
    common += ["-Wno-psabi", "-pthread", f"-I{build.SOURCES}"]
    objects = build.kernel_commands(common, str(to))
    for source in FOLDER.glob("*.cpp"):
        target = f"{to}/{source.stem}.o"
        objects[target] = [*common, "-c", str(source), "-o", target]
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(functools.partial(subprocess.run, check=True), objects.values()))
    program = to / "cases"
    subprocess.run([*common, *objects, "-o", str(program)], check=True)
    return program


def sanitize(folder: Path) -> None:
    """Runs every sanitizer; the first report ends the run."""
    for sanitizers, (cases, flags) in RUNS.items():
        options = (f"-fsanitize={sanitizers}", *flags)
        program = compile_program(build.compiler(), options, folder)
        print(f"{sanitizers}: {cases} random cases", flush=True)
        subprocess.run([program, str(cases)], check=True)


def fuzz(folder: Path, seconds: int) -> None:
    """Runs libFuzzer for so long, then keeps the fewest inputs that reach what it has reached."""
    clang = shutil.which("clang++")
    if clang is None:
        raise FileNotFoundError("make fuzz needs clang++ (Debian, Ubuntu: apt install clang)")
    flags = (f"-fsanitize={FUZZER}", "-DFUZZER", "-fno-sanitize-recover=all")
    program = str(compile_program([clang], flags, folder))
    kept, found = INPUTS / "kept", folder / "found"
    found.mkdir()
    kept.mkdir(parents=True, exist_ok=True)
    limits = ["-max_len=200", "-len_control=0", "-timeout=60", "-rss_limit_mb=2048"]
    options = [*limits, f"-max_total_time={seconds}", "-print_final_stats=1", "-verbosity=1"]
    options += [f"-artifact_prefix={INPUTS}/", "-reload=0", "-reduce_inputs=1"]
    subprocess.run([program, *options, str(found), str(kept)], check=True)
    fewest = folder / "fewest"
    fewest.mkdir()
    subprocess.run([program, "-merge=1", *limits, str(fewest), str(found), str(kept)], check=True)
    shutil.rmtree(kept)
    shutil.copytree(fewest, kept)


def main() -> int:
    seconds = int(sys.argv[1]) if len(sys.argv) > 1 else 0
    with tempfile.TemporaryDirectory() as folder:
        try:
            fuzz(Path(folder), seconds) if seconds else sanitize(Path(folder))
        except (subprocess.CalledProcessError, FileNotFoundError) as error:
            print(f"failed: {error}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
