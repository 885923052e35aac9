"""`lightconv list` and `lightconv show`, as commands."""

import json
import re
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from lightconv.commands.paper import BEGIN, END
from lightconv.config import from_dict
from lightconv.paper.recipes import RECIPES, TITLES
from lightconv.paper.tables import TABLES, Row
from lightconv.recipe import Recipe
from tests.commands.conftest import Run

ROOT = Path(__file__).parents[2]
NAME = "iwslt-de-en-dynamicconv"


# --- list


def test_list_shows_every_name_once_with_a_line_about_it(run: Run) -> None:
    lines = run("list").out.splitlines()
    found = {line.split()[0]: line.split(None, 1)[1] for line in lines if "-" in line.split(" ")[0]}
    for name, recipe in RECIPES.items():
        assert found[name] == recipe.about
    assert all(title in lines for title in TITLES.values())


@pytest.mark.parametrize(
    "pattern, expected",
    [
        ("iwslt", {n for n in RECIPES if n.startswith("iwslt")}),
        ("IWSLT", {n for n in RECIPES if n.startswith("iwslt")}),
        ("zh-en-light", {"wmt-zh-en-lightconv", "wmt-zh-en-lightconv-small"}),
        ("wmt-*-lightconv", {f"wmt-{pair}-lightconv" for pair in ("en-de", "en-fr", "zh-en")}),
        ("iwslt-*-cnn", None),
        ("lm", {"billion-word-selfattention", "billion-word-dynamicconv"}),
        ("decoders", {f"wmt-en-de-decoder-{n}" for n in (1, 3, 6)}),
    ],
)
def test_list_filters(run: Run, pattern: str, expected: set[str] | None) -> None:
    answer = run("list", pattern)
    if expected is None:
        assert answer.refused(f"no recipe matches '{pattern}'")
        return
    found = {line.split()[0] for line in answer.out.splitlines() if line} & set(RECIPES)
    assert found == expected


def test_list_params_prints_the_papers_figures_beside_ours(run: Run) -> None:
    lines = run("list", "ablation", "--params").out.splitlines()
    assert lines[0] == "Table 3: ablation on WMT En-De"
    assert lines[2].split() == ["row", "recipe", "paper", "ours", "agree"]
    row = next(line for line in lines if line.startswith("CNN (k=3)"))
    cells = ["CNN (k=3)", "wmt-en-de-ablation-cnn", "208M", "208,823,296", "yes"]
    assert re.split("  +", row) == cells
    assert len(lines) == 3 + 12
    lines = run("list", "iwslt*small", "--params").out.splitlines()
    assert lines[0] == "In no table of the paper"
    counts = ["9,614,336", "9,220,514", "9,261,824"]
    assert [line.split()[-3:-1] for line in lines[3:]] == [["-", count] for count in counts]


def test_a_wrong_figure_is_told(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    table = TABLES["lm"]
    wrong = tuple(Row("row | 87M | 1.0 | 2.0", row.recipe) for row in table.rows)
    monkeypatch.setitem(TABLES, "lm", replace(table, rows=wrong))
    assert run("list", "lm", "--params").out.count(" NO") == 2


# --- docs/paper.md


def test_the_page_holds_what_the_command_prints(run: Run, tmp_path: Path) -> None:
    page = (ROOT / "docs" / "paper.md").read_text()
    copy = tmp_path / "paper.md"
    copy.write_text(page.split(BEGIN)[0] + BEGIN + "\nold\n" + END + page.split(END)[1])
    assert run("list", "--params", "--write", copy).code == 0
    assert copy.read_text() == page, "run `lightconv list --params --write docs/paper.md`"
    assert "`lightconv list --params --write docs/paper.md`" in page
    printed = run("list", "--params", "--markdown").out
    assert page.split(BEGIN)[1].split(END)[0].strip() == printed.strip()
    assert " NO " not in printed
    names = re.findall(r"(?:show |`)((?:iwslt|wmt|billion|cnn|debian)-[\w-]+)", page)
    assert names and all(name in RECIPES for name in names)
    out = run("list", "iwslt", "--markdown").out
    assert out.startswith("### IWSLT'14 German-English translation\n\n| recipe | about |\n| --- |")


def test_a_page_without_markers_is_left_alone(run: Run, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# Mine\n")
    assert run("list", "lm", "--write", page).refused("has no tables to replace")
    assert page.read_text() == "# Mine\n"


# --- show


def test_show_prints_what_it_reads_again(run: Run, tmp_path: Path) -> None:
    out = run("show", NAME).out
    assert from_dict(Recipe, tomllib.loads(out)) == RECIPES[NAME]
    file = tmp_path / "my.toml"
    file.write_text(out)
    assert run("show", file).out == out
    assert from_dict(Recipe, json.loads(run("show", NAME, "--json").out)) == RECIPES[NAME]
    out = run("show", NAME, "--set", "train.max_steps=7", "--set", "model.dropout=0.5").out
    recipe = from_dict(Recipe, tomllib.loads(out))
    assert (recipe.train.max_steps, recipe.model.dropout) == (7, 0.5)


def test_show_params(run: Run) -> None:
    lines = [line.split("  ") for line in run("show", NAME, "--params").out.splitlines()]
    rows = {cells[0]: [c.strip() for c in cells[1:] if c.strip()] for cells in lines}
    assert rows["part"] == ["parameters", "share"]
    assert rows["output"] == ["3,395,584", "8.8%"]  # 6632 * 512 of 38,685,184
    assert rows["total"] == ["38,685,184", "100.0%"]
    numbers = [int(row[0].replace(",", "")) for part, row in rows.items() if part != "part"]
    assert sum(numbers) == 2 * 38_685_184
    changed = ("--set", "model.share_embeddings=decoder")
    parts = json.loads(run("show", NAME, "--params", "--json", *changed).out)
    assert (parts["output"], parts["total"]) == (0, 38_685_184 - 6632 * 512)


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["show", "iwslt-de-en-dynamiconv"], f"did you mean '{NAME}'?"),
        (["show"], "NAME_OR_FILE"),
        (["show", NAME, "--parms"], "did you mean '--params'?"),
        (["show", "--parms"], "did you mean '--params'?"),
        (["show", NAME, "--set", "model.heads=7"], "model.heads"),
        (["show", NAME, "--set", "model.source_heads=7"], "source_heads=7 does not divide"),
        (["show", NAME, "--set", "model.dropout=1.5"], "dropout=1.5 must be in [0, 1)"),
        (["show", NAME, "--set", "train.max_steps=many"], "train.max_steps"),
        (["show", NAME, "extra"], "extra"),
        (["show", "missing.toml"], "missing.toml"),
        (["list", "--writ", "x"], "did you mean '--write'?"),
        (["list", "--write", "no/such/page.md"], "no/such/page.md"),
    ],
    ids=" ".join,
)
def test_mistakes_are_one_line(run: Run, arguments: list[str], message: str) -> None:
    assert run(*arguments).refused(message)
