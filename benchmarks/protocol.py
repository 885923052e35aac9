"""The paper's own set-ups for speed, on this machine: its Sent/sec and Tok/sec columns.

The ablation (section 6.2) decodes newstest2013 with beam 4 in batches of 256; appendix B decodes
newstest2014 greedily, one sentence at a time. Here both use random weights and sentences of 28
tokens, the ratio of the paper's Tok/sec to its Sent/sec for newstest2014. The paper used another
machine (P100): only the ratio of two rows is comparable. `lightconv table` measures trained models
on the real texts.
"""

from collections.abc import Sequence
from typing import NamedTuple

from benchmarks.decoders import Shape, build, compile_model, of_recipe, side
from benchmarks.measure import interleave
from benchmarks.pages import table
from lightconv.paper.tables import TABLES, Row

TOKENS = 28
# Rows of the ablation that the engine supports and that differ at inference.
ABLATION = (
    *("wmt-en-de-selfattention", "wmt-en-de-ablation-windowed", "wmt-en-de-ablation-softmax"),
    *("wmt-en-de-ablation-dynamicconv", "wmt-en-de-ablation-aan-decoder"),
)
DECODERS = tuple(row.recipe for row in TABLES["decoders"].rows if row.recipe is not None)
_BATCH = 256


class SetUp(NamedTuple):
    """A table of the paper: its rows, the size of a call, and the column with the speed."""

    name: str
    recipes: Sequence[str]
    shape: Shape
    column: int
    precisions: Sequence[str]


SET_UPS = (
    SetUp("ablation", ABLATION, Shape(_BATCH, 4, TOKENS), 1, ("float32",)),
    SetUp("decoders", DECODERS, Shape(1, 1, TOKENS), 1, ("float32", "int8")),
)


def measure(*, small: bool = False, rounds: int = 3) -> str:
    """Both tables; the ablation, with a minute per batch, has one turn after a warm-up."""
    return "\n\n".join(_measure(set_up, small, rounds) for set_up in SET_UPS)


def _measure(set_up: SetUp, small: bool, rounds: int) -> str:
    compared = []
    for recipe in set_up.recipes:
        config = of_recipe(f"{recipe}-small" if small else recipe)
        model = build(config)
        compared += [
            side(recipe, kind, compile_model(model, kind), config, set_up.shape)
            for kind in set_up.precisions
        ]
    for each in compared:
        each.warm()
    turns = 1 if set_up.shape.batch > 1 else rounds
    seconds = interleave({each.title: each.call for each in compared}, turns, warm=False)
    paper = {row.recipe: row for row in TABLES[set_up.name].rows}
    base = {kind: seconds[f"{set_up.recipes[0]}, {kind}"] for kind in set_up.precisions}
    own = _figure(paper[set_up.recipes[0]], set_up.column)
    rows = []
    for each in compared:
        speed = each.sentences / seconds[each.title]
        theirs = _figure(paper[each.name], set_up.column)
        rows.append(
            [
                f"{paper[each.name].text}, {each.precision}",
                f"{speed:,.2f}",
                f"{speed * TOKENS:,.0f}",
                f"{base[each.precision] / seconds[each.title]:.2f}x",
                f"{theirs:g}",
                f"{theirs / own:.2f}x",
            ]
        )
    batch, beam, tokens = set_up.shape
    title = f"{set_up.name}: batch {batch}, beam {beam}, {tokens} tokens"
    header = [title, "Sent/sec", "Tok/sec", "against the first row"]
    return table([*header, "paper's Sent/sec (P100)", "against its first row"], rows)


def _figure(row: Row, column: int) -> float:
    """`52.1 ± 0.1` as a number."""
    return float(row.figures[column].split()[0])
