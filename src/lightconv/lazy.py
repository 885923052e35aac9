"""Names of a package that are loaded when they are first used: configurations need no torch."""

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any


def lazy(package: str, homes: Mapping[str, Sequence[str]]) -> Callable[[str], Any]:
    """The `__getattr__` of a package; `homes` lists the names that each of its modules has."""
    modules = {name: f"{package}.{module}" for module, names in homes.items() for name in names}

    def load(name: str) -> Any:
        if name in modules:
            return getattr(import_module(modules[name]), name)
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return load
