"""Names loaded on first use, and packages that only an extra installs."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import Any

# Names that moved to another package and keep working under the old one.
MOVED = {
    "lightconv.data.CORPORA": "lightconv.corpora",
    "lightconv.data.open_corpus": "lightconv.corpora",
    "lightconv.data.own_corpus": "lightconv.corpora.own",
    "lightconv.data.verify_manifest": "lightconv.files",
    "lightconv.data.write_manifest": "lightconv.files",
}


def lazy(
    package: str, homes: Mapping[str, Sequence[str]], packages: Sequence[str] = ()
) -> Callable[[str], Any]:
    """The `__getattr__` of a package.

    homes     names of each of its modules
    packages  modules that are names themselves
    """
    modules = {name: f"{package}.{module}" for module, names in homes.items() for name in names}

    def load(name: str) -> Any:
        if name in packages:
            return import_module(f"{package}.{name}")
        module = modules.get(name) or MOVED.get(f"{package}.{name}")
        if module is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(module), name)

    return load


@contextmanager
def needed(by: str, package: str, extra: str) -> Iterator[None]:
    """An import of an extra's package; ValueError says how to install it."""
    try:
        yield
    except ImportError:
        raise ValueError(
            f"{by} needs the package {package}. Install it with pip install 'lightconv[{extra}]'"
        ) from None
