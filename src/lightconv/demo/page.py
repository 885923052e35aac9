"""The demo's results as one HTML file: pictures are inside it, and there is no script."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lightconv import __version__
from lightconv.demo.plan import DemoPlan
from lightconv.demo.plots import draw_growth, draw_learning

PAPER = "https://arxiv.org/abs/1901.10430"
# Names of the first score, of the source, and of baselines.
METRICS = {"translation": "BLEU", "lm": "perplexity per subword", "summary": "ROUGE-L"}
SOURCES = {"translation": "source", "lm": "begin", "summary": "text"}
BASELINES = {
    ("translation", "copy"): "copying the source",
    ("translation", "nearest"): "the translation of the nearest training sentence",
    ("lm", "unigram"): "counting words",
    ("summary", "lead"): "the first words",
    ("summary", "nearest"): "the summary of the nearest training text",
}


def make_page(task: str, plan: DemoPlan, results: Mapping[str, Any]) -> str:
    """The page; texts in it are escaped."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("report.html.j2").render(
        **results,
        task=task,
        plan=plan,
        metric=METRICS[task],
        source=SOURCES[task],
        headline=headline(task, results),
        learning_plot=draw_learning(results["training"]["log"]),
        growth_plot=draw_growth(results["growth"]),
        version=__version__,
        paper=PAPER,
    )


def headline(task: str, results: Mapping[str, Any]) -> list[tuple[str, float]]:
    """Systems and their first score, the model first; perplexity is that of a subword."""
    return [
        (
            BASELINES.get((task, system), "the model"),
            float(scores[0]["parts"].get("per_subword", scores[0]["value"])),
        )
        for system, scores in results["scores"].items()
    ]
