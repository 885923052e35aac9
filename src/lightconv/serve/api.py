"""Requests of the server: fields with their bounds, checked here and told by /openapi.json."""

import json
from typing import Any
from urllib.parse import parse_qs

from lightconv import __version__

Schema = dict[str, Any]

MOST_TEXTS = 128  # of a request
MOST_CHARACTERS = 20_000  # of a text
MOST_TOKENS = 1024  # of a completion
MOST_EXPLAINED = 1000  # characters of a text whose words or kernels are shown
_TYPES: dict[str, Any] = {
    "string": str,
    "integer": int,
    "number": (int, float),
    "boolean": bool,
    "array": list,
    "object": dict,
    "null": type(None),
}


def _text(**more: Any) -> Schema:
    return {"type": "string", "maxLength": MOST_CHARACTERS, **more}


def _number(kind: str, least: float, most: float, **more: Any) -> Schema:
    return {"type": kind, "minimum": least, "maximum": most, **more}


def _or_list(one: Schema) -> Schema:
    return {"anyOf": [one, {"type": "array", "items": one, "maxItems": MOST_TEXTS}]}


def _object(required: tuple[str, ...] = (), **fields: Schema) -> Schema:
    return {"type": "object", "required": list(required), "properties": fields}


_KEY = {"type": "string", "description": "the key, if the server asks for one"}
_TEXTS = _or_list(_text())
_ANSWERS = _or_list({"type": "string"})
_LANGUAGE = {"type": "string"}
_NUMBERS = {"type": "array", "items": {"type": "number"}}
# Errors of the two families.
PLAIN_ERROR = _object(("error",), error={"type": "string"})
OPENAI_ERROR = _object(
    ("error",), error=_object(("message", "type"), message=_LANGUAGE, type=_LANGUAGE)
)

# path -> (method, what it does, request, response)
ROUTES: dict[str, tuple[str, str, Schema | None, Schema]] = {
    "/translate": (
        "post",
        "Translates a text or a list of them.",
        _object(
            ("q", "source", "target"),
            q=_TEXTS,
            source=_LANGUAGE,
            target=_LANGUAGE,
            format={"type": "string", "enum": ["text", "html"]},
            alternatives=_number("integer", 0, 9),
            api_key=_KEY,
        ),
        _object(("translatedText",), translatedText=_ANSWERS),
    ),
    "/detect": (
        "post",
        "Guesses the language of a text, among those the models read.",
        _object(("q",), q=_text(), api_key=_KEY),
        {"type": "array", "items": _object(confidence={"type": "number"}, language=_LANGUAGE)},
    ),
    "/languages": (
        "get",
        "Languages, each with those it is translated into.",
        None,
        {"type": "array", "items": _object(code=_LANGUAGE, name=_LANGUAGE)},
    ),
    "/summarize": (
        "post",
        "Summarises a text or a list of them.",
        _object(("q",), q=_TEXTS, model=_LANGUAGE, api_key=_KEY),
        _object(("summary",), summary=_ANSWERS),
    ),
    "/words": (
        "post",
        "A translation word by word: what each came from, and the log-probability of each.",
        _object(
            ("q", "source", "target"),
            q=_text(maxLength=MOST_EXPLAINED),
            source=_LANGUAGE,
            target=_LANGUAGE,
            api_key=_KEY,
        ),
        _object(("pieces",), pieces={"type": "array", "items": {"type": "object"}}),
    ),
    "/kernels": (
        "post",
        "Kernels that each DynamicConv layer of a model makes for a text.",
        _object(("q", "model"), q=_text(maxLength=MOST_EXPLAINED), model=_LANGUAGE, api_key=_KEY),
        _object(("tokens", "layers"), layers={"type": "array", "items": {"type": "object"}}),
    ),
    "/v1/completions": (
        "post",
        "Continues a prompt, or each of a list, as OpenAI's API does.",
        _object(
            ("model", "prompt"),
            model=_LANGUAGE,
            prompt=_TEXTS,
            max_tokens=_number("integer", 1, MOST_TOKENS),
            temperature=_number("number", 0, 2),
            top_p=_number("number", 0.01, 1),
            n=_number("integer", 1, 8),
            stream={"type": "boolean"},
            stream_options=_object(include_usage={"type": "boolean"}),
            stop={
                "anyOf": [
                    _text(minLength=1),
                    {"type": "array", "items": _text(minLength=1), "maxItems": 4},
                    {"type": "null"},
                ]
            },
            seed=_number("integer", 0, 2**31),
            echo={"type": "boolean"},
            user={"type": "string"},
        ),
        _object(
            ("id", "object", "choices"), choices={"type": "array", "items": {"type": "object"}}
        ),
    ),
    "/v1/models": (
        "get",
        "The models by name.",
        None,
        _object(("data",), data={"type": "array", "items": {"type": "object"}}),
    ),
    "/health": ("get", "Whether the server answers.", None, _object(("status",))),
    "/frontend/settings": ("get", "Limits, for user interfaces.", None, {"type": "object"}),
}


def parse_body(body: bytes, kind: str) -> dict[str, Any]:
    """A JSON object or a form; ValueError says what was expected."""
    if kind.partition(";")[0].strip().lower() == "application/x-www-form-urlencoded":
        try:
            form = parse_qs(
                body.decode(), keep_blank_values=True, max_num_fields=200, errors="strict"
            )
        except ValueError as error:
            raise ValueError(f"the form cannot be read: {error}") from None
        return {name: each[0] if len(each) == 1 else each for name, each in form.items()}
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        raise ValueError("the body is neither JSON nor a form, expected one of them") from None
    if not isinstance(found, dict):
        raise ValueError(f"the body is a {type(found).__name__}, expected an object of fields")
    return found


def check(value: Any, schema: Schema, name: str = "the body") -> Any:
    """The value, with numbers of a form converted; ValueError names the field."""
    if "anyOf" in schema:
        kinds = [each for each in schema["anyOf"] if _fits(value, each)]
        if not kinds:
            names = " or ".join(each["type"] for each in schema["anyOf"])
            raise ValueError(f"{name} is a {type(value).__name__}, expected {names}")
        return check(value, kinds[0], name)
    kind = schema["type"]
    if isinstance(value, str) and kind in ("integer", "number"):
        try:
            value = int(value) if kind == "integer" else float(value)
        except ValueError:
            raise ValueError(f"{name} is {value[:40]!r}, expected a number") from None
    if kind == "integer" and isinstance(value, float) and value.is_integer():
        value = int(value)
    if not _fits(value, schema):
        raise ValueError(f"{name} is a {type(value).__name__}, expected {kind}")
    if kind == "string":
        _check_text(value, schema, name)
    elif kind in ("integer", "number"):
        least, most = schema.get("minimum", value), schema.get("maximum", value)
        if not least <= value <= most:
            raise ValueError(f"{name} is {value:g}, expected {least:g} to {most:g}")
    elif kind == "array":
        if len(value) > schema.get("maxItems", len(value)):
            raise ValueError(
                f"{name} has {len(value)} items, expected at most {schema['maxItems']}"
            )
        return [check(each, schema["items"], f"{name}[{i}]") for i, each in enumerate(value)]
    elif kind == "object":
        for each in schema.get("required", ()):
            if each not in value:
                raise ValueError(f"{each} is missing")
        known = schema.get("properties", {})
        return {
            key: check(each, known[key], key) if key in known else each
            for key, each in value.items()
        }
    return value


def _check_text(value: str, schema: Schema, name: str) -> None:
    if "enum" in schema and value not in schema["enum"]:
        raise ValueError(f"{name} is {value[:40]!a}, expected {' or '.join(schema['enum'])}")
    least, most = schema.get("minLength", 0), schema.get("maxLength", len(value))
    if not least <= len(value) <= most:
        raise ValueError(f"{name} has {len(value)} characters, expected {least} to {most}")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"{name} has half a character at {error.start}, expected UTF-8") from None


def _fits(value: Any, schema: Schema) -> bool:
    kind = _TYPES[schema["type"]]
    is_flag = isinstance(value, bool) and schema["type"] != "boolean"
    return isinstance(value, kind) and not is_flag


def describe(pairs: list[tuple[str, str]], models: dict[str, list[str]]) -> Schema:
    """The OpenAPI document. pairs: languages of /translate; models: names by path."""
    paths: Schema = {}
    for path, (method, about, request, response) in ROUTES.items():
        error = OPENAI_ERROR if path.startswith("/v1/") else PLAIN_ERROR
        answers = {"200": ("an answer", response)}
        if request is not None:
            answers |= dict.fromkeys(("400", "401", "403", "413", "429", "500", "503"), ("", error))
        paths[path] = {
            method: {
                "summary": about,
                "operationId": path.strip("/").replace("/", "_"),
                "responses": {
                    code: {
                        "description": text or "an error",
                        "content": {"application/json": {"schema": schema}},
                    }
                    for code, (text, schema) in answers.items()
                },
            }
        }
        if request is not None:
            fields = dict(request["properties"])
            if "source" in fields:
                for name, each in zip(("source", "target"), zip(*pairs, strict=True), strict=False):
                    fields[name] = {"type": "string", "enum": sorted(set(each))}
            if path in models:
                fields["model"] = {"type": "string", "enum": models[path]}
            body = {"application/json": {"schema": {**request, "properties": fields}}}
            paths[path][method]["requestBody"] = {"required": True, "content": body}
    info = {"title": "lightconv", "version": __version__}
    return {"openapi": "3.1.0", "info": info, "paths": paths}
