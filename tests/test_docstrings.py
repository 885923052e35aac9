"""Public names explain themselves: a sentence, and shapes wherever they take or give tensors."""

import ast
import inspect
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

SOURCE = Path(__file__).parent.parent / "src" / "lightconv"
PACKAGES = ("ops", "mixers", "models", "decode", "data", "evaluate", "train", "paper", "config")


def parts(found: Any) -> Iterator[tuple[str, Any]]:
    """A function, or the public methods that a class writes itself."""
    if inspect.isfunction(found):
        yield found.__name__, found
    elif inspect.isclass(found):
        for name, member in vars(found).items():
            function = inspect.unwrap(getattr(member, "fget", None) or member)
            if inspect.isfunction(function) and not name.startswith("_"):
                yield f"{found.__name__}.{name}", getattr(found, name)


def test_public_names_explain_themselves() -> None:
    silent = []
    for module in ("lightconv", *(f"lightconv.{package}" for package in PACKAGES)):
        for name in import_module(module).__all__:
            found = getattr(import_module(module), name)
            if inspect.isclass(found):
                own = found.__dict__.get("__doc__") or ""
                if not own or own.startswith(f"{name}("):
                    silent.append(f"{module}.{name}: no docstring")
            elif inspect.isfunction(found) and not inspect.getdoc(found):
                silent.append(f"{module}.{name}: no docstring")
            for what, part in parts(found):
                takes = " ".join(map(str, getattr(part, "__annotations__", {}).values()))
                # A method may leave its description to the one it overrides.
                if "Tensor" in takes and "[" not in (inspect.getdoc(part) or ""):
                    silent.append(f"{module}.{what}: no shapes")
    assert not silent


def test_every_module_says_what_it_is() -> None:
    assert all(ast.get_docstring(ast.parse(path.read_text())) for path in SOURCE.rglob("*.py"))
