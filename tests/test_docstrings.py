"""Every public name explains itself: a sentence, and shapes wherever it takes or gives tensors."""

import ast
import inspect
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "lightconv"
MODULES = ("lightconv", *(f"lightconv.{name}" for name in ("ops", "mixers", "models", "decode")))
MORE = tuple(f"lightconv.{name}" for name in ("data", "evaluate", "train", "paper", "config"))
NAMES = [
    (module, name)
    for module in (*MODULES, *MORE)
    for name in import_module(module).__all__
    if not name.startswith("_")
]


def parts(found: Any) -> Iterator[tuple[str, Any]]:
    """A function, or the public methods that a class writes itself."""
    if inspect.isfunction(found):
        yield found.__name__, found
    elif inspect.isclass(found):
        for name, member in vars(found).items():
            function = inspect.unwrap(getattr(member, "fget", None) or member)
            if inspect.isfunction(function) and not name.startswith("_"):
                yield f"{found.__name__}.{name}", getattr(found, name)


@pytest.mark.parametrize(("module", "name"), NAMES, ids=[".".join(each) for each in NAMES])
def test_a_public_name_explains_itself(module: str, name: str) -> None:
    found = getattr(import_module(module), name)
    if inspect.isclass(found):
        own = found.__dict__.get("__doc__") or ""
        assert own and not own.startswith(f"{name}("), "a class without a docstring"
    for what, part in parts(found):
        text = inspect.getdoc(part)  # a method may leave it to the one it overrides
        assert text, what
        if "Tensor" in " ".join(map(str, getattr(part, "__annotations__", {}).values())):
            assert "[" in text, f"{what} says no shapes"


def test_every_module_says_what_it_is() -> None:
    silent = [
        path for path in SOURCE.rglob("*.py") if not ast.get_docstring(ast.parse(path.read_text()))
    ]
    assert not silent
