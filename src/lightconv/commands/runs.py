"""`lightconv average`, `push` and `plot`: a model of a run's checkpoints, published; its curves."""

from collections.abc import Sequence
from importlib.util import find_spec

from lightconv.commands.parser import Parser
from lightconv.console import print_rows, tell
from lightconv.models.folder import check_free
from lightconv.train.run import LAST, Run


def average(argv: Sequence[str]) -> int:
    parser = Parser(
        "average",
        "Makes a model folder whose parameters are the mean of those of checkpoints of a run.",
        f"lightconv average runs/iwslt --last {LAST} --out iwslt",
        "lightconv average runs/iwslt --steps 48000,49000,50000 --out iwslt",
        "lightconv average runs/iwslt --best --out iwslt    # the best one, as it is",
    )
    parser.add("RUN", "a folder of `lightconv train`")
    which = parser.add_mutually_exclusive_group()
    parser.add("--last N", f"the last N checkpoints (default: {LAST})", group=which)
    parser.add("--best N", "the N best ones (default: 1)", group=which, nargs="?", const=1)
    parser.add("--steps A,B,C", "those of these steps", group=which)
    parser.add("--ema", "their moving averages, if training kept such")
    parser.add("--out MODEL", "the model folder to write", required=True)
    parser.add("--overwrite", "replace an older model folder")
    parser.add_format()
    options = parser.parse(argv)
    run = Run.open(options.run)
    check_free(options.out, overwrite=options.overwrite)
    steps = run.choose(last=options.last, best=options.best, steps=options.steps)
    tell(f"averaging {len(steps)} checkpoints of {run.path}")
    model = run.average(steps, ema=options.ema)
    run.export(model, options.out, overwrite=options.overwrite)
    rows = [
        ("steps", ", ".join(map(str, steps))),
        ("parameters", f"{sum(tensor.numel() for tensor in model.parameters()):,}"),
        ("folder", str(options.out)),
        ("files", ", ".join(sorted(path.name for path in options.out.iterdir()))),
    ]
    print_rows(rows)
    return 0


def push(argv: Sequence[str]) -> int:
    parser = Parser(
        "push",
        "Publishes a model folder on the Hugging Face hub, where lightconv.load('user/name') finds "
        "it. Its digests are checked first. `hf auth login` or HF_TOKEN says who you are.",
        "lightconv push runs/first/model user/first --licence cc-by-4.0",
    )
    parser.add("MODEL", "a model folder, or a run")
    parser.add("NAME", "user/name")
    parser.add("--licence ID", "of the model, such as mit or cc-by-4.0, for its card")
    parser.add("--private", "only for you")
    options = parser.parse(argv)
    from lightconv.interop.hub import push as push_model

    how = {"licence": options.licence, "private": options.private}
    print(push_model(options.model, options.name, **how))
    return 0


def plot(argv: Sequence[str]) -> int:
    parser = Parser(
        "plot",
        "Draws loss, metric and learning rate of runs, finished or not: as text, and with "
        "matplotlib into one picture.",
        "lightconv plot runs/iwslt",
        "lightconv plot runs/light runs/dynamic --out both.png",
    )
    parser.add("RUN ...", "folders of `lightconv train`")
    parser.add("--out FILE", "the picture: .png, .svg or .pdf; default: plot.png of the first run")
    options = parser.parse(argv)

    from lightconv.train.log import PLOT_FILE, draw, draw_text

    out = options.out or options.run[0] / PLOT_FILE
    picture = options.out is not None or find_spec("matplotlib") is not None
    if picture:
        draw(options.run, out)
    print(draw_text(options.run))
    if picture:
        print(out)
    return 0
