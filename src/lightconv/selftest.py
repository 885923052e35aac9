"""Promises and their checks, for `lightconv selftest`: figures, or BrokenError."""

import io
import json
import os
import pickle
import platform
import random
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lightconv import __version__, ops
from lightconv.config import to_json
from lightconv.corpora.synthetic import Settings, make
from lightconv.data.prepare import prepare
from lightconv.device import processor_name
from lightconv.files import digest
from lightconv.interop.pickles import read_pickle
from lightconv.models import DynamicConvConfig, LightConvConfig, Seq2SeqConfig
from lightconv.models.folder import ModelFolder, build
from lightconv.ops.functional import explain_all
from lightconv.ops.library import POOL, native
from lightconv.ops.products import choose, choose_precision, probe
from lightconv.processes import PARENT
from lightconv.recipe import Recipe
from lightconv.train import InverseSqrtConfig, NesterovConfig, TrainConfig
from lightconv.train.checkpoints import Checkpoints
from lightconv.train.memory import most_kept

Figures = dict[str, Any]


class BrokenError(Exception):
    """A promise that does not hold."""


class Promise(NamedTuple):
    """check  a function of an empty folder and of `full`: more cases of everything"""

    name: str
    text: str
    check: Callable[[Path, bool], Figures]


def expect(condition: object, message: str) -> None:
    """Raises BrokenError unless the condition is true; python -O would remove an `assert`."""
    if not condition:
        raise BrokenError(message)


STEPS = 40
# Checkpoints are frequent, and the data is read several times.
SETTINGS: dict[str, Any] = {
    **{"max_steps": STEPS, "save_every": 3, "validate_every": 6, "log_every": 1},
    **{"tokens_per_update": 120, "max_tokens": 60},
    "schedule": InverseSqrtConfig(peak=3e-3, warmup=10),
}
RUNS: dict[str, dict[str, Any]] = {
    "adam-fp32": {"average_last": 3},
    "nesterov-bf16": {"optimizer": NesterovConfig(momentum=0.9), "precision": "bf16", "ema": 0.9},
}


def model_config(source: int, target: int) -> Seq2SeqConfig:
    """One layer on each side, with dropout and DropConnect."""
    return Seq2SeqConfig(
        dim=16,
        ffn_dim=32,
        source_heads=2,
        encoder=(LightConvConfig(kernel=3, heads=2, dropconnect=0.1),),
        decoder=(DynamicConvConfig(kernel=3, heads=2, dropconnect=0.1),),
        source_vocab=source,
        target_vocab=target,
        dropout=0.1,
    )


def check_resume(folder: Path, full: bool) -> Figures:
    """R1."""
    corpus = make("synthetic-copy", Settings(train=60, valid=10, test=1, symbols=10, max_len=6))
    data = prepare(corpus, folder / "data", processes=1)
    model = model_config(*data.vocab_sizes)
    names, kills, done = (list(RUNS), 10, 0) if full else (["adam-fp32"], 2, 0)
    for name in names:
        train = TrainConfig(**SETTINGS | RUNS[name])
        recipe = Recipe(about=name, task=data.task, model=model, train=train)
        path, whole, parts = (folder / f"{name}{end}" for end in (".json", "-whole", "-parts"))
        path.write_text(to_json(recipe))
        command = ["train", str(path), "--data", str(folder / "data"), "--device", "cpu", "--out"]
        _run([*command, str(whole)])
        draw = random.Random(name)
        for number in range(kills):
            lines = (number + draw.random()) * STEPS / kills
            done += _run([*command, str(parts)], log=parts / "log.jsonl", lines=int(lines) + 1)
        _run([*command, str(parts)])
        left, expected = _fingerprint(parts), _fingerprint(whole)
        odd = sorted(key for key in {*left, *expected} if left.get(key) != expected.get(key))
        expect(not odd, f"{name} after {kills} kills differs in {', '.join(odd)}")
    return {"runs": names, "kills": done, "different": 0}


def _fingerprint(run: Path) -> dict[str, Any]:
    """Tensors by their digests, and the log without times: equal if two runs are, bit for bit."""
    log = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    for line in log:
        line.pop("seconds", line.pop("tokens_per_second", None))
    files = {str(path.relative_to(run)): digest(path) for path in run.rglob("*.safetensors")}
    return {**files, "log.jsonl": log}


def _run(command: list[str], *, log: Path | None = None, lines: int = 0) -> bool:
    """Runs lightconv in a process, killed once `log` has so many lines; True if it was killed."""
    env, deadline = {**os.environ, PARENT: str(os.getpid())}, time.monotonic() + 300.0
    command = [sys.executable, "-m", "lightconv", *command]
    with tempfile.TemporaryFile("w+") as said:
        process = subprocess.Popen(command, env=env, stdout=said, stderr=said)
        try:
            while process.poll() is None:
                expect(time.monotonic() < deadline, "a run did not end within 300 s")
                if log is not None and log.exists() and log.read_bytes().count(b"\n") >= lines:
                    return True
                time.sleep(0.002)
        finally:
            process.kill()
            process.wait()
        said.seek(0)
        expect(process.returncode == 0, f"exit code {process.returncode}: {said.read()[-2000:]}")
    return False


FILES = ("manifest.json", "model.safetensors", "optimizer.safetensors", "state.json")
PAGE = 512
GOOD, DAMAGED = 100, 200


def flip(data: bytes, chance: random.Random) -> bytes:
    """One bit inverted."""
    place = chance.randrange(len(data) * 8)
    return data[: place // 8] + bytes([data[place // 8] ^ 1 << place % 8]) + data[place // 8 + 1 :]


def truncate(data: bytes, chance: random.Random) -> bytes:
    """The end missing."""
    return data[: chance.randrange(len(data))]


def zero_page(data: bytes, chance: random.Random) -> bytes:
    """One page of zeros, as a disk leaves it that lost a write."""
    start = chance.randrange(0, len(data), PAGE)
    return data[:start] + bytes(len(data[start : start + PAGE])) + data[start + PAGE :]


# name -> (function, number of times in a full check)
DAMAGES: dict[str, tuple[Callable[[bytes, random.Random], bytes], int]] = {
    "bits flipped": (flip, 1000),
    "files truncated": (truncate, 500),
    "pages zeroed": (zero_page, 500),
}


def check_damage(folder: Path, full: bool) -> Figures:
    """R5: the newest of two checkpoints is damaged, and the other must be used."""
    good = torch.randn(1024, generator=torch.Generator().manual_seed(5))
    with Checkpoints(folder) as checkpoints:
        for step in (GOOD, DAMAGED):
            tensors = {"model": {"w": good + step}, "optimizer": {"state/w/step": good - step}}
            checkpoints.save(step, tensors, {"epoch": 3})
    newest, chance, counts = folder / f"step-{DAMAGED:08d}", random.Random(5), {}
    for kind, (damage, times) in DAMAGES.items():
        counts[kind] = times if full else times // 10
        for _ in range(counts[kind]):
            name = chance.choice(FILES)
            whole = (newest / name).read_bytes()
            (newest / name).write_bytes(damage(whole, chance))
            found = Checkpoints(folder).latest()
            (newest / name).write_bytes(whole)
            detected = (
                found is not None
                and list(found.skipped) == [DAMAGED]
                and torch.equal(found.tensors["model"]["w"], good + GOOD)
            )
            expect(detected, f"{kind} in {name}: not detected")
    found = Checkpoints(folder).latest()
    expect(found is not None and found.step == DAMAGED, "an intact checkpoint is not used")
    return {**counts, "undetected": 0}


NAMES = ("dynamicconv", "dynamicconv_softmax", "lightconv", "lightconv_softmax")
OPERATORS: dict[str, Callable[..., Tensor]] = {name: getattr(ops, name) for name in NAMES}
# Relative to the largest value: float32 has 24 bits, and a sum of K terms loses some of them.
TOLERANCE = 2e-5


def check_kernels(folder: Path, full: bool) -> Figures:
    """R10."""
    draw, worst = random.Random(10), 0.0
    count = 200 if full else 25
    for name, operator in OPERATORS.items():
        for seed in range(count):
            generator = torch.Generator().manual_seed(seed)
            B, T, H, R = (draw.randint(1, most) for most in (3, 40, 4, 40))
            K = draw.choice([1, 2, 3, 5, 7, 15, 31, 40])
            left = draw.randrange(K)
            x, grad = (torch.randn(B, T, H * R, generator=generator) for _ in range(2))
            shape = (B, T, H, K) if name.startswith("dynamicconv") else (H, K)
            inputs = [x, torch.randn(*shape, generator=generator), grad]
            found = _run_operator(operator, inputs, left)
            exact = _run_operator(operator, [t.double() for t in inputs], left, backend="reference")
            for part, a, b in zip(("out", "grad x", "grad weight"), found, exact, strict=True):
                error = (a.double() - b).abs().max().item() / max(1.0, b.abs().max().item())
                where = f"{[B, T, H * R]}, K={K}, left={left}"
                expect(error < TOLERANCE, f"{name}, {part}: {error:.1e} at {where}")
                worst = max(worst, error)
            again = _run_operator(operator, inputs, left)
            expect(all(map(torch.equal, found, again)), f"{name}: the second call differs")
    return {"shapes": count * len(OPERATORS), "worst": worst, "kernels": native().isa or "formula"}


def _run_operator(
    operator: Callable[..., Tensor], inputs: list[Tensor], left: int, **options: str
) -> list[Tensor]:
    x, weight = (tensor.detach().requires_grad_() for tensor in inputs[:2])
    out = operator(x, weight, left, **options)
    return [out.detach(), *torch.autograd.grad(out, (x, weight), inputs[2])]


class Call:
    """Pickled as a call."""

    def __init__(self, function: Any, *values: Any) -> None:
        self.call = (function, values)

    def __reduce__(self) -> Any:
        return self.call


def check_strangers(folder: Path, full: bool) -> Figures:
    """R12."""
    mark, path = folder / "mark", folder / "stranger.pt"
    hostile = dict(_hostile(mark))
    for name, data in hostile.items():
        path.write_bytes(data)
        expect(_refuses(read_pickle, path) and not mark.exists(), f"{name} was read")
    for name in ("pickled", "headerless", "linked", "missing"):
        build(model_config(12, 12)).save(folder / name)
        weights = folder / name / "model.safetensors"
        weights.unlink()
        if name == "linked":
            weights.symlink_to("/etc/hostname")
        elif name != "missing":
            weights.write_bytes(data if name == "pickled" else b"\xff" * 8)
        refused = _refuses(lambda path: ModelFolder(path).load(), folder / name)
        expect(refused and not mark.exists(), f"{name} weights were loaded")
    return {"files": len(hostile) + 4, "refused": len(hostile) + 4}


def _refuses(read: Callable[[Path], object], path: Path) -> bool:
    with suppress(ValueError):
        read(path)
        return False
    return True


def _hostile(mark: Path) -> Iterator[tuple[str, bytes]]:
    """Calls that torch.load would run, in all the formats of torch.save; a bare pickle is last."""
    touch = f"touch {mark}"
    calls = {
        "os.system": Call(os.system, touch),
        "eval": Call(eval, f"__import__('os').system('{touch}')"),
        "exec": Call(exec, f"import os; os.system('{touch}')"),
        "getattr": Call(getattr, "a", "upper"),
        "Popen": Call(subprocess.Popen, ["touch", str(mark)]),
        "torch.load": Call(torch.load, "other.pt"),
        "bytearray of a terabyte": Call(bytearray, 10**12),
    }
    for name, call in calls.items():
        for zipped in (True, False):
            file = io.BytesIO()
            torch.save({"model": call}, file, _use_new_zipfile_serialization=zipped)
            yield f"{name}, {'archive' if zipped else 'legacy'}", file.getvalue()
    bad, good = pickle.dumps(calls["os.system"], 4), pickle.dumps({"a": 1}, 2)
    nested = b"\x80\x02" + b"]" * 200_000 + b"a" * 199_999 + b"."
    bomb = {"x/data.pkl": good, "x/data/0": bytes(5 << 20)}
    yield "an archive of protocol 4", _archive({"x/data.pkl": bad})
    yield "a compressed archive", _archive(bomb, zipfile.ZIP_DEFLATED)
    yield "an entry outside the archive", _archive({"x/data.pkl": good, "x/../../evil": b"1"})
    yield "nested lists", _archive({"x/data.pkl": nested})
    yield "an empty file", b""
    yield "a bare pickle", bad


def _archive(entries: dict[str, bytes], how: int = zipfile.ZIP_STORED) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", how) as archive:
        for name, data in entries.items():
            archive.writestr(name, data)
    return file.getvalue()


# docs/reliability.md lists all promises and the tests of the others.
PROMISES = (
    Promise("R1", "a run that is killed and resumed equals an undisturbed one", check_resume),
    Promise("R5", "a damaged checkpoint is never used", check_damage),
    Promise("R10", "the kernels equal the formulas", check_kernels),
    Promise("R12", "files from strangers run no code", check_strangers),
)


def examine() -> dict[str, Any]:
    """The report of `lightconv doctor` as plain values."""
    library = native()
    gpus = [f"cuda:{i} {torch.cuda.get_device_name(i)}" for i in range(torch.cuda.device_count())]
    settings = {k: v for k, v in sorted(os.environ.items()) if k.startswith("LIGHTCONV_")}
    return {
        "lightconv": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "processor": processor_name(),
        "threads": torch.get_num_threads(),
        "devices": ["cpu", *gpus],
        "instruction_set": library.isa or None,
        "cpu_kernels": library.reason,
        "products": {"library": choose(), **probe()._asdict()},
        "precision": f"auto is {choose_precision('auto', torch.device('cpu'))} on the CPU",
        "kept_memory_mb": POOL.most_idle >> 20,
        "kept_in_training_mb": most_kept() >> 20,
        "settings": settings,
        "operators": explain_all(),
    }
