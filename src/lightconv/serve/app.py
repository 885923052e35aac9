"""The application: LibreTranslate's API, OpenAI's completions, summaries, the page."""

import hmac
import json
import sys
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

from lightconv.config import read_plain
from lightconv.data.pipeline import PIPELINE_FILE
from lightconv.models.folder import ModelFolder
from lightconv.serve.api import MOST_CHARACTERS, PATHS, check, describe, parse_body
from lightconv.serve.front import MOST_BYTES, Connection, describe_error
from lightconv.serve.pool import Answers, FullError, Order, Team
from lightconv.serve.texts import Piece, guess, join, split_html, split_text

_NAMES = """ar Arabic bg Bulgarian cs Czech da Danish de German el Greek en English eo Esperanto
es Spanish et Estonian fi Finnish fr French he Hebrew hi Hindi hu Hungarian id Indonesian it Italian
ja Japanese ko Korean lt Lithuanian lv Latvian nl Dutch no Norwegian pl Polish pt Portuguese
ro Romanian ru Russian sk Slovak sl Slovenian sv Swedish tr Turkish uk Ukrainian vi Vietnamese
zh Chinese"""
NAMES = dict(zip(_NAMES.split()[::2], _NAMES.split()[1::2], strict=True))
BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, float("inf"))
# The page needs nothing from elsewhere, and nobody may put it into a frame.
POLICY = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
POLICY += "img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
PAGE = {"/": ("page.html", "text/html"), "/page.css": ("page.css", "text/css")}
PAGE["/page.js"] = ("page.js", "text/javascript")
Headers = Mapping[bytes, bytes]
_JSON = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode


class Served(NamedTuple):
    """A model of the server; kind is "translation", "summary" or "completion"."""

    name: str
    folder: str
    kind: str
    source: str = ""
    target: str = ""


def describe_model(path: str) -> Served:
    """Reads a model folder without torch."""
    folder = ModelFolder(path)
    name = Path(path).resolve().name
    if name == "model":  # of a run
        name = Path(path).resolve().parent.name
    if not folder.pairs:
        return Served(name, path, "completion")
    task = folder.tables.get("task", {})
    languages = [str(task.get(side) or "") for side in ("source_lang", "target_lang")]
    if not all(languages) and (folder.path / PIPELINE_FILE).exists():
        sides = read_plain(folder.path / PIPELINE_FILE).get("sides", [])
        languages = [str(side.get("lang", "")) for side in sides] or languages
    source, target = languages[0], languages[-1]
    if task.get("kind") == "summarization" or source == target != "":
        return Served(name, path, "summary", source, target)
    if not source or not target:
        raise ValueError(f"{path}: its languages are not known, expected a task in config.json")
    return Served(name, path, "translation", source, target)


class Reply(NamedTuple):
    """An answer: its body, or the parts of one that is sent as it is made."""

    body: bytes = b""
    status: int = 200
    kind: str = "application/json"
    headers: Mapping[str, str] = {}
    parts: AsyncGenerator[str] | None = None

    @classmethod
    def json(cls, value: Any, status: int = 200, **headers: str) -> "Reply":
        return cls(_JSON(value).encode(), status, headers=headers)


class RefusedError(Exception):
    """An answer other than 200."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class App:
    """Answers requests. key: what clients must send, or ""."""

    def __init__(
        self,
        models: Sequence[Served],
        team: Team,
        *,
        key: str = "",
        hosts: Sequence[str] | None = None,
        origins: Sequence[str] = (),
        log: bool = True,
    ) -> None:
        self.models = {each.name: each for each in models}
        self.pairs = {(m.source, m.target): m for m in models if m.kind == "translation"}
        self.team, self.key = team, key
        self.hosts, self.origins, self.log = hosts, origins, log
        self._late = f"no answer within {team.seconds:g} s"
        self.requests: Counter[tuple[str, int]] = Counter()
        self.texts: Counter[str] = Counter()
        self.times: Counter[float] = Counter()
        self.total_seconds = 0.0
        here = files("lightconv.serve")
        self._page = {path: (here / name).read_bytes() for path, (name, _) in PAGE.items()}
        posts = (self.translate, self.detect, self.summarize, self.words, self.kernels)
        self._posts: dict[str, Any] = {f"/{each.__name__}": each for each in posts}
        self._posts["/v1/completions"] = self.complete
        self._gets: dict[str, Any] = dict.fromkeys(PAGE) | {
            "/languages": self.languages,
            "/health": lambda: {"status": "ok"},
            "/frontend/settings": self.settings,
            "/v1/models": self.list_models,
            "/openapi.json": self.describe,
            "/metrics": self.metrics,
        }

    # --- every request

    async def __call__(
        self, to: Connection, method: str, path: str, headers: Headers, body: bytes | None
    ) -> None:
        begin, status = time.perf_counter(), 499  # if the client goes away
        try:
            try:
                reply = await self._respond(method, path, headers, body)
            except RefusedError as error:
                reply = _refuse(error.status, str(error), path)
            except Exception as error:
                sys.stderr.write(describe_error(error))
                reply = _refuse(500, "the server failed, its log says where", path)
            status = reply.status
            told = f"content-type: {reply.kind}\r\nx-content-type-options: nosniff\r\n"
            for name, value in reply.headers.items():
                told += f"{name}: {value}\r\n"
            if (origin := _read(headers, b"origin")) in self.origins:
                told += f"access-control-allow-origin: {origin}\r\nvary: origin\r\n"
            to.send(status, told, None if reply.parts else reply.body)
            if reply.parts is not None:
                async with aclosing(reply.parts) as parts:
                    async for each in parts:
                        to.send_part(each.encode())
                to.send_part(b"")
        finally:
            seconds = time.perf_counter() - begin
            known = path if path in self._posts or path in self._gets else "other"
            self.requests[known, status] += 1
            self.times[BUCKETS[bisect_left(BUCKETS, seconds)]] += 1
            self.total_seconds += seconds
            if self.log:
                line = f"{to.peer} {method} {known} {status} {seconds * 1e3:.1f} ms\n"
                sys.stderr.write(f"{time.strftime('%H:%M:%S')} {line}")

    async def _respond(self, method: str, path: str, headers: Headers, body: bytes | None) -> Reply:
        host, origin = (_read(headers, name) for name in (b"host", b"origin"))
        name = host.rpartition(":")[0] if not host.endswith("]") and ":" in host else host
        if self.hosts is not None and host and name not in self.hosts:
            raise RefusedError(403, "this server answers to its own address only")
        if origin and origin not in self.origins and origin.partition("://")[2] != host:
            raise RefusedError(
                403, "requests of other pages are not allowed; --allow-origin allows them"
            )
        if method == "OPTIONS" and origin in self.origins:
            allowed = {"access-control-allow-headers": "content-type, authorization"}
            return Reply(status=204, headers=allowed)
        if path in self._gets and method in ("GET", "HEAD"):
            if path in PAGE:
                told = {"content-security-policy": POLICY, "cache-control": "no-cache"}
                return Reply(self._page[path], 200, f"{PAGE[path][1]}; charset=utf-8", told)
            found = self._gets[path]()
        elif path in self._posts and method == "POST":
            if body is None:
                raise RefusedError(413, f"the body is longer than {MOST_BYTES} bytes")
            try:
                fields = parse_body(body, _read(headers, b"content-type"))
                self._authorize(_read(headers, b"authorization"), fields, path)
                schema = PATHS[path].takes
                assert schema is not None
                fields = check(fields, schema)
            except ValueError as error:
                raise RefusedError(400, str(error)) from None
            found = await self._posts[path](fields)
        elif path in self._posts or path in self._gets:
            raise RefusedError(405, "Method Not Allowed")
        else:
            raise RefusedError(404, "Not Found")
        return found if isinstance(found, Reply) else Reply.json(found)

    def _authorize(self, bearer: str, fields: dict[str, Any], path: str) -> None:
        if not self.key:
            return
        openai = path.startswith("/v1/")
        given = bearer.removeprefix("Bearer ").strip()
        given = given or str(fields.get("api_key") or "")
        if not given:
            needed = "a key is needed: api_key, or a Bearer header"
            raise RefusedError(401 if openai else 400, needed)
        if not hmac.compare_digest(given.encode("utf-8", "replace"), self.key.encode()):
            raise RefusedError(401 if openai else 403, "the key is not the right one")

    # --- work

    def _put(self, orders: Sequence[Order]) -> Answers:
        try:
            answers = self.team.put(orders)
        except FullError:
            raise RefusedError(429, "too many requests, try again in a second") from None
        for order in orders:
            self.texts[order.model] += 1
        return answers

    async def _run(self, orders: Sequence[Order]) -> list[Any]:
        """Results of all; a client that leaves, or waits too long, cancels them."""
        try:
            return await self.team.results(self._put(orders))
        except TimeoutError:
            raise RefusedError(503, self._late) from None
        except ValueError as error:
            raise RefusedError(400, str(error).removeprefix("line 1: ")) from None

    async def _texts(
        self, model: Served, given: str | list[str], html: bool = False, options: Any = ()
    ) -> list[list[str]]:
        """Outputs of each text, best first, distinct."""
        split = split_html if html else _whole if model.kind == "summary" else split_text
        pieces = [split(text) for text in ([given] if isinstance(given, str) else given)]
        orders = [
            Order(model.name, each.text, options)
            for text in pieces
            for each in text
            if each.translate
        ]
        found = iter(await self._run(orders))
        answers = []
        for text in pieces:
            outputs = [next(found) or [""] for piece in text if piece.translate]
            ranks = [
                join(text, [each[min(rank, len(each) - 1)] for each in outputs], markup=html)
                for rank in range(max(map(len, outputs), default=1))
            ]
            answers.append(list(dict.fromkeys(ranks)))
        return answers

    def _find_pair(self, source: str, target: str) -> Served:
        if (source, target) in self.pairs:
            return self.pairs[source, target]
        sources = sorted({each for each, _ in self.pairs})
        if source not in sources:
            raise RefusedError(400, f"{source} is not supported as a source: {', '.join(sources)}")
        targets = sorted(each for other, each in self.pairs if other == source)
        raise RefusedError(400, f"{source} to {target} is not supported: {', '.join(targets)}")

    def _find_model(self, name: str, kind: str) -> Served:
        fits = {each.name: each for each in self.models.values() if each.kind == kind}
        if fits and (not name or name in fits):
            return fits[name or next(iter(fits))]
        raise RefusedError(400, f"no such model for this, there are: {', '.join(fits) or 'none'}")

    async def translate(self, fields: dict[str, Any]) -> dict[str, Any]:
        source, q = fields["source"], fields["q"]
        single, found = isinstance(q, str), dict[str, Any]()
        if source == "auto":
            likely = (await self.detect({"q": q if single else " ".join(q)}))[0]
            source = likely["language"]
            found["detectedLanguage"] = likely if single else [likely] * len(q)
        more = fields.get("alternatives", 0)
        model = self._find_pair(source, fields["target"])
        options = (("n_best", more + 1), ("beam", max(more + 1, 5))) if more else ()
        answers = await self._texts(model, q, fields.get("format") == "html", options)
        best, rest = [each[0] for each in answers], [each[1 : more + 1] for each in answers]
        found["translatedText"] = best[0] if single else best
        if more:
            found["alternatives"] = rest[0] if single else rest
        return found

    async def summarize(self, fields: dict[str, Any]) -> dict[str, Any]:
        model = self._find_model(fields.get("model", ""), "summary")
        answers = await self._texts(model, fields["q"], options=(("too_long", "start"),))
        best = [each[0] for each in answers]
        return {"summary": best[0] if isinstance(fields["q"], str) else best}

    async def words(self, fields: dict[str, Any]) -> dict[str, Any]:
        model = self._find_pair(fields["source"], fields["target"])
        pieces = split_text(fields["q"])
        orders = [Order(model.name, each.text, kind="words") for each in pieces if each.translate]
        found = iter(await self._run(orders))
        return {
            "pieces": [next(found) if each.translate else {"keep": each.text} for each in pieces]
        }

    async def kernels(self, fields: dict[str, Any]) -> Any:
        if fields["model"] not in self.models:
            raise RefusedError(400, f"no such model, there are: {', '.join(self.models)}")
        return (await self._run([Order(fields["model"], fields["q"], kind="kernels")]))[0]

    async def detect(self, fields: dict[str, Any]) -> list[dict[str, Any]]:
        """Source languages by how few unknown and short subwords their models read a text in."""
        if not self.pairs:
            raise RefusedError(400, "no model of this server translates")
        folders = {source: model.folder for (source, _), model in self.pairs.items()}
        shares = guess(fields["q"][:1000], folders)
        return [
            {"language": code, "confidence": round(100 * share, 1)}
            for code, share in sorted(shares.items(), key=lambda each: -each[1])
        ]

    async def complete(self, fields: dict[str, Any]) -> Any:
        model = self._find_model(fields["model"], "completion")
        given = fields["prompt"]
        prompts = [given] if isinstance(given, str) else given
        for name in ("best_of", "logit_bias", "suffix", "presence_penalty", "frequency_penalty"):
            if fields.get(name):
                raise RefusedError(400, f"{name} is not supported")
        n, warm = fields.get("n", 1), float(fields.get("temperature", 1.0))
        most = fields.get("max_tokens", 16)
        options: dict[str, Any] = {"max_len_ratio": 0.0, "max_len_plus": most + 1, "min_len": 1}
        options |= {"n_best": n, "beam": n}
        if warm > 0:
            options |= {"sample": True, "temperature": warm, "seed": fields.get("seed", 0)}
            options |= {"top_p": float(fields.get("top_p", 1.0))}
        streamed = fields.get("stream", False)
        if streamed and (n > 1 or len(prompts) > 1):
            raise RefusedError(400, "stream is for one prompt and n = 1")
        chosen = tuple(sorted(options.items()))
        orders = [Order(model.name, each, chosen, watch=streamed) for each in prompts]
        stops = fields.get("stop") or []
        stops = [stops] if isinstance(stops, str) else stops
        now = time.time_ns()
        head = {"id": f"cmpl-{now:x}", "object": "text_completion", "created": now // 10**9}
        head["model"] = model.name
        if streamed:
            events = self._events(self._put(orders), head, fields, stops, most)
            return Reply(kind="text/event-stream; charset=utf-8", parts=events)
        results = await self._run(orders)
        choices: list[dict[str, Any]] = []
        for prompt, found in zip(prompts, results, strict=True):
            for text, made in zip(found["texts"], found["made"], strict=True):
                shown, ended = _cut(prompt, text, stops)
                reason = "stop" if ended or made <= most else "length"
                shown = prompt + shown if fields.get("echo") else shown
                choices.append(_choice(len(choices), shown, reason))
        return head | {"choices": choices, "usage": _usage(results)}

    async def _events(
        self, answers: Answers, head: Any, fields: dict[str, Any], stops: list[str], most: int
    ) -> AsyncGenerator[str]:
        """Server-sent events; a word is sent when the next but one has come."""
        sent, kind, prompt = "", "text", answers.tickets[0].order.text
        held = max(map(len, stops), default=0)

        def event(**more: Any) -> str:
            return f"data: {json.dumps(head | more, ensure_ascii=False)}\n\n"

        try:
            if fields.get("echo"):
                yield event(choices=[_choice(0, prompt, None)])
            while kind == "text":
                _, kind, value = await answers
                if kind in ("error", "late"):
                    error = (400, value) if kind == "error" else (503, self._late)
                    yield f"data: {json.dumps(_openai_error(*error))}\n\n"
                    return
                text, ended = _cut(prompt, value if kind == "text" else value["texts"][0], stops)
                if kind == "text" and not ended:
                    text = text[: len(text) - held].rpartition(" ")[0].rpartition(" ")[0]
                if text.startswith(sent) and len(text) > len(sent):
                    yield event(choices=[_choice(0, text[len(sent) :], None)])
                    sent = text
            reason = "stop" if ended or value["made"][0] <= most else "length"
            yield event(choices=[_choice(0, "", reason)])
            if (fields.get("stream_options") or {}).get("include_usage"):
                yield event(choices=[], usage=_usage([value]))
            yield "data: [DONE]\n\n"
        finally:
            self.team.cancel(answers)

    # --- what there is

    def describe(self) -> dict[str, Any]:
        names = {"/kernels": list(self.models)}
        for path, kind in (("/summarize", "summary"), ("/v1/completions", "completion")):
            names[path] = [each.name for each in self.models.values() if each.kind == kind]
        return describe(sorted(self.pairs), names)

    def languages(self) -> list[dict[str, Any]]:
        codes = sorted({code for pair in self.pairs for code in pair})
        targets = {code: sorted(t for s, t in self.pairs if s == code) for code in codes}
        return [{**_language(code), "targets": targets[code]} for code in codes]

    def settings(self) -> dict[str, Any]:
        source, target = next(iter(self.pairs), ("", ""))
        return {
            "charLimit": MOST_CHARACTERS,
            "frontendTimeout": 300,
            "apiKeys": bool(self.key),
            "keyRequired": bool(self.key),
            "suggestions": False,
            "filesTranslation": False,
            "supportedFilesFormat": [],
            "language": {"source": _language(source), "target": _language(target)},
        }

    def list_models(self) -> dict[str, Any]:
        data = [
            {"id": each.name, "object": "model", "created": 0, "owned_by": "lightconv"}
            | {"kind": each.kind, "source": each.source, "target": each.target}
            for each in self.models.values()
        ]
        return {"object": "list", "data": data}

    def metrics(self) -> Reply:
        """Prometheus's text format."""
        total, rows = 0, list[str]()
        for edge in BUCKETS:
            total += self.times[edge]
            rows.append(f'_bucket{{le="{str(edge).replace("inf", "+Inf")}"}} {total}')
        rows += [f"_sum {self.total_seconds:.6f}", f"_count {total}"]
        asked = sorted(self.requests.items())
        found = {
            "requests_total counter": [f'{{path="{p}",status="{s}"}} {n}' for (p, s), n in asked],
            "texts_total counter": [f'{{model="{m}"}} {n}' for m, n in self.texts.items()],
            "texts_waiting gauge": [f" {self.team.waiting}"],
            "texts_running gauge": [f" {self.team.running}"],
            "worker_restarts_total counter": [f" {self.team.restarts}"],
            "request_seconds histogram": rows,
        }
        text = ""
        for title, values in found.items():
            name = f"lightconv_{title.partition(' ')[0]}"
            text += f"# TYPE lightconv_{title}\n" + "".join(f"{name}{each}\n" for each in values)
        return Reply(text.encode(), kind="text/plain; version=0.0.4; charset=utf-8")


def _read(headers: Headers, name: bytes) -> str:
    return headers.get(name, b"").decode("latin-1")


def _refuse(status: int, message: str, path: str) -> Reply:
    message = message.encode("utf-8", "replace").decode()
    openai = path.startswith("/v1/")
    headers = {"retry-after": "1"} if status == 429 else {}
    if status == 405:
        headers["allow"] = "POST" if path in PATHS and PATHS[path].takes else "GET"
    body = _openai_error(status, message) if openai else {"error": message}
    return Reply.json(body, status, **headers)


def _openai_error(status: int, message: str) -> dict[str, Any]:
    kind = "invalid_request_error" if status < 500 else "server_error"
    kind = {401: "authentication_error", 429: "rate_limit_error"}.get(status, kind)
    return {"error": {"message": message, "type": kind, "param": None, "code": None}}


def _language(code: str) -> dict[str, Any]:
    return {"code": code, "name": NAMES.get(code.partition("_")[0], code)}


def _whole(text: str) -> list[Piece]:
    return [Piece(" ".join(text.split()), True)] if text.strip() else []


def _choice(index: int, text: str, reason: str | None) -> dict[str, Any]:
    return {"index": index, "text": text, "logprobs": None, "finish_reason": reason}


def _cut(prompt: str, text: str, stops: Sequence[str]) -> tuple[str, bool]:
    """A completion up to the first of the stops, and whether there is one.

    It has a space in front unless it begins the text.
    """
    text = f" {text}" if prompt.strip() and not prompt[-1].isspace() else text
    places = [text.find(stop) for stop in stops if stop in text]
    return (text[: min(places)], True) if places else (text, False)


def _usage(results: Sequence[Any]) -> dict[str, int]:
    read, made = sum(each["read"] for each in results), sum(sum(each["made"]) for each in results)
    return {"prompt_tokens": read, "completion_tokens": made, "total_tokens": read + made}
