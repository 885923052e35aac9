"""The application: LibreTranslate's API, OpenAI's completions, summaries, the page."""

import asyncio
import hmac
import json
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from lightconv.config import read_plain
from lightconv.data.pipeline import PIPELINE_FILE
from lightconv.models.folder import ModelFolder
from lightconv.serve.api import MOST_CHARACTERS, ROUTES, check, describe, parse_body
from lightconv.serve.pool import FullError, Order, Team, Ticket
from lightconv.serve.texts import Piece, join, split_html, split_text

MOST_BYTES = 1 << 20  # of a body
MOST_DROPPED = 16 << 20  # of a body that is read only to be refused
SECONDS = 30.0  # of a request
NAMES = {
    **{"ar": "Arabic", "bg": "Bulgarian", "cs": "Czech", "da": "Danish", "de": "German"},
    **{"el": "Greek", "en": "English", "eo": "Esperanto", "es": "Spanish", "et": "Estonian"},
    **{"fi": "Finnish", "fr": "French", "he": "Hebrew", "hi": "Hindi", "hu": "Hungarian"},
    **{"id": "Indonesian", "it": "Italian", "ja": "Japanese", "ko": "Korean", "lt": "Lithuanian"},
    **{"lv": "Latvian", "nl": "Dutch", "no": "Norwegian", "pl": "Polish", "pt": "Portuguese"},
    **{"ro": "Romanian", "ru": "Russian", "sk": "Slovak", "sl": "Slovenian", "sv": "Swedish"},
    **{"tr": "Turkish", "uk": "Ukrainian", "vi": "Vietnamese", "zh": "Chinese"},
}
BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
# The page needs nothing from elsewhere, and nobody may put it into a frame.
POLICY = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
POLICY += "img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
PAGE = {"/": ("page.html", "text/html"), "/page.css": ("page.css", "text/css")}
PAGE["/page.js"] = ("page.js", "text/javascript")


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


class RefusedError(Exception):
    """An answer other than 200."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status, self.message = status, message


Handler = Callable[[Request, dict[str, Any]], Awaitable[Response]]


class App:
    """An ASGI application. key: what clients must send, or ""."""

    def __init__(
        self,
        models: Sequence[Served],
        pool: Team,
        *,
        key: str = "",
        hosts: Sequence[str] | None = None,
        origins: Sequence[str] = (),
        seconds: float = SECONDS,
        log: bool = True,
    ) -> None:
        self.models = {each.name: each for each in models}
        self.pairs = {(m.source, m.target): m for m in models if m.kind == "translation"}
        self.pool, self.key, self.seconds = pool, key, seconds
        self.hosts, self.origins, self.log = hosts, origins, log
        self.draining = False
        self.requests: Counter[tuple[str, int]] = Counter()
        self.texts: Counter[str] = Counter()
        self.times: Counter[float] = Counter()
        self.total_seconds = 0.0
        here = files("lightconv.serve")
        self._page = {path: (here / name).read_bytes() for path, (name, _) in PAGE.items()}
        post: dict[str, Handler] = {
            "/translate": self.translate,
            "/detect": self.detect,
            "/summarize": self.summarize,
            "/words": self.words,
            "/kernels": self.kernels,
            "/v1/completions": self.complete,
        }
        get: dict[str, Callable[[], Any]] = {
            "/languages": self.languages,
            "/health": lambda: {"status": "ok"},
            "/frontend/settings": self.settings,
            "/v1/models": self.list_models,
            "/openapi.json": self.describe,
        }
        routes = [
            Route(path, self._posted(path, each), methods=["POST"]) for path, each in post.items()
        ]
        routes += [Route(path, self._got(each), methods=["GET"]) for path, each in get.items()]
        routes += [Route(path, self._static, methods=["GET"]) for path in PAGE]
        routes.append(Route("/metrics", self._metrics, methods=["GET"]))
        self._starlette = Starlette(
            routes=routes, exception_handlers={404: _missing, 405: _missing}
        )

    # --- every request

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        begin = time.perf_counter()
        status = 0
        headers = dict(scope["headers"])
        origin = headers.get(b"origin", b"").decode("latin-1")

        async def answer(message: Any) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                extra = [(b"x-content-type-options", b"nosniff")]
                if self.draining or status in (408, 413):
                    extra.append((b"connection", b"close"))
                if origin and origin in self.origins:
                    extra += [
                        (b"access-control-allow-origin", origin.encode()),
                        (b"vary", b"origin"),
                    ]
                message["headers"] = [*message["headers"], *extra]
            await send(message)

        if reason := self._forbid(scope, headers, origin):
            await JSONResponse({"error": reason}, 403)(scope, receive, answer)
        elif scope["method"] == "OPTIONS" and origin in self.origins:
            allowed = {"access-control-allow-headers": "content-type, authorization"}
            await Response(status_code=204, headers=allowed)(scope, receive, answer)
        else:
            await self._starlette(scope, receive, answer)
        seconds = time.perf_counter() - begin
        known = scope["path"] if scope["path"] in ROUTES or scope["path"] in PAGE else "other"
        self.requests[known, status] += 1
        self.times[next((each for each in BUCKETS if seconds <= each), float("inf"))] += 1
        self.total_seconds += seconds
        if self.log:
            now, who = time.strftime("%H:%M:%S"), (scope.get("client") or ("-",))[0]
            line = f"{now} {who} {scope['method']} {known} {status} {seconds * 1e3:.1f} ms\n"
            sys.stderr.write(line)

    def _forbid(self, scope: Any, headers: dict[bytes, bytes], origin: str) -> str:
        """The reason why a request is refused: a name or a page of somebody else's."""
        host = headers.get(b"host", b"").decode("latin-1")
        name = host.rpartition(":")[0] if not host.endswith("]") and ":" in host else host
        if self.hosts is not None and host and name not in self.hosts:
            return "this server answers to its own address only"
        if origin and origin not in self.origins and origin.partition("://")[2] != host:
            return "requests of other pages are not allowed; --allow-origin allows them"
        return ""

    def _posted(self, path: str, handler: Handler) -> Callable[[Request], Awaitable[Response]]:
        schema = ROUTES[path][2]
        assert schema is not None
        openai = path.startswith("/v1/")

        async def answer(request: Request) -> Response:
            try:
                body = await _read(request)
                try:
                    fields = parse_body(body, request.headers.get("content-type", ""))
                    self._authorize(request, fields, openai)
                    fields = check(fields, schema)
                except ValueError as error:
                    raise RefusedError(400, str(error)) from None
                return await handler(request, fields)
            except RefusedError as error:
                return _error(error.status, error.message, openai)

        return answer

    def _authorize(self, request: Request, fields: dict[str, Any], openai: bool) -> None:
        if not self.key:
            return
        given = request.headers.get("authorization", "").removeprefix("Bearer ").strip()
        given = given or str(fields.get("api_key") or "")
        if not given:
            raise RefusedError(
                401 if openai else 400, "a key is needed: api_key, or a Bearer header"
            )
        if not hmac.compare_digest(given.encode("utf-8", "replace"), self.key.encode()):
            raise RefusedError(401 if openai else 403, "the key is not the right one")

    def _got(self, make: Callable[[], Any]) -> Callable[[Request], Awaitable[Response]]:
        async def answer(request: Request) -> Response:
            return JSONResponse(make())

        return answer

    async def _static(self, request: Request) -> Response:
        kind = PAGE[request.url.path][1]
        headers = {"content-security-policy": POLICY, "cache-control": "no-cache"}
        return Response(self._page[request.url.path], media_type=kind, headers=headers)

    # --- work

    async def _run(self, request: Request, works: Sequence[Order]) -> list[Any]:
        """Results of all; a client that leaves, or waits too long, cancels them."""
        jobs = self._put(works)
        results = asyncio.gather(*(self.pool.result(job) for job in jobs))
        results.add_done_callback(lambda done: done.cancelled() or done.exception())
        gone = asyncio.ensure_future(_gone(request))
        try:
            await asyncio.wait((results, gone), timeout=self.seconds, return_when="FIRST_COMPLETED")
            if not results.done():
                self.pool.cancel(jobs)
                raise RefusedError(503, f"no answer within {self.seconds:g} s")
            return list(results.result())
        except ValueError as error:
            self.pool.cancel(jobs)
            raise RefusedError(400, _own_words(error)) from None
        finally:
            results.cancel()
            gone.cancel()

    def _put(self, works: Sequence[Order]) -> list[Ticket]:
        try:
            jobs = self.pool.put(works)
        except FullError:
            raise RefusedError(429, "too many requests, try again in a second") from None
        for work in works:
            self.texts[work.model] += 1
        return jobs

    async def _texts(
        self, request: Request, model: Served, given: str | list[str], html: bool, options: Any
    ) -> list[list[str]]:
        """Outputs of each text, best first, distinct."""
        texts = [given] if isinstance(given, str) else given
        split: Callable[[str], list[Piece]] = split_html if html else split_text
        if model.kind == "summary":
            split = _whole
        pieces = [split(text) for text in texts]
        works = [
            Order(model.name, piece.text, options)
            for each in pieces
            for piece in each
            if piece.translate
        ]
        found = iter(await self._run(request, works) if works else [])
        answers = []
        for text in pieces:
            outputs = [
                [each["text"] for each in next(found)["outputs"]] or [""]
                for piece in text
                if piece.translate
            ]
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
        fits = [each for each in self.models.values() if each.kind == kind]
        if name in self.models and self.models[name] in fits:
            return self.models[name]
        if not name and fits:
            return fits[0]
        names = ", ".join(each.name for each in fits) or "none"
        raise RefusedError(400, f"no such model for this, there are: {names}")

    async def translate(self, request: Request, fields: dict[str, Any]) -> Response:
        source, q = fields["source"], fields["q"]
        found: dict[str, Any] = {}
        if source == "auto":
            sample = q if isinstance(q, str) else " ".join(q)
            guess = self._guess(sample)[0]
            source = guess["language"]
            one = isinstance(q, str)
            found["detectedLanguage"] = guess if one else [guess] * len(q)
        more = fields.get("alternatives", 0)
        model = self._find_pair(source, fields["target"])
        options = (("n_best", more + 1), ("beam", max(more + 1, 5))) if more else ()
        html = fields.get("format") == "html"
        answers = await self._texts(request, model, q, html, options)
        best = [each[0] for each in answers]
        rest = [each[1 : more + 1] for each in answers]
        found["translatedText"] = best[0] if isinstance(q, str) else best
        if more:
            found["alternatives"] = rest[0] if isinstance(q, str) else rest
        return JSONResponse(found)

    async def summarize(self, request: Request, fields: dict[str, Any]) -> Response:
        model = self._find_model(fields.get("model", ""), "summary")
        options = (("too_long", "start"),)
        answers = await self._texts(request, model, fields["q"], False, options)
        best = [each[0] for each in answers]
        return JSONResponse({"summary": best[0] if isinstance(fields["q"], str) else best})

    async def words(self, request: Request, fields: dict[str, Any]) -> Response:
        model = self._find_pair(fields["source"], fields["target"])
        pieces = split_text(fields["q"])
        works = [Order(model.name, each.text, kind="words") for each in pieces if each.translate]
        found = iter(await self._run(request, works) if works else [])
        told = [next(found) if each.translate else {"keep": each.text} for each in pieces]
        return JSONResponse({"pieces": told})

    async def kernels(self, request: Request, fields: dict[str, Any]) -> Response:
        if fields["model"] not in self.models:
            raise RefusedError(400, f"no such model, there are: {', '.join(self.models)}")
        (found,) = await self._run(request, [Order(fields["model"], fields["q"], kind="kernels")])
        return JSONResponse(found)

    async def detect(self, request: Request, fields: dict[str, Any]) -> Response:
        return JSONResponse(self._guess(fields["q"]))

    def _guess(self, text: str) -> list[dict[str, Any]]:
        """Source languages by how few unknown and short subwords their models read a text in."""
        if not self.pairs:
            raise RefusedError(400, "no model of this server translates")
        from lightconv.serve.texts import guess

        folders = {source: model.folder for (source, _), model in self.pairs.items()}
        shares = guess(text[:1000], folders)
        return [
            {"language": code, "confidence": round(100 * share, 1)}
            for code, share in sorted(shares.items(), key=lambda each: -each[1])
        ]

    async def complete(self, request: Request, fields: dict[str, Any]) -> Response:
        model = self._find_model(fields["model"], "completion")
        given = fields["prompt"]
        prompts = [given] if isinstance(given, str) else given
        for name in ("best_of", "logit_bias", "suffix", "presence_penalty", "frequency_penalty"):
            if fields.get(name):
                raise RefusedError(400, f"{name} is not supported")
        most, n = fields.get("max_tokens", 16), fields.get("n", 1)
        warm = fields.get("temperature", 1.0)
        options: dict[str, Any] = {"max_len_ratio": 0.0, "max_len_plus": most + 1, "min_len": 1}
        options |= {"n_best": n, "beam": n}
        if warm > 0:
            options |= {"sample": True, "temperature": float(warm)}
            options |= {"top_p": float(fields.get("top_p", 1.0)), "seed": fields.get("seed", 0)}
        streamed = fields.get("stream", False)
        if streamed and (n > 1 or len(prompts) > 1):
            raise RefusedError(400, "stream is for one prompt and n = 1")
        stops = fields.get("stop") or []
        stops = [stops] if isinstance(stops, str) else stops
        chosen = tuple(sorted(options.items()))
        works = [Order(model.name, each, chosen, watch=streamed) for each in prompts]
        head = {
            "id": f"cmpl-{time.time_ns():x}",
            "object": "text_completion",
            "created": int(time.time()),
            "model": model.name,
        }
        if streamed:
            (job,) = self._put(works)
            usage = bool((fields.get("stream_options") or {}).get("include_usage"))
            echo = prompts[0] if fields.get("echo") else ""
            body = self._stream(job, head, prompts[0], echo, stops, most, usage)
            return StreamingResponse(body, media_type="text/event-stream")
        results = await self._run(request, works)
        choices: list[dict[str, Any]] = []
        for prompt, found in zip(prompts, results, strict=True):
            for output in found["outputs"]:
                text, ended = _cut(_joined(prompt, output["completion"]), stops)
                reason = "stop" if ended or len(output["tokens"]) <= most else "length"
                text = prompt + text if fields.get("echo") else text
                choices.append(_choice(len(choices), text, reason))
        return JSONResponse(head | {"choices": choices, "usage": _usage(results)})

    async def _stream(
        self,
        job: Ticket,
        head: Any,
        prompt: str,
        echo: str,
        stops: list[str],
        most: int,
        usage: bool,
    ) -> AsyncIterator[str]:
        """Server-sent events; a word is sent when the next but one has come."""
        sent = ""

        def event(**more: Any) -> str:
            return f"data: {json.dumps(head | more, ensure_ascii=False)}\n\n"

        try:
            if echo:
                yield event(choices=[_choice(0, echo, None)])
            async with asyncio.timeout(self.seconds):
                async for kind, value in self.pool.events(job):
                    if kind == "error":
                        yield f"data: {json.dumps(_openai_error(400, value))}\n\n"
                        return
                    done = kind == "done"
                    whole = value["outputs"][0]["completion"] if done else value
                    text, ended = _cut(_joined(prompt, whole), stops)
                    if not done and not ended:
                        held = max(map(len, stops), default=0)
                        text = text[: len(text) - held].rpartition(" ")[0].rpartition(" ")[0]
                    if text.startswith(sent) and len(text) > len(sent):
                        yield event(choices=[_choice(0, text[len(sent) :], None)])
                        sent = text
                    if done:
                        tokens = value["outputs"][0]["tokens"]
                        reason = "stop" if ended or len(tokens) <= most else "length"
                        yield event(choices=[_choice(0, "", reason)])
                        if usage:
                            yield event(choices=[], usage=_usage([value]))
                        yield "data: [DONE]\n\n"
        except TimeoutError:
            late = _openai_error(503, f"no answer within {self.seconds:g} s")
            yield f"data: {json.dumps(late)}\n\n"
        finally:
            self.pool.cancel([job])

    # --- what there is

    def describe(self) -> dict[str, Any]:
        kinds = {"/summarize": "summary", "/v1/completions": "completion"}
        names = {
            path: [each.name for each in self.models.values() if each.kind == kind]
            for path, kind in kinds.items()
        }
        return describe(sorted(self.pairs), names | {"/kernels": list(self.models)})

    def languages(self) -> list[dict[str, Any]]:
        codes = sorted({code for pair in self.pairs for code in pair})
        return [
            {
                "code": code,
                "name": NAMES.get(code.partition("_")[0], code),
                "targets": sorted(target for source, target in self.pairs if source == code),
            }
            for code in codes
        ]

    def settings(self) -> dict[str, Any]:
        first = next(iter(self.pairs), ("", ""))
        language = {
            side: {"code": code, "name": NAMES.get(code, code)}
            for side, code in zip(("source", "target"), first, strict=True)
        }
        return {
            "charLimit": MOST_CHARACTERS,
            "frontendTimeout": 300,
            "apiKeys": bool(self.key),
            "keyRequired": bool(self.key),
            "suggestions": False,
            "filesTranslation": False,
            "supportedFilesFormat": [],
            "language": language,
        }

    def list_models(self) -> dict[str, Any]:
        data = [
            {"id": each.name, "object": "model", "created": 0, "owned_by": "lightconv"}
            | {"kind": each.kind, "source": each.source, "target": each.target}
            for each in self.models.values()
        ]
        return {"object": "list", "data": data}

    async def _metrics(self, request: Request) -> Response:
        rows = ["# TYPE lightconv_requests_total counter"]
        for (path, status), count in sorted(self.requests.items()):
            rows.append(f'lightconv_requests_total{{path="{path}",status="{status}"}} {count}')
        rows.append("# TYPE lightconv_texts_total counter")
        rows += [f'lightconv_texts_total{{model="{m}"}} {n}' for m, n in self.texts.items()]
        gauges = {"waiting": self.pool.waiting, "running": self.pool.running}
        for name, value in gauges.items():
            rows += [f"# TYPE lightconv_texts_{name} gauge", f"lightconv_texts_{name} {value}"]
        rows.append("# TYPE lightconv_worker_restarts_total counter")
        rows.append(f"lightconv_worker_restarts_total {self.pool.restarts}")
        rows.append("# TYPE lightconv_request_seconds histogram")
        total = 0
        for edge in (*BUCKETS, float("inf")):
            total += self.times[edge]
            name = "+Inf" if edge == float("inf") else f"{edge:g}"
            rows.append(f'lightconv_request_seconds_bucket{{le="{name}"}} {total}')
        rows.append(f"lightconv_request_seconds_sum {self.total_seconds:.6f}")
        rows.append(f"lightconv_request_seconds_count {total}")
        kind = "text/plain; version=0.0.4; charset=utf-8"
        return PlainTextResponse("\n".join(rows) + "\n", media_type=kind)


async def _read(request: Request) -> bytes:
    """The body, of at most MOST_BYTES; a client reads its refusal when all of it is sent."""
    length = request.headers.get("content-length", "0")
    parts, size = [], int(length) if length.isdecimal() else 0
    if size <= MOST_DROPPED:
        size = 0
        async for chunk in request.stream():
            size += len(chunk)
            if size <= MOST_BYTES:
                parts.append(chunk)
            elif size > MOST_DROPPED:
                break
        if size <= MOST_BYTES:
            return b"".join(parts)
    raise RefusedError(413, f"the body is longer than {MOST_BYTES} bytes")


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _missing(request: Request, error: Any) -> Response:
    return _error(error.status_code, error.detail, False, getattr(error, "headers", None))


def _error(status: int, message: str, openai: bool, headers: Any = None) -> Response:
    headers = {"retry-after": "1"} if status == 429 else headers
    body = _openai_error(status, message) if openai else {"error": message}
    return JSONResponse(body, status, headers)


def _openai_error(status: int, message: str) -> dict[str, Any]:
    kind = "invalid_request_error" if status < 500 else "server_error"
    kind = {401: "authentication_error", 429: "rate_limit_error"}.get(status, kind)
    return {"error": {"message": message, "type": kind, "param": None, "code": None}}


def _own_words(error: ValueError) -> str:
    return str(error).removeprefix("line 1: ").encode("utf-8", "replace").decode()


def _whole(text: str) -> list[Piece]:
    return [Piece(" ".join(text.split()), True)] if text.strip() else []


def _choice(index: int, text: str, reason: str | None) -> dict[str, Any]:
    return {"index": index, "text": text, "logprobs": None, "finish_reason": reason}


def _joined(prompt: str, completion: str) -> str:
    """A completion with a space in front unless it begins the text."""
    return f" {completion}" if prompt.strip() and not prompt[-1].isspace() else completion


def _cut(text: str, stops: Sequence[str]) -> tuple[str, bool]:
    """The text up to the first of the stops, and whether there is one."""
    places = [text.find(stop) for stop in stops if stop in text]
    return (text[: min(places)], True) if places else (text, False)


def _usage(results: Sequence[Any]) -> dict[str, int]:
    read = sum(each["read"] for each in results)
    made = sum(len(output["tokens"]) for each in results for output in each["outputs"])
    return {"prompt_tokens": read, "completion_tokens": made, "total_tokens": read + made}
