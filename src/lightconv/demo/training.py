"""The demo's run: an ordinary `lightconv train`, which goes on by itself if it was stopped."""

from pathlib import Path
from typing import Any

from lightconv.config import ConfigError, read, to_toml
from lightconv.data.prepared import Prepared
from lightconv.demo.plan import Plan, make_recipe
from lightconv.models.config import ModelConfig, Seq2SeqConfig
from lightconv.recipe import Recipe
from lightconv.train.log import LOG_FILE, read_log

RECIPE_FILE = "recipe.toml"
RUN_FOLDER = "run"


def find_recipe(plan: Plan, prepared: Prepared) -> Recipe:
    """The plan's recipe for this data."""
    vocabularies = prepared.pipeline.vocabularies()
    shared = vocabularies.source is vocabularies.target
    return make_recipe(plan, prepared.task, prepared.vocab_sizes, shared=shared)


def is_trained(folder: Path, recipe: Recipe) -> bool:
    """Whether the run of this recipe has ended; how its model is searched is no part of it."""
    return (folder / RUN_FOLDER / "model" / "config.json").is_file() and _same(folder, recipe)


def train(folder: Path, prepared: Prepared, recipe: Recipe) -> int:
    """Trains in `folder`/run, or goes on with it: the exit code of `lightconv train`."""
    from lightconv.commands.train import main

    path = folder / RECIPE_FILE
    path.write_text(to_toml(recipe), encoding="utf-8")
    run = folder / RUN_FOLDER
    options = ["--data", str(prepared.folder), "--out", str(run), "--device", "cpu"]
    options.append("--allow-changes")  # of the search: it changes nothing in a run
    if (run / "config.json").is_file() and not _same(folder, recipe):
        options.append("--overwrite")  # of an older demo, or of one with other sizes
    return main([str(path), *options])


def describe_run(folder: Path, recipe: Recipe) -> dict[str, Any]:
    """Parameters, tokens, seconds and the curve of a run that has ended."""
    from lightconv.recipe import count_parameters

    log = read_log(folder / RUN_FOLDER / LOG_FILE)
    train = [entry for entry in log if entry["kind"] == "train"]
    last = train[-1] if train else {}
    return {
        "parameters": count_parameters(recipe.model),
        "layers": _layers(recipe.model),
        "steps": recipe.train.max_steps,
        "tokens": last.get("tokens", 0),
        "seconds": last.get("seconds", 0.0),
        "log": [{name: entry.get(name) for name in ("kind", "step", "nll")} for entry in log],
    }


def _same(folder: Path, recipe: Recipe) -> bool:
    try:
        old = read(folder / RUN_FOLDER / "config.json", Recipe)
    except (ConfigError, OSError):
        return False
    return (old.task, old.model, old.train) == (recipe.task, recipe.model, recipe.train)


def _layers(model: ModelConfig) -> str:
    if isinstance(model, Seq2SeqConfig):
        return f"{len(model.encoder)} + {len(model.decoder)} layers of width {model.dim}"
    return f"{len(model.layers)} layers of width {model.dim}"
