"""R1: small runs of `lightconv train` that are killed and resumed."""

import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from lightconv.config import to_json
from lightconv.corpora.synthetic import Settings, make
from lightconv.data.prepare import prepare
from lightconv.files import digest
from lightconv.models import DynamicConvConfig, LightConvConfig, Seq2SeqConfig
from lightconv.processes import PARENT
from lightconv.recipe import Recipe
from lightconv.selftest.promise import Figures, expect
from lightconv.train import InverseSqrtConfig, NesterovConfig, TrainConfig

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
