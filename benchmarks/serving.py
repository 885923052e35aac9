"""The server against `translate` of the same lines: throughput, latency, and a day's use in short.

    python -m benchmarks.serving MODEL LINES                       tables (5 minutes)
    python -m benchmarks.serving MODEL LINES --write docs          also in docs/serve.md
    python -m benchmarks.serving MODEL LINES --only latency

MODEL is a folder that `lightconv fit` or `train` made, LINES a file of its source language. Figures
of throughput are lines per second of processor time, of the front and the workers together: other
programs on the machine, and the clients, do not count.
"""

import argparse
import asyncio
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

import lightconv
from benchmarks.pages import measured, replace, table

SHORT = 60  # characters of a short text, at most
# (clients, texts, bar): the server's share of the throughput of `translate`.
LOADS = (
    (128, "short", 0.90),
    (32, "short", 0.85),
    (8, "short", 0.75),
    (128, "mixed", 0.85),
)
LATENCY = (1.0, 8.0)  # milliseconds beyond the engine's: median, 99th percentile
_TICK = os.sysconf("SC_CLK_TCK")


class Serving:
    """A server process on a free port; what it prints is in the file `log` of a folder."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.log = folder / "log"
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "lightconv", "serve", *arguments, "--port", "0"],
                stdout=log,
                stderr=log,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
                start_new_session=True,
            )
        end = time.monotonic() + 120
        while not (found := re.search(r"serving on http://[^:]+:(\d+)", self.log.read_text())):
            if self.process.poll() is not None or time.monotonic() > end:
                raise RuntimeError(self.log.read_text())
            time.sleep(0.05)
        self.port = int(found[1])

    def processes(self) -> dict[int, int]:
        """The front and what it has started, each with its parent."""
        found = {}
        for path in Path("/proc").glob("[0-9]*/stat"):
            try:
                rest = path.read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(rest[3]) == self.process.pid:
                found[int(path.parent.name)] = int(rest[1])
        return found

    def workers(self) -> list[int]:
        """Processes that decode: those of the fork server."""
        found = self.processes()
        servers = {pid for pid, parent in found.items() if parent == self.process.pid}
        return sorted(pid for pid, parent in found.items() if parent in servers)

    def spent(self) -> dict[int, float]:
        """Seconds of processor time of each process."""
        found = {}
        for pid in self.processes():
            rest = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            found[pid] = (int(rest[11]) + int(rest[12])) / _TICK
        return found

    def resources(self) -> tuple[float, int]:
        """Resident megabytes of all processes without what they share, and open descriptors."""
        size = count = 0
        for pid in self.processes():
            text = Path(f"/proc/{pid}/smaps_rollup").read_text()
            size += sum(map(int, re.findall(r"Private_\w+: +(\d+)", text)))
            count += len(list(Path(f"/proc/{pid}/fd").iterdir()))
        return size / 1024, count

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()
        try:
            self.process.wait(30)
        finally:
            self.process.kill()


class Client:
    """A connection that stays open."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def post(self, path: str, fields: dict[str, Any]) -> tuple[int, Any]:
        if self._streams is None:
            self._streams = await asyncio.open_connection("127.0.0.1", self._port)
        reader, writer = self._streams
        body = json.dumps(fields).encode()
        head = f"POST {path} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
        writer.write(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
        top = await reader.readuntil(b"\r\n\r\n")
        found = re.search(rb"content-length: (\d+)", top)
        assert found is not None, top
        return int(top.split()[1]), json.loads(await reader.readexactly(int(found[1])))

    def close(self) -> None:
        if self._streams is not None:
            self._streams[1].close()


async def ask_all(
    port: int, lines: Sequence[str], languages: tuple[str, str], clients: int
) -> list[str]:
    """Answers of the lines, each client asking for one at a time."""
    answers = [""] * len(lines)
    rest = iter(range(len(lines)))

    async def run() -> None:
        client = Client(port)
        for place in rest:
            fields = {"q": lines[place], "source": languages[0], "target": languages[1]}
            status, found = await client.post("/translate", fields)
            assert status == 200, found
            answers[place] = found["translatedText"]
        client.close()

    await asyncio.gather(*(run() for _ in range(clients)))
    return answers


class Bench:
    """A model, its lines, and a server of it."""

    def __init__(self, options: argparse.Namespace, folder: Path) -> None:
        self.options = options
        self.model = lightconv.load(options.model)
        self.languages = tuple(side.lang for side in self.model.pipeline.config.sides)
        text = Path(options.lines).read_text().splitlines()
        lines = list(dict.fromkeys(line.strip() for line in text if line.strip()))
        mixed = [line for line in lines if len(line) <= 300]
        self.lines = {"short": [line for line in lines if len(line) <= SHORT], "mixed": mixed}
        workers = ["--workers", str(options.workers), "--quantize", options.quantize, "--quiet"]
        self.server = Serving(folder, options.model, *workers)

    def repeated(self, kind: str, count: int) -> list[str]:
        lines = self.lines[kind]
        return [lines[i % len(lines)] for i in range(count)]

    def ask(self, lines: Sequence[str], clients: int) -> list[str]:
        return asyncio.run(ask_all(self.server.port, lines, self.languages, clients))

    def throughput(self) -> str:
        count = self.options.count
        rows = []
        self.ask(self.repeated("mixed", 500), 32)
        for clients, kind, bar in LOADS:
            lines = self.repeated(kind, count)
            shares, speeds, front = [], [], []
            for _ in range(self.options.rounds):
                torch.set_num_threads(1)
                begin = time.process_time()
                expected = self.model.translate(lines, quantize=self.options.quantize)
                offline = len(lines) / (time.process_time() - begin)
                before, begin = self.server.spent(), time.perf_counter()
                found = self.ask(lines, clients)
                seconds = time.perf_counter() - begin
                after = self.server.spent()
                spent = {pid: after[pid] - before.get(pid, 0.0) for pid in after}
                assert found == expected, "the server's answers are not those of translate"
                speeds.append((offline, len(lines) / sum(spent.values()), len(lines) / seconds))
                shares.append(speeds[-1][1] / offline)
                front.append(spent[self.server.process.pid] / len(lines) * 1e6)
            middle = [statistics.median(each) for each in zip(*speeds, strict=True)]
            rows.append(
                [
                    f"{clients}, {kind}",
                    *(f"{each:,.0f}" for each in middle),
                    f"{statistics.median(front):.0f} us",
                    f"{statistics.median(shares):.0%}",
                    f"{bar:.0%}",
                ]
            )
        titles = ["clients, texts", "`translate`", "server", "wall clock", "front", "share", "bar"]
        return table(titles, rows)

    def latency(self) -> str:
        line = min(self.lines["short"], key=lambda each: abs(len(each) - 30))
        stream = self.model.stream(quantize=self.options.quantize)
        fields = {"q": line, "source": self.languages[0], "target": self.languages[1]}
        times: dict[str, list[float]] = {"engine": [], "server": []}

        def engine() -> None:
            stream.submit(line)
            while not stream.step():
                pass

        async def run() -> None:
            client = Client(self.server.port)
            for turn in range(2200):
                begin = time.perf_counter()
                engine()
                middle = time.perf_counter()
                await client.post("/translate", fields)
                end = time.perf_counter()
                if turn >= 200:
                    times["engine"].append((middle - begin) * 1e3)
                    times["server"].append((end - middle) * 1e3)
            client.close()

        torch.set_num_threads(1)
        asyncio.run(run())
        cuts = {name: statistics.quantiles(each, n=100) for name, each in times.items()}
        rows = []
        for name, place, bar in (("median", 49, LATENCY[0]), ("99th percentile", 98, LATENCY[1])):
            ours, own = cuts["server"][place], cuts["engine"][place]
            rows.append([name, f"{own:.2f}", f"{ours:.2f}", f"{ours - own:.2f}", f"{bar:g}"])
        return table(["latency, ms", "engine", "server", "beyond the engine", "bar"], rows)

    def endure(self) -> str:
        """Memory and descriptors while many requests come and go."""
        self.ask(self.repeated("short", 4000), 128)
        rows = []
        asked, begin = 0, time.perf_counter()
        while True:
            size, files = self.server.resources()
            rows.append([f"{asked:,}", f"{size:.1f}", str(files)])
            if asked >= self.options.requests:
                break
            if time.perf_counter() - begin > self.options.seconds:
                break
            step = self.options.requests // 5
            self.ask(self.repeated("short", step), 128)
            asked += step
        return table(["requests", "private memory, MB", "descriptors"], rows)


def main(argv: Sequence[str] | None = None) -> int:
    """Prints the tables, and writes them into docs/serve.md if asked."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", metavar="MODEL")
    parser.add_argument("lines", metavar="LINES")
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--quantize", default="int8")
    parser.add_argument("--count", type=int, default=8000, help="lines of a load")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--requests", type=int, default=100_000, help="of a day's use in short")
    parser.add_argument("--seconds", type=float, default=300, help="for a day's use at most")
    parser.add_argument("--only", choices=("throughput", "latency", "endure"))
    parser.add_argument("--write", metavar="DOCS", type=Path)
    options = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(options, Path(folder))
        parts: dict[str, Callable[[], str]] = {
            "throughput": bench.throughput,
            "latency": bench.latency,
            "endure": bench.endure,
        }
        try:
            for name, part in parts.items():
                if options.only in (None, name):
                    text = (
                        f"{measured()}; {options.workers} workers, {options.quantize}.\n\n{part()}"
                    )
                    print(text, flush=True)
                    if options.write is not None:
                        replace(options.write / "serve.md", f"benchmarks.serving {name}", text)
        finally:
            bench.server.end()
    return 0


if __name__ == "__main__":
    sys.exit(main())
