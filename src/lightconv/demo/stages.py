"""The stages of the demo after training: each adds its part to the results, if it is not there."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lightconv.console import Display
from lightconv.data.prepared import Prepared
from lightconv.data.vocabulary import EOS
from lightconv.demo.corpus import is_invented
from lightconv.demo.plan import Plan
from lightconv.demo.plots import Picture, draw_dynamic, draw_growth, draw_learned, draw_learning
from lightconv.demo.results import Results, plain
from lightconv.demo.training import RUN_FOLDER, describe_run
from lightconv.recipe import Recipe

# The text whose kernels are drawn has so many tokens at most; one with at least so many is liked.
MOST_TOKENS = 24
FEWEST_TOKENS = 12


def measure_model(
    plan: Plan, out: Path, prepared: Prepared, recipe: Recipe, results: Results, display: Display
) -> None:
    """Scores, examples and kernels of the trained model."""
    if None not in (results.training, results.scores, results.examples, results.kernels):
        display.note("done before")
        return
    display.show("loading torch and the model")
    from lightconv.decode.text import load
    from lightconv.demo.scores import answer_examples, count_lines, score
    from lightconv.paper.measure import describe_processor

    model = load(out / RUN_FOLDER)
    display.end()
    limit = plan.size.limit
    results.machine = describe_processor()
    results.training = describe_run(out, recipe)
    results.data = {
        "corpus": prepared.task.corpus,
        "invented": is_invented(prepared),
        "lead": prepared.pipeline.config.sides[0].truncate,
        "examples": {name: each.examples for name, each in prepared.contents.splits.items()},
        "scored": count_lines(prepared, limit),
    }
    results.scores = score(plan.name, model, prepared, plan.decode, limit, display)
    display.show("answering texts it has never seen")
    results.examples = answer_examples(plan.name, model, prepared, plan.decode)
    display.end()
    results.kernels = _find_kernels(model.model, prepared, results.examples)
    results.write(out)


def _find_kernels(
    model: Any, prepared: Prepared, examples: Sequence[Mapping[str, str]]
) -> dict[str, Any]:
    """The kernels of all layers, for one text those of the dynamic ones."""
    from lightconv.demo.kernels import dynamic_kernels, learned_kernels

    pairs = len(prepared.sides) == 2
    texts = [example["source" if pairs else "reference"] for example in examples]
    encoded = prepared.pipeline.encode(0, texts)
    fitting = [ids for ids in encoded if FEWEST_TOKENS <= len(ids) < MOST_TOKENS]
    ids = (fitting or [min(encoded, key=len)])[0][: MOST_TOKENS - 1]
    # A source ends with EOS, a text of a language model begins with it.
    ids = [*ids, EOS] if pairs else [EOS, *ids]
    return {
        "text": [_label(prepared, token) for token in ids],
        "learned": plain(learned_kernels(model)),
        "dynamic": plain(dynamic_kernels(model, ids)),
    }


def _label(prepared: Prepared, token: int) -> str:
    if token == EOS:
        return "</s>"
    return (
        prepared.pipeline.decode(0, [token]).strip()
        or prepared.pipeline.vocabularies()[0].tokens[token]
    )


def measure_operator(plan: Plan, out: Path, results: Results, display: Display) -> None:
    """Time and memory of the operator against attention."""
    if results.growth is not None:
        display.note("done before")
        return
    display.show("loading the operators")
    from lightconv.demo.growth import measure_growth

    rows = measure_growth(
        plan.size.lengths,
        lambda length: display.show(f"sequences of {length:,} tokens"),
        plan.size.length_tokens,
    )
    display.end()
    results.growth = plain(rows)
    results.write(out)


def draw_all(results: Results) -> dict[str, list[tuple[Picture, str]]]:
    """For each section of the page its pictures, with what is said below them."""
    kernels = results.kernels or {}
    text = kernels["text"]
    growth = results.growth or []
    return {
        "learning": [(draw_learning((results.training or {})["log"]), _LEARNING)],
        "growth": [(draw_growth(growth), _GROWTH.format(tokens=min(r["tokens"] for r in growth)))],
        "learned": [(draw_learned(kernels["learned"]), _LEARNED)] if kernels["learned"] else [],
        "dynamic": [
            (draw_dynamic(layer, text), _DYNAMIC.format(layer=layer["layer"], width=_width(layer)))
            for layer in kernels["dynamic"]
        ],
    }


def _width(layer: Mapping[str, Any]) -> int:
    return len(layer["weights"][0][0])


_LEARNING = (
    "The loss per token while the model learned. Validation is on text it does not train on."
)
_GROWTH = (
    "Forward and backward pass of {tokens:,} tokens or more in float32, in ever longer sequences: "
    "DynamicConv (width 512, 8 heads, kernel 31) against causal attention of the same width, fused "
    "(torch's scaled_dot_product_attention) and as textbooks write it, with its matrix. Medians of "
    "three turns; memory is how far the process grew."
)
_LEARNED = (
    "A LightConv layer has one kernel for each head, the same at every position: how much of each "
    "neighbour, as shares of one."
)
_DYNAMIC = (
    "{layer}, kernel width {width}: each row is a token, and shows where its own kernels look. A "
    "DynamicConv layer makes them from its input at that position alone; the band that may be "
    "coloured is as wide as the kernel, whatever the length of the text."
)
