"""The demo's results as one HTML file: pictures are inside it, and there is no script."""

import base64
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lightconv import __version__
from lightconv.demo.plots import draw_dynamic, draw_growth, draw_learned, draw_learning

PAPER = "https://arxiv.org/abs/1901.10430"
# Longer texts are cut to so many words.
MOST_WORDS = 60
# Names of the first score, of source, output and reference, and of baselines.
METRICS = {"translation": "BLEU", "lm": "perplexity per subword", "summary": "ROUGE-L"}
PARTS = {
    "translation": ("source", "model", "reference"),
    "lm": ("begin", "model", "reference"),
    "summary": ("text", "model", "reference"),
}
BASELINES = {
    ("translation", "copy"): "copying the source",
    ("translation", "nearest"): "the translation of the nearest training sentence",
    ("lm", "unigram"): "counting words",
    ("summary", "lead"): "the first words",
    ("summary", "nearest"): "the summary of the nearest training text",
}


def make_page(task: str, results: Mapping[str, Any]) -> str:
    """The page; texts in it are escaped."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(uri=_uri, shorten=_shorten, duration=_duration)
    text, learned, dynamic = (results["kernels"][name] for name in ("text", "learned", "dynamic"))
    return environment.get_template("report.html.j2").render(
        **results,
        task=task,
        metric=METRICS[task],
        parts=PARTS[task],
        headline=headline(task, results),
        learning_plot=draw_learning(results["training"]["log"]),
        growth_plot=draw_growth(results["growth"]),
        learned_plot=draw_learned(learned) if learned else None,
        dynamic_plots=[(draw_dynamic(layer, text), layer) for layer in dynamic],
        version=__version__,
        paper=PAPER,
    )


def headline(task: str, results: Mapping[str, Any]) -> list[tuple[str, float]]:
    """Systems and their first score, the model first.

    Perplexity is that of a subword: after so short a training, words are too rare to count by.
    """
    return [
        (
            BASELINES.get((task, system), "the model"),
            float(scores[0]["parts"].get("per_subword", scores[0]["value"])),
        )
        for system, scores in results["scores"].items()
    ]


def _uri(svg: bytes) -> str:
    return f"data:image/svg+xml;base64,{base64.b64encode(svg).decode()}"


def _shorten(text: str) -> str:
    found = text.split()
    return text if len(found) <= MOST_WORDS else " ".join(found[:MOST_WORDS]) + " …"


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"
