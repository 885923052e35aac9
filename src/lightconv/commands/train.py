"""`lightconv train` and `distill`: a run, and its tables before and after."""

import os
from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from lightconv.commands.parser import PREPARED, Parser
from lightconv.config import differences
from lightconv.console import Display, Rows, print_rows, show_duration, tell
from lightconv.device import choose_device
from lightconv.fitting.plan import OWN
from lightconv.models.config import ModelConfig
from lightconv.paper.recipes import RECIPES
from lightconv.processes import exit_code
from lightconv.recipe import Recipe, count_parameters, find_recipe, fit_recipe
from lightconv.train.config import TrainConfig
from lightconv.train.launch import (
    RankPlace,
    Stop,
    check_processes,
    find_place,
    is_restarted,
    launch,
)
from lightconv.train.memory import SETTING, estimate, measure_pace, most_kept
from lightconv.train.run import Outcome, Run

if TYPE_CHECKING:
    import torch

# Work of a run beside its updates, by the names of the loop.
OVERHEAD = ("loading", "logging", "checkpoints")


def train(argv: Sequence[str]) -> int:
    parser = _parser()
    options = parser.parse(argv)
    settings = [*options.set, *(["train.compile=true"] if options.compile else [])]
    known = {**RECIPES, **OWN}
    recipe = find_recipe(options.recipe, settings, known)
    options.usual = find_recipe(options.recipe, [], known).train
    if not options.dry_run and (options.data is None or options.out is None):
        parser.error("--data DIR and --out RUN are needed, unless --dry-run is given")

    place = find_place(os.environ)
    if options.processes is not None:
        check_processes(options.processes, place, os.environ)
    processes = place.size if place is not None else options.processes or 1
    _check(recipe, processes, shard=options.shard)
    if processes > 1 and place is None and not options.dry_run:
        return launch(["train", *argv], processes)

    local = () if place is None else (place.local_rank, place.local_size)
    device = choose_device(options.device, *local)
    if not options.dry_run:
        return _train(options, recipe, device, place)
    memory = estimate(recipe.model, recipe.train)
    parts = [(name, getattr(memory, name)) for name in (*memory._fields, "total")]
    rows = [(f"memory: {name}", f"{size / 1e6:,.0f} MB") for name, size in parts]
    if options.data is not None and Path(options.data).is_dir():
        from lightconv.train.data import PreparedData

        data = PreparedData(options.data)
        recipe = fit_recipe(recipe, data)
        seconds, _ = measure_pace(recipe.model, recipe.train, device, data)
        time = f"{show_duration(seconds * recipe.train.max_steps)} for {recipe.train.max_steps:,}"
        rows.append(("time", f"{time} updates, by three of them in one process"))
    print_rows([*plan_rows(recipe, options.usual, device, processes), *rows])
    return 0


def _train(
    options: Namespace, recipe: Recipe, device: "torch.device", place: RankPlace | None
) -> int:
    """Trains as this rank, alone or with others; the first one prints."""
    from lightconv.train.data import PreparedData
    from lightconv.train.distributed import Replicas, join
    from lightconv.train.loop import RunMetric

    env, first = os.environ, place is None or place.rank == 0
    kind: type[Replicas] = Replicas
    if options.shard:
        from lightconv.train.sharded import Shards

        kind = Shards

    with (
        Stop(options.max_time, quiet=not first, hard=True) as stop,
        join(place, device, env, kind=kind, stop=lambda: stop.code, exit_code=exit_code) as group,
    ):
        data = PreparedData(options.data)
        fitted = fit_recipe(recipe, data)
        mean = data.tokens_per_update(fitted.train)  # ValueError before anything is written
        if place is None or place.local_rank == 0:
            data.verify()
        metric = None
        if options.metric is not None:
            from lightconv.evaluate.system import validation_metric

            metric = RunMetric(*validation_metric(options.data, recipe.decode, options.metric))
        if first:
            overwrite = options.overwrite and not is_restarted(env)
            changes = options.allow_changes
            run = Run.start(options.out, fitted, overwrite=overwrite, allow_changes=changes)
            if run.train_config != fitted.train:  # a run of 0.1.0, which keeps its own
                mean = data.tokens_per_update(run.train_config)
            fitted = replace(fitted, model=run.model_config, train=run.train_config)
            rows = plan_rows(fitted, options.usual, device, group.size, mean)
            print_rows([*describe_fit(recipe.model, fitted.model, options.data), *rows])
            _warn(fitted, device, mean[1], group.size)
        group.agree(0)  # the folder is there
        run = Run.open(options.out)
        board = options.tensorboard
        outcome = run.train(
            data, device=device, stop=stop, group=group, metric=metric, tensorboard=board
        )
    if first and outcome.code:
        tell(
            f"stopped at step {outcome.step:,}, saved as {outcome.checkpoint}. The same command "
            "resumes the run"
        )
    elif first:
        print_rows(summary_rows(outcome, run.model_path))
    return outcome.code


def describe_fit(asked: ModelConfig, found: ModelConfig, where: Path) -> Rows:
    """A row about what the data has changed in a model, if anything."""
    if asked == found:
        return []
    sizes = [" and ".join(f"{n:,}" for n in dict.fromkeys(m.vocab_sizes)) for m in (found, asked)]
    ours, paper = (f"{count_parameters(model):,}" for model in (found, asked))
    text = f"{sizes[0]} from {where}: {ours} parameters ({paper} with the recipe's {sizes[1]})"
    others = [line for line in differences(asked, found) if "vocab:" not in line]
    return [("vocabulary", "; ".join([text, *others]))]


def plan_rows(
    recipe: Recipe,
    usual: TrainConfig,
    device: "torch.device",
    processes: int,
    mean: tuple[float, float] | None = None,
) -> Rows:
    """The table before a run.

    usual  training of the recipe before --set
    mean   target tokens and batches of an update with this data
    """
    from lightconv.ops.products import choose_precision

    config = recipe.train
    devices = "device" if processes == 1 else "devices"
    shape = recipe.model.ffn_dim, recipe.model.dim
    precision = choose_precision(config.precision, device, shape)
    rows = [
        ("parameters", f"{count_parameters(recipe.model):,}"),
        ("device", f"{device}, {precision}" + (", compiled" if config.compile else "")),
        ("steps", f"{config.max_steps:,}"),
        ("batch", f"at most {config.max_tokens:,} positions on {processes} {devices}"),
    ]
    n, asked = config.batches_per_update, config.tokens_per_update
    if n:
        rounds = f"up to {n // processes + 1:,}" if n % processes else f"{n // processes:,}"
        text = f"{_count(config)}: {rounds} on {'each of ' * (processes > 1)}{processes} {devices}"
        text += f", {mean[0]:,.0f} target tokens on average" if mean else ""
    elif mean is None:
        text = f"{_count(config)} target tokens by accumulation"
    else:
        text = f"{mean[0]:,.0f} target tokens in {mean[1]:,.1f} batches on average"
        if mean[0] > 1.25 * asked and mean[1] < 1.5:
            most = f"train.tokens_per_update={asked}: lower train.max_tokens={config.max_tokens}"
            text += f", as one batch has more than {most}"
    text += f"; the recipe has {_count(usual)}"
    sizes = [c.tokens_per_update or c.batches_per_update * c.max_tokens for c in (config, usual)]
    if not 0.8 <= (share := (mean[0] if asked and mean else sizes[0]) / sizes[1]) <= 1.25:
        text += f" ({share:.2g} times): consider another learning rate"
    rows.append(("effective batch", text))
    if kept := most_kept(device.type, processes):
        rows.append(("freed memory", f"is kept up to {kept >> 20:,} MB ({SETTING})"))
    return rows


def _count(config: TrainConfig) -> str:
    n = config.batches_per_update
    return f"{n:,} batch{'es' * (n > 1)}" if n else f"{config.tokens_per_update:,}"


def summary_rows(outcome: Outcome, model: Path) -> Rows:
    """The table after a run."""
    progress = outcome.progress
    spent = dict(sorted(progress.seconds.items(), key=lambda item: -item[1]))
    seconds = sum(spent.values())
    rows = [
        ("steps", f"{outcome.step:,}"),
        ("target tokens", f"{progress.tokens:,}"),
        ("time", f"{show_duration(seconds)} ({_shares(spent, seconds, 1)})"),
    ]
    beside = {name: spent.get(name, 0.0) for name in OVERHEAD}
    whole = max(sum(beside.values()) + spent.get("updates", 0.0), 1e-9)
    share = sum(beside.values()) / whole
    rows += [
        ("overhead", f"{share:.2%} beside updates ({_shares(beside, whole, 2)})"),
        ("tokens/s", f"{progress.tokens / max(seconds, 1e-9):,.0f}"),
    ]
    if outcome.skipped:
        rows.append(("updates left out", f"{outcome.skipped} with a gradient that is not finite"))
    train = [entry for entry in outcome.entries if entry.get("kind") == "train"]
    if train:
        rows.append(("last loss", _show(train[-1]["loss"])))
    valid = {entry["step"]: entry for entry in outcome.entries if entry.get("kind") == "valid"}
    for name, step in (("last validation", outcome.step), ("best validation", progress.best_step)):
        if entry := valid.get(step):
            metrics = "".join(f", {k} {_show(v)}" for k, v in entry.get("metric", {}).items())
            text = f"loss {_show(entry['loss'])}, perplexity {_show(entry['perplexity'])}{metrics}"
            rows.append((name, f"{text} (step {step:,})"))
    if len(outcome.averaged) > 1:
        rows.append(("averaged", f"steps {', '.join(map(str, outcome.averaged))}"))
    return [*rows, ("model", str(model))]


def _shares(seconds: Mapping[str, float], whole: float, digits: int) -> str:
    return ", ".join(f"{name} {s / max(whole, 1e-9):.{digits}%}" for name, s in seconds.items())


def _show(value: float | None) -> str:
    return "not finite" if value is None else f"{value:.4g}"


def _check(recipe: Recipe, processes: int, *, shard: bool) -> None:
    smoothing = recipe.train.label_smoothing
    if smoothing > 0.0 and recipe.model.adaptive is not None:
        raise ValueError(
            f"train.label_smoothing={smoothing} must be 0 with model.adaptive, which scores no "
            "words but those of the target's band. Say --set train.label_smoothing=0"
        )
    if shard and processes == 1:
        raise ValueError("--shard needs several processes: say --processes N, or use torchrun")
    if shard and recipe.train.compile:
        raise ValueError(
            "--shard and train.compile=true do not go together, expected one of them. Say --set "
            "train.compile=false"
        )


def _parser() -> Parser:
    parser = Parser(
        "train",
        "Trains a recipe into RUN/model, or resumes the run; Ctrl-C and SIGTERM save first. Exit "
        "codes: 0 done, 2 unusable input, 3 diverged, 75 stopped and saved, 130 Ctrl-C.",
        "lightconv train debian-en-de-dynamicconv-small --data data/debian --out runs/first",
        "lightconv train my.toml --data data/mine --out runs/mine --set train.max_steps=5000",
        "lightconv train wmt-en-de-dynamicconv --dry-run",
        "lightconv train my.toml --data data/mine --out runs/mine --processes 2",
    )
    add = parser.add
    add("RECIPE", "a name of `lightconv list`, or a file")
    add("--data DIR", PREPARED)
    add("--out RUN", "the folder of the run")
    parser.share("--set", "--device", "--max-time", "--format")
    add("--compile", "use torch.compile; the same as train.compile=true")
    add(
        "--dry-run",
        "print parameters, memory and steps; with --data, the time of three updates too",
    )
    add(
        "--metric NAME", "decode validation data too, and let this choose the best: bleu, chrf, ..."
    )
    add("--tensorboard", "write TensorBoard files into RUN/tensorboard")
    add("--processes N", "train in so many processes on this machine; torchrun is for several")
    add("--shard", "spread a model that is too large for one device over the processes (FSDP2)")
    add("--overwrite", "remove an older run first")
    add("--allow-changes", "resume with other values of train or decode; the model stays")
    return parser


def _warn(recipe: Recipe, device: "torch.device", batches: float = 1.0, processes: int = 1) -> None:
    """Notes about what will be slow; `batches` of an update on average."""
    if recipe.train.precision == "fp16" and device.type == "cpu":
        tell("note: processors compute fp16 very slowly; --set train.precision=fp32 is much faster")
    if recipe.train.compile:
        tell("note: torch.compile works during the first updates, which take minutes")
    if processes > 1 and batches < 0.9 * processes:
        fitting = max(1, int(recipe.train.max_tokens * batches / processes))
        more = f" --set train.batches_per_update={processes}"
        tell(
            f"note: an update has {batches:.1f} batches for {processes} processes, of which some "
            f"have nothing to do; in a new run --set train.max_tokens={fitting}"
            f"{more if recipe.train.batches_per_update else ''} makes smaller batches"
        )


def distill(argv: Sequence[str]) -> int:
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
    parser.share("--data", "--set", "--max-time", "--device")
    add("--out RUN", "the folder of the run; outputs are kept in RUN.data", required=True)
    add("--beam N", "of the teacher's search (default: its own)")
    add("--quantize MODE", "none or int8: the teacher's linear layers", default="none")
    options = parser.parse(argv)
    asked = find_recipe(options.student, options.set, {**RECIPES, **OWN})

    from lightconv.data.prepared import Prepared
    from lightconv.decode.options import TextOptions
    from lightconv.fitting.distill import distill as make_outputs
    from lightconv.train.data import PreparedData

    out = Path(options.out)
    with Display() as display:
        found = make_outputs(
            options.teacher,
            Prepared.open(options.data),
            out.with_name(f"{out.name}.data"),
            beam=options.beam,
            options=TextOptions(quantize=options.quantize),
            display=display,
        )
    device, data = choose_device(options.device), PreparedData(found.folder)
    recipe = fit_recipe(asked, data)
    with Stop(options.max_time, hard=True) as stop:
        run = Run.start(out, recipe)
        recipe = replace(recipe, model=run.model_config, train=run.train_config)
        rows = plan_rows(recipe, asked.train, device, 1)
        print_rows([*describe_fit(asked.model, recipe.model, found.folder), *rows])
        outcome = run.train(data, device=device, stop=stop)
    if outcome.code:
        tell(f"stopped at step {outcome.step:,}. The same command resumes")
    else:
        print_rows(summary_rows(outcome, run.model_path))
    return outcome.code
