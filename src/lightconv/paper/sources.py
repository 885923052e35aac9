"""Where a recipe's values come from when the paper does not print them.

A source belongs to a dotted path and everything under it, unless a longer path says otherwise; `*`
stands for every layer of a stack. What no source covers is printed in the paper.
"""

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass

ARCHITECTURE = "fairseq architecture defaults"
DEFAULTS = "fairseq defaults"
README = "fairseq README"
ISSUE = "fairseq issue 576"
FITTED = "fitted to the paper's parameter count"


def ours(reason: str) -> str:
    """The source of a value that nobody published."""
    return f"not published; ours: {reason}"


def each_layer(name: str, source: str) -> dict[str, str]:
    """The same source for field `name` of every layer of every stack."""
    return {f"model.{stack}.*.{name}": source for stack in ("encoder", "decoder", "layers")}


def leaves(value: object, path: str = "") -> Iterator[str]:
    """The dotted path of every plain value in a configuration, layers written as `*`."""
    if is_dataclass(value):
        for field in fields(value):
            yield from leaves(getattr(value, field.name), f"{path}.{field.name}".lstrip("."))
    elif isinstance(value, tuple) and any(map(is_dataclass, value)):
        for layer in value:
            yield from leaves(layer, f"{path}.*")
    else:
        yield path


def covers(source: str, leaf: str) -> bool:
    """Whether a source's path is the leaf's or leads to it."""
    return leaf == source or leaf.startswith(f"{source}.")


def select(sources: Mapping[str, str], config: object) -> dict[str, str]:
    """Those of `sources` that say something about `config`, in order."""
    present = set(leaves(config))
    return {
        path: source
        for path, source in sources.items()
        if any(covers(path, leaf) for leaf in present)
    }
