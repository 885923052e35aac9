"""Requests of the server: fields with their bounds, checked here and told by /openapi.json."""

import json
from typing import Any, NamedTuple
from urllib.parse import parse_qs

from lightconv import __version__

Schema = dict[str, Any]

MOST_TEXTS = 128  # of a request
MOST_CHARACTERS = 20_000  # of a text
MOST_TOKENS = 1024  # of a completion
MOST_EXPLAINED = 1000  # characters of a text whose words or kernels are shown
_TYPES: dict[str, Any] = {
    **{"string": str, "integer": int, "number": (int, float), "boolean": bool},
    **{"array": list, "object": dict, "null": type(None)},
}


def _array(items: Schema, **more: Any) -> Schema:
    return {"type": "array", "items": items, **more}


def _number(kind: str, least: float, most: float) -> Schema:
    return {"type": kind, "minimum": least, "maximum": most}


def _object(needed: str = "", **fields: Schema) -> Schema:
    return {"type": "object", "required": needed.split(), "properties": fields}


_STRING: Schema = {"type": "string"}
_FLAG: Schema = {"type": "boolean"}
_TEXT = {"type": "string", "maxLength": MOST_CHARACTERS}
_SHORT = {"type": "string", "maxLength": MOST_EXPLAINED}
_STOP = {"type": "string", "minLength": 1, "maxLength": 100}
_TEXTS = {"anyOf": [_TEXT, _array(_TEXT, maxItems=MOST_TEXTS)]}
_ANSWERS = {"anyOf": [_STRING, _array(_STRING)]}
_EVENT = _object("data", data=_STRING)
_OBJECTS = _array({"type": "object"})
_LANGUAGES = {"source": _STRING, "target": _STRING}
_KEY = {"api_key": {"type": "string", "description": "the key, if the server asks for one"}}
# Errors of the two families.
PLAIN_ERROR = _object("error", error=_STRING)
OPENAI_ERROR = _object("error", error=_object("message type", message=_STRING, type=_STRING))


class Path(NamedTuple):
    """A path, for documents and checks; `takes` is None if it is read by GET."""

    about: str
    takes: Schema | None
    gives: Schema


PATHS = {
    "/translate": Path(
        "Translates a text or a list of them.",
        _object(
            "q source target",
            **{"q": _TEXTS, **_LANGUAGES, **_KEY},
            format={"type": "string", "enum": ["text", "html"]},
            alternatives=_number("integer", 0, 9),
        ),
        _object("translatedText", translatedText=_ANSWERS),
    ),
    "/detect": Path(
        "Guesses the language of a text, among those the models read.",
        _object("q", q=_TEXT, **_KEY),
        _array(_object(confidence={"type": "number"}, language=_STRING)),
    ),
    "/languages": Path(
        "Languages, each with those it is translated into.",
        None,
        _array(_object(code=_STRING, name=_STRING, targets=_array(_STRING))),
    ),
    "/summarize": Path(
        "Summarises a text or a list of them.",
        _object("q", q=_TEXTS, model=_STRING, **_KEY),
        _object("summary", summary=_ANSWERS),
    ),
    "/words": Path(
        "A translation word by word: what each came from, and the log-probability of each.",
        _object("q source target", q=_SHORT, **_LANGUAGES, **_KEY),
        _object("pieces", pieces=_OBJECTS),
    ),
    "/kernels": Path(
        "Kernels that each DynamicConv layer of a model makes for a text.",
        _object("q model", q=_SHORT, model=_STRING, **_KEY),
        _object("tokens layers", tokens=_array(_STRING), layers=_OBJECTS),
    ),
    "/v1/completions": Path(
        "Continues a prompt, or each of a list, as OpenAI's API does.",
        _object(
            "model prompt",
            model=_STRING,
            prompt=_TEXTS,
            max_tokens=_number("integer", 1, MOST_TOKENS),
            temperature=_number("number", 0, 2),
            top_p=_number("number", 0.01, 1),
            n=_number("integer", 1, 8),
            stream=_FLAG,
            stream_options=_object(include_usage=_FLAG),
            stop={"anyOf": [_STOP, _array(_STOP, maxItems=4), {"type": "null"}]},
            seed=_number("integer", 0, 2**31),
            echo=_FLAG,
            user=_STRING,
        ),
        _object("id object choices", choices=_OBJECTS),
    ),
    "/v1/models": Path("The models by name.", None, _object("data", data=_OBJECTS)),
    "/health": Path("Tells that the server answers.", None, _object("status")),
    "/frontend/settings": Path("Limits, for user interfaces.", None, _object("charLimit")),
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
    kinds = schema.get("anyOf", [schema])
    if kinds[0]["type"] in ("integer", "number") and isinstance(value, str | float):
        try:
            number = float(value)
        except ValueError:
            raise ValueError(f"{name} is {str(value)[:40]!r}, expected a number") from None
        value = int(number) if number.is_integer() else number
    for each in kinds:
        if isinstance(value, _TYPES[each["type"]]) and (
            each["type"] == "boolean" or not isinstance(value, bool)
        ):
            return _check_bounds(value, each, name)
    names = " or ".join(each["type"] for each in kinds)
    raise ValueError(f"{name} is a {type(value).__name__}, expected {names}")


def _check_bounds(value: Any, schema: Schema, name: str) -> Any:
    if isinstance(value, dict):
        for each in schema["required"]:
            if each not in value:
                raise ValueError(f"{each} is missing")
        known = schema["properties"]
        return {
            key: check(each, known[key], key) if key in known else each
            for key, each in value.items()
        }
    if isinstance(value, str):
        if value not in schema.get("enum", (value,)):
            raise ValueError(f"{name} is {value[:40]!a}, expected {' or '.join(schema['enum'])}")
        size, what, bounds = len(value), f"has {len(value)} characters", ("minLength", "maxLength")
        if not value.isascii():
            try:
                value.encode()
            except UnicodeEncodeError as error:
                place = f"half a character at {error.start}"
                raise ValueError(f"{name} has {place}, expected UTF-8") from None
    elif isinstance(value, list):
        size, what, bounds = len(value), f"has {len(value)} items", ("minItems", "maxItems")
    elif isinstance(value, bool) or value is None:
        return value
    else:
        size, what, bounds = value, f"is {value:g}", ("minimum", "maximum")
    least, most = schema.get(bounds[0], 0), schema.get(bounds[1], size)
    if not least <= size <= most:
        raise ValueError(f"{name} {what}, expected {least:g} to {most:g}")
    if isinstance(value, list):
        return [check(each, schema["items"], f"{name}[{i}]") for i, each in enumerate(value)]
    return value


def describe(pairs: list[tuple[str, str]], models: dict[str, list[str]]) -> Schema:
    """The OpenAPI document. pairs: languages of /translate; models: names by path."""

    def answer(text: str, schema: Schema) -> Schema:
        return {"description": text, "content": {"application/json": {"schema": schema}}}

    paths: Schema = {}
    for path, (about, takes, gives) in PATHS.items():
        told: Schema = {"summary": about, "operationId": path.strip("/").replace("/", "_")}
        answers = {"200": answer("an answer", gives)}
        if takes is not None and "stream" in takes["properties"]:
            answers["200"]["content"]["text/event-stream"] = {"schema": _EVENT}
        if takes is not None:
            error = answer("an error", OPENAI_ERROR if path.startswith("/v1/") else PLAIN_ERROR)
            answers |= dict.fromkeys(("400", "401", "403", "413", "429", "500", "503"), error)
            fields = dict(takes["properties"])
            if "source" in fields and pairs:
                for name, codes in zip(("source", "target"), zip(*pairs, strict=True), strict=True):
                    fields[name] = {"type": "string", "enum": sorted(set(codes))}
            if path in models:
                fields["model"] = {"type": "string", "enum": models[path]}
            schema = {**takes, "properties": fields}
            body = {"required": True, "content": {"application/json": {"schema": schema}}}
            told |= {"requestBody": body}
        paths[path] = {"get" if takes is None else "post": told | {"responses": answers}}
    info = {"title": "lightconv", "version": __version__}
    return {"openapi": "3.1.0", "info": info, "paths": paths}
