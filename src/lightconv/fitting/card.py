"""README.md of a fitted model: languages, data, scores, samples, and the tags that a hub reads."""

from collections.abc import Mapping
from typing import Any

from lightconv.console import show_duration
from lightconv.models.folder import describe_layers
from lightconv.recipe import Recipe, count_parameters

# Tag of a hub, title, call, name of the first score.
TASKS = {
    "translation": ("translation", "Translation", "translate", "BLEU"),
    "language_model": ("text-generation", "Language model", "generate", "perplexity per word"),
    "summarization": ("summarization", "Summaries", "summarize", "ROUGE-L"),
}
BASELINES = {
    "model": "this model",
    "copy": "copying the source",
    "nearest": "the target of the nearest training source",
    "lead": "the first words",
    "unigram": "word frequencies",
    "bigram": "bigrams, Kneser-Ney",
}


def score_rows(state: Mapping[str, Any]) -> list[tuple[str, float]]:
    """Systems and their first score, the model first."""
    scores = state.get("scores", {})
    return [(BASELINES[name], float(each[0]["value"])) for name, each in scores.items()]


def make_card(name: str, recipe: Recipe, state: Mapping[str, Any], about: Mapping[str, str]) -> str:
    """The text of README.md; `state` as of `Fit`, `about` has `licence` and `files`."""
    task, model = recipe.task, recipe.model
    tag, title, call, metric = TASKS[task.kind]
    languages = [lang for lang in (task.source_lang, task.target_lang) if lang]
    licence = about.get("licence", "")
    head = ["library_name: lightconv", f"pipeline_tag: {tag}", "tags:", "- lightconv"]
    head += ["language:", *(f"- {lang}" for lang in languages)] if languages else []
    head += [f"license: {licence}"] if licence else []
    rows = {
        "task": title.lower() + (f", {' to '.join(languages)}" if languages else ""),
        "data": about.get("files", task.corpus),
        "licence": licence or "not stated",
        "parameters": f"{count_parameters(model):,}",
        **{stack: describe_layers(layers) for stack, layers in model.stacks.items()},
        "training": f"{state.get('step', 0):,} updates, {show_duration(state['seconds'])} in all",
    }
    parts = [
        "\n".join(["---", *head, "---"]),
        f"# {name}",
        f"{title} by `lightconv fit`; `recipe.toml` repeats it.",
        "\n".join(["| | |", "| --- | --- |", *(f"| {key} | {rows[key]} |" for key in rows)]),
        f'```python\nimport lightconv\n\nmodel = lightconv.load("{name}")\n'
        f'model.{call}(["a text"])\n```',
    ]
    if scores := score_rows(state):
        table = [f"| on {state['scored']:,} held-out texts | {metric} |", "| --- | ---: |"]
        table += [f"| {who} | {value:.1f} |" for who, value in scores]
        parts += ["\n".join(table), f"`{state['signature']}`"]
        parts.append("Held-out texts at equal distances, and what the model makes of them:")
        for example in state["examples"][:3]:
            parts.append("\n".join(f"> {key}: {text}  " for key, text in example.items()))
    return "\n\n".join(parts) + "\n"
