"""Decoding against an older lightconv and CTranslate2, with the cores shared as each does best.

    python -m benchmarks.race                             this version and CTranslate2
    python -m benchmarks.race --old FOLDER                also a tree of 0.1.0, built in place
    python -m benchmarks.race --only int8-8 prompt-int8   some cases
    python -m benchmarks.race --write docs                also the table in docs/engine.md

Each side is a process of its own and they run in turns, one at a time; figures are medians of the
rounds. The models are the paper's DynamicConv for IWSLT De-En (for CTranslate2 a Transformer of
those sizes; for prompts a language model of its decoder's sizes), with random weights; sources and
outputs have 28 tokens, beam 4, so that all run the same number of steps: a speed says nothing about
quality. Sides read ids: loading and tokenising texts is not in the figures. `mixed` compares
sentences that join a running batch of 32 with batches of 32 in their order, on one thread.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any

LENGTH, BEAM, SENTENCES, PROMPT = 28, 4, 64, 1024
DECODING = [f"{kind}-{batch}" for kind in ("float32", "bf16", "int8") for batch in (1, 8, 32)]
CASES = [*DECODING, "prompt-float32", "prompt-int8", "mixed-int8"]
Call = Callable[[], object]


def count(case: str) -> int:
    """Sentences of a call: fewer where they are slow."""
    return 1 if case.startswith("prompt") else SENTENCES // 4 if case.endswith("-1") else SENTENCES


def serve(side: str) -> None:
    """Runs cases named on standard input; prints the seconds of each."""
    calls: dict[str, Call | None] = {}
    for line in sys.stdin:
        case = line.strip()
        if case not in calls:
            calls[case] = call = SIDES[side](case)
            if call is not None:
                call()
        begin, call = time.perf_counter(), calls[case]
        if call is not None:
            call()
        print(json.dumps(time.perf_counter() - begin if call else None), flush=True)


def _engine(case: str) -> tuple[Any, Any]:
    """The engine of a case, and the configuration of its model."""
    kind = next((kind for kind in ("int8", "bf16") if kind in case), None)
    return _build(case.startswith("prompt"), kind)


@cache
def _build(prompt: bool, kind: str | None) -> tuple[Any, Any]:
    import torch

    from lightconv.decode.engine import Engine
    from lightconv.models import LanguageModel, LanguageModelConfig, Seq2Seq
    from lightconv.paper.recipes import RECIPES

    torch.set_num_threads(os.cpu_count() or 1)
    torch.manual_seed(0)
    config: Any = RECIPES["iwslt-de-en-dynamicconv"].model
    model: Any = Seq2Seq(config)
    if prompt:
        sizes = {name: getattr(config, name) for name in ("dim", "ffn_dim")}
        config = LanguageModelConfig(
            **sizes, layers=config.decoder, vocab=config.target_vocab, dropout=0.0
        )
        model = LanguageModel(config)
    return Engine(model.eval(), kind), config


def ours(case: str) -> Call | None:
    """This version: sentences are shared among callers and join running batches."""
    import torch

    from lightconv.decode.options import DecodeConfig, Options, TextOptions
    from lightconv.decode.search import STEPS, ModelSearch, Stream, search_batches

    engine, _ = _engine(case)
    if case.startswith("prompt"):
        prompt = [list(range(4, 4 + PROMPT))]
        return lambda: engine.read(prompt, engine.start(1, PROMPT + 8))
    mixed, batch = case.startswith("mixed"), int(case.split("-")[1]) if "mixed" not in case else 32
    exactly = {"min_len_ratio": 1.0, "max_len_ratio": 1.0, "max_len_plus": 0}
    text = TextOptions(max_sentences=batch, max_tokens=1 << 40)
    search = ModelSearch(engine, Options(decode=DecodeConfig(beam=BEAM, **exactly), text=text))
    torch.manual_seed(1)
    lengths = torch.randint(4, 60, (4 * SENTENCES,)).tolist() if mixed else [LENGTH - 1]
    rows = len(lengths) if mixed else count(case)
    sources = [torch.randint(4, 1000, (lengths[n % len(lengths)],)).tolist() for n in range(rows)]
    if not mixed:
        return lambda: list(search_batches(search, sources, text))
    torch.set_num_threads(1)

    def run() -> None:
        stream = Stream(search, 32)
        for number, source in enumerate(sources):
            stream.put(number, source)
        while stream:
            stream.advance(STEPS)

    def fixed() -> None:
        for begin in range(0, len(sources), 32):
            some = sources[begin : begin + 32]
            search(some, range(len(some)))

    return fixed if os.environ.get("FIXED") else run


def old(case: str) -> Call | None:
    """0.1.0: one caller with all threads, batches of a fixed size."""
    import torch

    if case.startswith("mixed"):
        os.environ["FIXED"] = "1"
        return None
    if case.startswith("bf16"):
        return None
    from lightconv.decode import beam_search

    engine, config = _engine(case)
    if case.startswith("prompt"):
        prompt = torch.arange(4, 4 + PROMPT)[None]
        return lambda: engine.step(prompt, engine.start(1, PROMPT + 8))
    batch = int(case.split("-")[1])
    source, first = torch.randint(4, 1000, (batch, LENGTH)), torch.full((batch,), 2)
    lengths = {"min_len": LENGTH, "max_len": LENGTH, "eos": 2, "pad": config.pad}

    def run() -> None:
        with torch.inference_mode():
            for _ in range(count(case) // batch):
                state = engine.start(engine.encode(source), LENGTH)
                options = {"beam": BEAM, "reorder": engine.reorder, **lengths}
                beam_search(engine.step, state, first, **options)

    return run


def fixed(case: str) -> Call | None:
    """This version with batches of a fixed size, for `mixed`."""
    os.environ["FIXED"] = "1"
    return ours(case) if case.startswith("mixed") else None


def ctranslate2(case: str) -> Call | None:
    """CTranslate2: a worker of one thread per core, the faster of that and all threads for one."""
    if case not in DECODING or case.startswith("bf16"):
        return None
    from benchmarks import peer

    kind, batch = case.split("-")
    best: tuple[float, Any] = 1e9, None
    for workers in {1, os.cpu_count() or 1}:
        other = peer.Peer(Path(_peer(kind).name) / "model", kind, int(batch), workers)
        call = other.call(BEAM, LENGTH, count(case))[0]
        call()
        begin = time.perf_counter()
        call()
        best = min(best, (time.perf_counter() - begin, call), key=lambda pair: pair[0])
    found: Call = best[1]
    return found


@cache
def _peer(kind: str) -> "tempfile.TemporaryDirectory[str]":
    from benchmarks import peer
    from lightconv.paper.recipes import RECIPES

    folder = tempfile.TemporaryDirectory()
    config: Any = RECIPES["iwslt-de-en-selfattention"].model
    peer.save(config, kind, Path(folder.name) / "model")
    return folder


SIDES = {"ours": ours, "old": old, "fixed": fixed, "CTranslate2": ctranslate2}


def processes(old: Path | None, peer: bool) -> Iterator[tuple[str, "subprocess.Popen[str]"]]:
    """A process for each side."""
    for side in ["ours", "fixed", *["old"] * (old is not None), *["CTranslate2"] * peer]:
        environment = dict(os.environ)
        environment.pop("OMP_NUM_THREADS", None)
        if side == "old":
            environment["PYTHONPATH"] = f"{old}/src"
        command = [sys.executable, str(Path(__file__).resolve()), "--serve", side]
        if side == "CTranslate2":
            command[1:2] = ["-m", "benchmarks.race"]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        yield side, subprocess.Popen(command, env=environment, text=True, **pipes)  # type: ignore[call-overload]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("--serve", choices=SIDES, help=argparse.SUPPRESS)
    parser.add_argument("--old", type=Path, help="source tree of 0.1.0")
    parser.add_argument("--only", nargs="+", choices=CASES, default=CASES)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--no-peer", action="store_true", help="without CTranslate2")
    parser.add_argument("--write", type=Path, metavar="DOCS", help="also write the table there")
    options = parser.parse_args()
    if options.serve:
        serve(options.serve)
        return
    sides = dict(processes(options.old, not options.no_peer))
    lines = ["| case | " + " | ".join(f"{side}, ms" for side in sides) + " | ours is faster by |"]
    lines.append("|---|" + "---:|" * len(sides) + "---|")
    print("\n".join(lines), flush=True)
    for case in options.only:
        times: dict[str, list[float]] = {side: [] for side in sides}
        for _ in range(options.rounds):
            for side, process in sides.items():
                assert process.stdin is not None and process.stdout is not None
                print(case, file=process.stdin, flush=True)
                seconds = json.loads(process.stdout.readline() or "null")
                if seconds is not None:
                    times[side].append(seconds)
        found = {side: median(each) for side, each in times.items() if each}
        cells = [f"{found[side] * 1e3:,.0f}" if side in found else "" for side in sides]
        gains = [f"{found[s] / found['ours']:.2f}x ({s})" for s in found if s != "ours"]
        lines.append(f"| {case} | " + " | ".join(cells) + " | " + ", ".join(gains) + " |")
        print(lines[-1], flush=True)
    for process in sides.values():
        process.communicate()
    if options.write is not None:
        from benchmarks.pages import measured, replace

        text = f"{measured()}; {options.rounds} rounds.\n\n" + "\n".join(lines)
        replace(options.write / "engine.md", "benchmarks.race", text)


if __name__ == "__main__":
    main()
