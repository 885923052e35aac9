"""Jobs of a table: their settings, and scripts in which every command is understood."""

import argparse
import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from lightconv import cli
from lightconv.commands.parser import Parser
from lightconv.paper.jobs import TableOptions, TablePlan, set_width, write_script
from lightconv.paper.recipes import RECIPES
from lightconv.paper.tables import TABLES
from lightconv.train.config import CosineConfig

CPU, PAPER = TableOptions(scale="cpu"), TableOptions(scale="paper")


def test_jobs_do_all_rows_before_the_next_seed() -> None:
    patterns = ["softmax", "*-tanh-small"]
    options = replace(CPU, seeds=2, rows=patterns, set=["model.dropout=0.2"])
    jobs = TablePlan(TABLES["normalization"], options).jobs
    names = ["wmt-en-de-normalize-softmax-small", "wmt-en-de-normalize-tanh-small"]
    assert [(job.recipe, job.seed) for job in jobs] == [(n, s) for s in (1, 2) for n in names]
    recipe = jobs[-1].changed()
    assert (recipe.train.seed, recipe.model.dropout) == (2, 0.2)
    assert len({job.run for job in jobs}) == 4


@pytest.mark.parametrize("steps", [1, 2, 6, 60, 3000, 12345])
def test_any_number_of_steps(steps: int) -> None:
    options = replace(CPU, seeds=1, rows=["dynamicconv"], steps=steps)
    (job,) = TablePlan(TABLES["mt1"], options).jobs
    train = job.changed().train
    assert train.max_steps == steps
    assert isinstance(train.schedule, CosineConfig)
    assert train.schedule.warmup + train.schedule.period in (steps, steps + 1)
    if steps == 3000:  # the proportions are those of the recipes
        assert train == RECIPES["wmt-en-de-dynamicconv-small"].train


@pytest.mark.parametrize("nodes", [1, 2])
@pytest.mark.parametrize("name", TABLES)
def test_scripts_have_every_row(name: str, nodes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    table = TABLES[name]
    rows = {row.recipe for row in table.rows}
    script = write_script(table, replace(PAPER, limit=7, nodes=nodes))
    real, seen = Parser.parse, []

    def parse(self: Parser, argv: Sequence[str]) -> argparse.Namespace:
        seen.append((self.prog.split()[1], real(self, argv)))
        raise SystemExit(0)

    monkeypatch.setattr(Parser, "parse", parse)
    for line in script.splitlines():
        words = shlex.split(line, comments=True)
        if "lightconv" in words:
            words = [word.replace("$seed", "1") for word in words]
            assert cli.main(words[words.index("lightconv") + 1 :]) == 0
    counts = {kind: sum(each == kind for each, _ in seen) for kind, _ in seen}
    assert counts["train"] == len(rows)
    assert counts["evaluate"] == len(rows) * len(table.splits)
    assert counts.get("speed", 0) == (name in ("ablation", "decoders"))
    for _, options in (each for each in seen if each[0] == "speed"):
        how = (options.beam, options.batch_size, options.split, options.limit)
        assert how == ((4, 256) if name == "ablation" else (1, 1)) + ("test", 7)
        assert [path.name for path in options.model] == [
            f"{row.recipe}.seed1" for row in table.rows
        ]
    assert counts.get("tune", 0) == (0 if name == "lm" else len(rows))
    scored = [options for kind, options in seen if kind == "evaluate"]
    assert {options.limit for options in scored} == {7}
    both = ["valid", "test"] if name in ("mt1", "mt2", "summarization", "lm") else None
    assert both is None or [options.split for options in scored] == both * len(rows)
    trained = {options.recipe: options for kind, options in seen if kind == "train"}
    assert set(trained) == rows
    for recipe, options in trained.items():
        assert options.data == Path("data") / RECIPES[recipe].task.corpus
        assert options.set == ["train.seed=1"]
        assert f".seed{1}" in str(options.out)
    assert script.count("for seed in 1 2 3; do") == len(rows) * nodes
    assert script.count("train.seed=$seed") == len(rows)


def test_gpus_are_the_papers() -> None:
    def launched(name: str, **options: int) -> str:
        chosen = replace(PAPER, rows=["dynamicconv"], seeds=1, **options)  # type: ignore[arg-type]
        return write_script(TABLES[name], chosen)

    assert "torchrun --nproc-per-node 32 -m lightconv train billion-word-" in launched("lm")
    assert "torchrun --nproc-per-node 8 -m lightconv train wmt-en-de-" in launched("mt1")
    assert "  lightconv train iwslt-de-en-" in launched("mt2")
    assert "--nnodes 4 --nproc-per-node 8 " in launched("lm", nodes=4)
    assert "--nproc-per-node 2 " in launched("mt1", processes=2)


@pytest.mark.parametrize("name", TABLES)
def test_width_of_twins(name: str) -> None:
    """Half the width: heads keep theirs, one per channel stays so, products become a quarter."""
    for job in TablePlan(TABLES[name], replace(CPU, seeds=1, width=128)).jobs:
        wide, narrow = RECIPES[job.recipe].model, job.changed().model
        assert (narrow.dim, 2 * narrow.ffn_dim) == (128, wide.ffn_dim)
        for stack, layers in wide.stacks.items():
            for old, new in zip(layers, getattr(narrow, stack), strict=True):
                sizes = {n: getattr(old, n) for n in ("heads", "ffn_dim") if hasattr(old, n)}
                assert getattr(new, "heads", 0) == sizes.get("heads", 0) // 2
                assert replace(new, **sizes) == old


def test_width_that_heads_do_not_fit() -> None:
    with pytest.raises(ValueError, match="--width 100: expected a multiple of 64"):
        set_width("wmt-en-de-selfattention-small", 100)


def test_rows_have_names_of_their_own() -> None:
    """Mixer and sizes, different in each table; no citation, nothing of the paper's sizes."""
    for name, table in TABLES.items():
        jobs = TablePlan(table, replace(CPU, seeds=1, width=128)).jobs
        names = [job.row for job in jobs]
        assert len({*names}) == len(names), name
        for job in jobs:
            model = job.changed().model
            heads = {getattr(layer, "heads", 0) for s in model.stacks.values() for layer in s} - {0}
            assert "width 128" in job.row and "et al." not in job.row
            assert all(f", {count} head" in job.row for count in heads)
            assert "+".join(str(len(s)) for s in model.stacks.values()) + " layers" in job.row
    plan = TablePlan(TABLES["mt1"], replace(CPU, seeds=1, width=128))
    assert plan.jobs[0].row == "self-attention, width 128, 2 heads, 3+3 layers"


@pytest.mark.parametrize("scale", ["cpu", "paper"])
def test_no_script_cites(scale: str) -> None:
    options = TableOptions(scale=scale, corpus="debian-en-de")  # type: ignore[arg-type]
    assert "et al." not in write_script(TABLES["mt1"], options)
