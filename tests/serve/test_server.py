"""R13, the server as clients see it: a process of its own, real sockets, faults at any moment."""

import asyncio
import json
import os
import re
import signal
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from benchmarks.serving import Serving

import lightconv

GOLDEN = Path(__file__).parents[1] / "golden"
MODELS = [GOLDEN / "end" / "pairs", GOLDEN / "end" / "text", GOLDEN / "models" / "summary"]
LINES = (GOLDEN / "texts" / "train.en").read_text().splitlines()


class Running(Serving):
    """A server of the golden models, asked one request at a time."""

    def __init__(self, folder: Path, *options: str, models: list[Path] = MODELS) -> None:
        super().__init__(folder, *map(str, models), *options)

    def post(self, path: str, fields: dict[str, Any], **headers: str) -> tuple[int, Any]:
        body = json.dumps(fields).encode()
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}{path}",
            body,
            {"content-type": "application/json", **headers},
        )
        return _open(request)

    def get(self, path: str, **headers: str) -> tuple[int, Any]:
        return _open(urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", None, headers))

    def translate(self, q: Any, **more: Any) -> Any:
        status, found = self.post("/translate", {"q": q, "source": "en", "target": "eo", **more})
        assert status == 200, found
        return found["translatedText"]


def _open(request: urllib.request.Request) -> tuple[int, Any]:
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            status, body = answer.status, answer.read()
    except urllib.error.HTTPError as error:
        status, body = error.code, error.read()
    return status, json.loads(body) if body[:1] in (b"{", b"[") else body.decode()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    running = Running(tmp_path_factory.mktemp("serve"), "--workers", "2")
    yield running
    running.end()


@pytest.fixture(scope="module")
def alone() -> dict[str, str]:
    """Each line's translation by the library."""
    lines = LINES[:200]
    return dict(zip(lines, lightconv.load(MODELS[0]).translate(lines), strict=True))


def test_answers_are_those_of_translate(server: Running, alone: dict[str, str]) -> None:
    lines = LINES[:60]
    assert server.translate(lines) == [alone[line] for line in lines]
    assert server.translate(lines[0]) == alone[lines[0]]
    assert server.translate("") == ""
    assert server.translate(f"{lines[0]}\n\n  {lines[1]}\n") == (
        f"{alone[lines[0]]}\n\n  {alone[lines[1]]}\n"
    )


def test_alternatives_are_distinct(server: Running) -> None:
    fields = {"q": LINES[0], "source": "en", "target": "eo", "alternatives": 3}
    _, found = server.post("/translate", fields)
    texts = [found["translatedText"], *found["alternatives"]]
    assert len(set(texts)) == len(texts) > 1
    _, both = server.post("/translate", fields | {"q": [LINES[0], LINES[1]]})
    assert both["alternatives"][0] == found["alternatives"]


def test_source_auto_is_detected(server: Running, alone: dict[str, str]) -> None:
    fields = {"q": LINES[0], "source": "auto", "target": "eo"}
    _, found = server.post("/translate", fields)
    assert found["detectedLanguage"]["language"] == "en"
    assert found["translatedText"] == alone[LINES[0]]


def test_words_have_origins(server: Running, alone: dict[str, str]) -> None:
    _, found = server.post("/words", {"q": LINES[0], "source": "en", "target": "eo"})
    (piece,) = found["pieces"]
    assert piece["source"] == LINES[0].split()
    assert piece["target"] == alone[LINES[0]].split()
    assert {t for _, t in piece["pairs"]} == set(range(len(piece["target"])))
    assert all(0 <= s < len(piece["source"]) for s, _ in piece["pairs"])
    assert len(piece["logprobs"]) == len(piece["target"])


def test_kernels_are_distributions(server: Running) -> None:
    _, found = server.post("/kernels", {"q": LINES[0], "model": "pairs"})
    for layer in found["layers"]:
        for head in layer["weights"]:
            assert len(head) == len(found["tokens"])
            assert all(abs(sum(row) - 1) < 1e-3 for row in head)


def test_completions_continue_and_stop(server: Running) -> None:
    fields = {"model": "text", "prompt": LINES[0], "max_tokens": 6, "temperature": 0}
    status, found = server.post("/v1/completions", fields)
    assert status == 200
    (choice,) = found["choices"]
    model = lightconv.load(MODELS[1])
    (whole,) = model.generate([LINES[0]], beam=1, max_len_plus=7, max_len_ratio=0.0)
    assert choice["text"].strip() and whole.endswith(choice["text"])
    _, echoed = server.post("/v1/completions", fields | {"echo": True})
    assert echoed["choices"][0]["text"] == LINES[0] + choice["text"]
    stop = choice["text"].split()[0]
    _, cut = server.post("/v1/completions", fields | {"stop": stop})
    assert cut["choices"][0] == choice | {"text": " ", "finish_reason": "stop"}
    _, drawn = server.post("/v1/completions", fields | {"temperature": 1, "n": 3, "seed": 5})
    assert [each["index"] for each in drawn["choices"]] == [0, 1, 2]
    _, again = server.post("/v1/completions", fields | {"temperature": 1, "n": 3, "seed": 5})
    assert again["choices"] == drawn["choices"]


def test_streamed_completion_is_the_whole_one(server: Running) -> None:
    for seed in range(6):
        fields = {"model": "text", "prompt": LINES[1], "max_tokens": 30, "seed": seed}
        _, whole = server.post("/v1/completions", fields)
        _, events = server.post("/v1/completions", fields | {"stream": True})
        data = [line.removeprefix("data: ") for line in events.split("\n\n") if line]
        assert data.pop() == "[DONE]"
        chunks = [json.loads(each)["choices"][0] for each in data]
        assert "".join(each["text"] for each in chunks) == whole["choices"][0]["text"]
        assert [each["finish_reason"] for each in chunks[:-1]] == [None] * (len(chunks) - 1)
        assert chunks[-1]["finish_reason"] == whole["choices"][0]["finish_reason"]


def test_a_summary_is_that_of_summarize(server: Running) -> None:
    text = " ".join(LINES[:4])
    (expected,) = lightconv.load(MODELS[2]).summarize([text])
    assert server.post("/summarize", {"q": text}) == (200, {"summary": expected})


REFUSED = (
    ("/translate", {"q": "a", "source": "xx", "target": "eo"}, {}, 400, "xx is not supported"),
    ("/translate", {"q": "a", "source": "en", "target": "en"}, {}, 400, "en to en"),
    ("/translate", {"q": "a"}, {}, 400, "source is missing"),
    ("/translate", {}, {"origin": "http://elsewhere.example"}, 403, "other pages"),
    ("/translate", {}, {"host": "elsewhere.example"}, 403, "own address"),
    ("/translate", {"q": "x" * 1_100_000}, {}, 413, "longer than"),
    ("/v1/completions", {"model": "pairs", "prompt": "a"}, {}, 400, "no such model"),
    ("/v1/completions", {"model": "text", "prompt": "a", "best_of": 3}, {}, 400, "best_of"),
    ("/v1/completions", {"model": "text", "prompt": "a", "n": 0}, {}, 400, "n is 0, expected 1"),
    ("/summarize", {"q": "a", "model": "text"}, {}, 400, "no such model"),
    ("/nothing", {}, {}, 404, "Not Found"),
)


@pytest.mark.parametrize(("path", "fields", "headers", "status", "message"), REFUSED)
def test_refusals(
    server: Running, path: str, fields: Any, headers: Any, status: int, message: str
) -> None:
    code, found = server.post(path, fields, **headers)
    told = found["error"]["message"] if path.startswith("/v1/") else found["error"]
    assert (code, message in told) == (status, True), found


def test_requests_of_a_connection_are_answered_in_order(
    server: Running, alone: dict[str, str]
) -> None:
    """Several at once, without a body, in pieces; the last one ends the connection."""
    parts = []
    for n, line in enumerate(LINES[:3]):
        body = json.dumps({"q": line, "source": "en", "target": "eo"}).encode()
        end = b"connection: close\r\n" if n == 2 else b""
        head = b"POST /translate HTTP/1.1\r\nhost: 127.0.0.1\r\n%bcontent-length: %d\r\n\r\n"
        parts += [head % (end, len(body)) + body]
        parts += [b"HEAD /page.css HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n"] if n == 0 else []
    data = b"".join(parts)
    for size in (len(data), 37):
        with socket.create_connection(("127.0.0.1", server.port), timeout=20) as peer:
            for start in range(0, len(data), size):
                peer.sendall(data[start : start + size])
            with peer.makefile("rb") as stream:
                found = stream.read().split(b"HTTP/1.1 200 OK\r\n")[1:]
        heads, bodies = zip(*(each.split(b"\r\n\r\n") for each in found), strict=True)
        assert bodies[1] == b"" and b"content-length: 0" not in heads[1]
        texts = [json.loads(each)["translatedText"] for each in bodies if each]
        assert texts == [alone[line] for line in LINES[:3]]
        assert [b"connection: close" in head for head in heads] == [False] * 3 + [True]


def test_answers_that_nobody_reads_cost_little(server: Running) -> None:
    size, before = len(server.get("/page.js")[1]), server.resources()[0]
    data, sent = b"GET /page.js HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n", 0
    with socket.create_connection(("127.0.0.1", server.port)) as peer:
        peer.settimeout(0.3)
        with suppress(TimeoutError):  # it does not read either
            while sent < 5000 * len(data):
                sent += peer.send(data * 100)
        assert server.resources()[0] < before + 20 < before + sent // len(data) * size / 1e6
        peer.settimeout(20)
        found, end = 0, b""
        while found < sent // len(data):
            block = end + peer.recv(1 << 20)
            found, end = found + block.count(b"HTTP/1.1 200"), block[-11:]
    assert server.get("/health") == (200, {"status": "ok"})


def test_raw_attacks_end(server: Running) -> None:
    """Heads without an end, garbage, bodies that are longer than announced."""

    def send(data: bytes) -> bytes:
        with socket.create_connection(("127.0.0.1", server.port), timeout=5) as peer:
            try:
                for start in range(0, len(data), 1 << 16):
                    peer.sendall(data[start : start + (1 << 16)])
                return peer.recv(1 << 16)
            except OSError:
                return b""

    assert b" 431 " in send(b"GET / HTTP/1.1\r\nx: " + b"a" * 40_000)
    assert send(b"GET / HTTP/1.1\r\nx: " + b"a" * 20_000_000)[9:12] in (b"431", b"")
    assert b" 400 " in send(b"\x16\x03\x01 nonsense\r\n\r\n")
    chunked = b"POST /translate HTTP/1.1\r\nhost: 127.0.0.1\r\ntransfer-encoding: chunked\r\n\r\n"
    assert b" 413 " in send(chunked + (b"10000\r\n" + b"a" * 65536 + b"\r\n") * 20 + b"0\r\n\r\n")
    assert server.get("/health") == (200, {"status": "ok"})


@pytest.mark.slow
def test_requests_that_trickle_and_bodies_that_flood(server: Running) -> None:
    """300 half-sent requests and bodies of 200 MB end within the limits; others are answered."""
    starts = (b"GET / HTTP/1.1\r\nhost: 127.0.0.1\r\n", b"POST /translate HTTP/1.1\r\nhost: ")
    starts += (b"POST /translate HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: 100\r\n\r\n{",)
    peers = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(300)]
    begin = time.monotonic()
    for place, peer in enumerate(peers):
        peer.sendall(starts[place % 3])
    before = server.resources()[0]
    head = b"POST /translate HTTP/1.1\r\nhost: 127.0.0.1\r\n"
    chunk = b"10000\r\n" + b"a" * 65536 + b"\r\n"
    for way, part in (
        (b"content-length: 200000000\r\n\r\n", b"a" * 65536),
        (b"transfer-encoding: chunked\r\n\r\n", chunk),
    ):
        with socket.create_connection(("127.0.0.1", server.port), timeout=10) as flood:
            answer, sent = b"", 0
            try:
                flood.sendall(head + way)
                for _ in range(3052):
                    flood.sendall(part)
                    sent += 1
                answer = flood.recv(1 << 16)
            except OSError:  # closed while we sent
                pass
            assert b" 413 " in answer or sent < 3052
    assert server.resources()[0] < before + 50
    assert server.translate(LINES[0])
    for peer in peers:
        peer.settimeout(max(0.1, 25 - (time.monotonic() - begin)))
        try:
            while peer.recv(1 << 16):
                pass
        except ConnectionResetError:
            pass
        peer.close()
    assert server.get("/health") == (200, {"status": "ok"})


async def _ask(port: int, line: str, bad: bool) -> tuple[int, Any]:
    fields = {"q": 5 if bad else line, "source": "en", "target": "eo"}
    body = json.dumps(fields).encode()
    head = "POST /translate HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
    head += f"connection: close\r\ncontent-length: {len(body)}\r\n\r\n"
    for attempt in range(50):
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            break
        except OSError:
            await asyncio.sleep(0.05 * (attempt + 1))
    writer.write(head.encode() + body)
    answer = await asyncio.wait_for(reader.read(), 60)
    writer.close()
    top, _, rest = answer.partition(b"\r\n\r\n")
    return int(top.split()[1]), json.loads(rest)


async def _crowd(
    port: int, count: int, heard: Callable[[int], None] = lambda _: None
) -> list[tuple[str, bool, int, Any]]:
    """Answers to requests sent at once; `heard` is called with the number of them so far."""
    done = 0

    async def one(i: int) -> tuple[str, bool, int, Any]:
        nonlocal done
        line, bad = LINES[i % 200], i % 10 == 3
        status, found = await _ask(port, line, bad)
        done += 1
        heard(done)
        return line, bad, status, found

    return await asyncio.gather(*map(one, range(count)))


def test_a_crowd_gets_its_own_answers(server: Running, alone: dict[str, str]) -> None:
    for line, bad, status, found in asyncio.run(_crowd(server.port, 1000)):
        if bad:
            assert status == 400 and "q is a int" in found["error"]
        else:
            assert (status, found.get("translatedText")) == (200, alone[line])


def test_dead_workers_lose_nothing(server: Running, alone: dict[str, str]) -> None:
    def kill(done: int) -> None:  # a text may see both
        if done in (80, 200):  # the last is not the one that died before
            os.kill(server.workers()[0 if done == 80 else -1], signal.SIGKILL)

    for line, bad, status, found in asyncio.run(_crowd(server.port, 600, kill)):
        assert bad or (status, found.get("translatedText")) == (200, alone[line]), found
    assert server.translate(LINES[:3]) == [alone[line] for line in LINES[:3]]
    end = time.monotonic() + 30
    while "restarts_total 2" not in server.get("/metrics")[1]:
        assert time.monotonic() < end, server.get("/metrics")
        time.sleep(0.1)


def test_the_page_needs_nothing_else(server: Running) -> None:
    for path in ("/", "/page.css", "/page.js"):
        status, text = server.get(path)
        assert status == 200 and not re.search(r"(https?:)?//[a-z]+\.[a-z]", text)


def test_the_end_drains(tmp_path: Path, alone: dict[str, str]) -> None:
    running = Running(tmp_path, "--workers", "1", models=MODELS[:1])
    workers = running.workers()

    async def attack() -> list[tuple[str, bool, int, Any]]:
        crowd = asyncio.ensure_future(_crowd(running.port, 100))
        await asyncio.sleep(0.3)
        running.process.terminate()
        return await asyncio.wait_for(crowd, 20)

    try:
        for line, bad, status, found in asyncio.run(attack()):
            assert bad or (status, found.get("translatedText")) == (200, alone[line])
        assert running.process.wait(12) == 0
        assert workers and not any(Path(f"/proc/{pid}").exists() for pid in workers)
    finally:
        running.end()


def test_a_key_and_a_queue(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("a-long-key\n")
    running = Running(
        tmp_path, "--workers", "1", "--api-key-file", str(tmp_path / "key"), "--queue", "3",
        models=MODELS[:1],
    )  # fmt: skip
    fields = {"q": LINES[0], "source": "en", "target": "eo"}
    try:
        assert running.post("/translate", fields)[0] == 400
        assert running.post("/translate", fields | {"api_key": "wrong"})[0] == 403
        assert running.post("/translate", fields | {"api_key": "a-long-key"})[0] == 200
        assert running.post("/translate", fields, authorization="Bearer a-long-key")[0] == 200
        status, found = running.post(
            "/translate", fields | {"q": LINES[:10]}, authorization="Bearer a-long-key"
        )
        assert status == 429 and "too many" in found["error"]
    finally:
        running.end()


BAD = (
    (("--host", "0.0.0.0"), "expected --api-key-file"),
    (("--workers", "0"), "expected 1 to 1024"),
    (("--api-key-file", os.devnull), "a key of 0 characters"),
    ((str(MODELS[0]),), "two models for pairs"),
)


@pytest.mark.parametrize(("options", "message"), BAD)
def test_bad_options(options: tuple[str, ...], message: str, capfd: Any) -> None:
    from lightconv.cli import main

    assert main(["serve", str(MODELS[0]), *options]) == 2
    assert message in capfd.readouterr().err
