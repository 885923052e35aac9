"""Bounds for decoding, compared with the measured figures."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from benchmarks.decoders import NAMES, PEER, PRECISIONS, Shape
from benchmarks.pages import table

OURS, ATTENTION = NAMES["dynamicconv"], NAMES["selfattention"]
BATCH, BEAM = 32, 4
# Our speed over CTranslate2's, by batch size and precision.
AGAINST_PEER = {(1, "float32"): 1.5, (1, "int8"): 1.3, (32, "float32"): 1.3, (32, "int8"): 1.1}
INT8 = 1.5
OVERHEAD = 0.3


@dataclass
class Measured:
    """Measured figures by side (name, precision) and shape.

    speed     sentences per second
    overhead  share of Python and small operations
    state     bytes per hypothesis, by name, runner and length
    """

    speed: dict[tuple[str, str, Shape], float] = field(default_factory=dict)
    overhead: dict[tuple[str, str, Shape], float] = field(default_factory=dict)
    state: dict[tuple[str, str, int], float] = field(default_factory=dict)


class Bound(NamedTuple):
    """A required bound: an upper one if `most`, else a lower one."""

    what: str
    value: float
    bound: float
    most: bool = False

    @property
    def holds(self) -> bool:
        """True if the value meets the bound."""
        return self.value <= self.bound if self.most else self.value >= self.bound


def judge(found: Measured, *, length: int, long: int) -> list[Bound]:
    """All bounds whose figures were measured."""
    short, longer = Shape(BATCH, BEAM, length), Shape(BATCH, BEAM, long)
    bounds = []
    for kind in PRECISIONS:
        for shape, least in ((short, 1.25), (longer, 2.0)):
            what = f"{kind}: {OURS} against {ATTENTION}, {shape.length} tokens, batch {BATCH}"
            bounds += _ratio(found, what, (OURS, kind), (ATTENTION, kind), shape, least)
    what = f"{OURS}: int8 against float32, batch {BATCH}"
    bounds += _ratio(found, what, (OURS, "int8"), (OURS, "float32"), short, INT8)
    for (batch, kind), least in AGAINST_PEER.items():
        what = f"{kind}: {OURS} against CTranslate2, batch {batch}"
        shape = short._replace(batch=batch)
        bounds += _ratio(found, what, (OURS, kind), (PEER, kind), shape, least)
    for kind in PRECISIONS:
        share = found.overhead.get((OURS, kind, short))
        if share is not None:
            what = f"{kind}: share of Python and small operations, batch {BATCH}"
            bounds.append(Bound(what, share, OVERHEAD, most=True))
    return [*bounds, *_states(found, length, long)]


def _states(found: Measured, length: int, long: int) -> Iterator[Bound]:
    """The state of a convolution must not grow with the number of tokens."""
    for (name, runner, tokens), size in found.state.items():
        if name in (OURS, NAMES["lightconv"]) and tokens == long:
            what = f"{name}, {runner}: state per hypothesis, {long} tokens against {length}"
            yield Bound(what, size / found.state[name, runner, length], 1.0, most=True)


def _ratio(
    found: Measured,
    what: str,
    ours: tuple[str, str],
    other: tuple[str, str],
    shape: Shape,
    least: float,
) -> list[Bound]:
    values = found.speed.get((*ours, shape)), found.speed.get((*other, shape))
    if values[0] is None or values[1] is None:
        return []
    return [Bound(what, values[0] / values[1], least)]


def render(bounds: list[Bound]) -> str:
    """The bounds as a Markdown table."""
    rows = [
        [
            bound.what,
            f"{'<=' if bound.most else '>='} {bound.bound}",
            f"{bound.value:.2f}",
            "" if bound.holds else "missed",
        ]
        for bound in bounds
    ]
    return table(["what must hold", "bound", "measured", ""], rows)
