"""`lightconv distill`."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from lightconv.commands.parser import Parser
from lightconv.commands.train import describe_fit, plan_rows, summary_rows
from lightconv.console import Display, print_rows, read_duration, tell
from lightconv.device import choose_device
from lightconv.fitting.plan import OWN
from lightconv.paper.recipes import RECIPES
from lightconv.recipe import find_recipe, fit_recipe


def main(argv: Sequence[str]) -> int:
    parser = Parser(
        "distill",
        "Trains a student on a teacher's outputs for the training sources, which are easier to "
        "learn than references. Stopped or killed, the same command resumes.",
        "lightconv distill runs/large --student own-translation-small --data data --out runs/fast",
        "lightconv distill my-model --student my.toml --data my-model.fit/data --out runs/fast",
    )
    add = parser.add
    add("TEACHER", "a model folder, or a run")
    add("--student RECIPE", "a name of `lightconv list`, or a file", required=True)
    parser.add_data(required=True)
    add("--out RUN", "the folder of the run; outputs are kept in RUN.data", required=True)
    add("--set PATH=VALUE ...", "change a value of the recipe, as often as you like")
    add("--beam N", "of the teacher's search (default: its own)")
    add("--quantize MODE", "none or int8: the teacher's linear layers", default="none")
    add("--max-time TIME", "stop training and save after that time: 90s, 30m, 8h, 2d")
    parser.add_device()
    options = parser.parse(argv)
    asked = find_recipe(options.student, options.set, {**RECIPES, **OWN})
    seconds = None if options.max_time is None else read_duration(options.max_time)

    # These load torch, which takes its time: mistakes above are answered at once.
    from lightconv.data.prepared import Prepared
    from lightconv.decode.options import TextOptions
    from lightconv.fitting.distill import distill
    from lightconv.train.data import PreparedData
    from lightconv.train.launch import Stop
    from lightconv.train.run import Run

    out = Path(options.out)
    with Display() as display:
        found = distill(
            options.teacher,
            Prepared.open(options.data),
            out.with_name(f"{out.name}.data"),
            beam=options.beam,
            options=TextOptions(quantize=options.quantize),
            display=display,
        )
    device, data = choose_device(options.device), PreparedData(found.folder)
    recipe = fit_recipe(asked, data)
    with Stop(seconds, hard=True) as stop:
        run = Run.start(out, recipe)
        recipe = replace(recipe, model=run.model_config, train=run.train_config)
        print_rows(
            [
                *describe_fit(asked.model, recipe.model, found.folder),
                *plan_rows(recipe, asked.train, device, 1),
            ]
        )
        outcome = run.train(data, device=device, stop=stop)
    if outcome.code:
        tell(f"stopped at step {outcome.step:,}. The same command resumes")
    else:
        print_rows(summary_rows(outcome, run.model_path))
    return outcome.code
