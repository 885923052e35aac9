"""`lightconv list` and `lightconv show`, as commands."""

import json
import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from lightconv import cli
from lightconv.commands.recipes import BEGIN, END
from lightconv.config import from_dict
from lightconv.paper.recipes import RECIPES, TITLES
from lightconv.recipe import Recipe

ROOT = Path(__file__).parent.parent
NAME = "iwslt-de-en-dynamicconv"


class Answer(NamedTuple):
    """What a command gave back."""

    code: int
    out: str
    err: str


Ask = Callable[..., Answer]


@pytest.fixture
def ask(capsys: pytest.CaptureFixture[str]) -> Ask:
    def run(*arguments: str) -> Answer:
        code = cli.main(arguments)
        return Answer(code, *capsys.readouterr())

    return run


# --- list


def test_list_shows_every_name_once_with_a_line_about_it(ask: Ask) -> None:
    answer = ask("list")
    assert answer.code == 0
    lines = answer.out.splitlines()
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
def test_list_filters(ask: Ask, pattern: str, expected: set[str] | None) -> None:
    answer = ask("list", pattern)
    if expected is None:
        assert answer.code == 2
        assert answer.err.startswith(f"error: no recipe matches '{pattern}'")
        return
    found = {line.split()[0] for line in answer.out.splitlines() if line} & set(RECIPES)
    assert found == expected


def test_list_params_prints_the_papers_figures_beside_ours(ask: Ask) -> None:
    lines = ask("list", "ablation", "--params").out.splitlines()
    assert lines[0] == "Table 3: ablation on WMT En-De"
    assert lines[2].split() == ["row", "recipe", "paper", "ours", "agree"]
    row = next(line for line in lines if line.startswith("CNN (k=3)"))
    assert re.split("  +", row) == [
        "CNN (k=3)",
        "wmt-en-de-ablation-cnn",
        "208M",
        "208,823,296",
        "yes",
    ]
    assert len(lines) == 3 + 12


def test_list_params_shows_what_is_in_no_table(ask: Ask) -> None:
    lines = ask("list", "iwslt*small", "--params").out.splitlines()
    assert lines[0] == "In no table of the paper"
    assert [line.split()[-3:-1] for line in lines[3:]] == [
        ["-", "9,614,336"],
        ["-", "9,220,514"],
        ["-", "9,261,824"],
    ]


def test_a_wrong_figure_is_told(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    from lightconv import catalogue

    wrong = tuple(row._replace(millions=87) for row in catalogue.PAPER_COUNTS if row.table == "lm")
    monkeypatch.setattr(catalogue, "PAPER_COUNTS", wrong)
    assert ask("list", "lm", "--params").out.count(" NO") == 2


def test_list_markdown(ask: Ask) -> None:
    out = ask("list", "iwslt", "--markdown").out
    assert out.startswith("### IWSLT'14 German-English translation\n\n| recipe | about |\n| --- |")


# --- docs/paper.md


def test_the_page_is_up_to_date(ask: Ask, tmp_path: Path) -> None:
    page = (ROOT / "docs" / "paper.md").read_text()
    copy = tmp_path / "paper.md"
    copy.write_text(page.split(BEGIN)[0] + BEGIN + "\nold\n" + END + page.split(END)[1])
    assert ask("list", "--params", "--write", str(copy)).code == 0
    assert copy.read_text() == page, "run `lightconv list --params --write docs/paper.md`"
    assert "`lightconv list --params --write docs/paper.md`" in page


def test_the_page_holds_what_the_command_prints(ask: Ask) -> None:
    page = (ROOT / "docs" / "paper.md").read_text()
    printed = ask("list", "--params", "--markdown").out
    assert page.split(BEGIN)[1].split(END)[0].strip() == printed.strip()
    assert " NO " not in printed


def test_the_page_names_recipes_that_exist() -> None:
    page = (ROOT / "docs" / "paper.md").read_text()
    names = re.findall(r"(?:show |`)((?:iwslt|wmt|billion|cnn|debian)-[\w-]+)", page)
    assert names and all(name in RECIPES for name in names)


def test_a_page_without_markers_is_left_alone(ask: Ask, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# Mine\n")
    answer = ask("list", "lm", "--write", str(page))
    assert answer.code == 2
    assert "has no tables to replace" in answer.err
    assert page.read_text() == "# Mine\n"


# --- show


def test_show_prints_toml_that_it_reads_again(ask: Ask, tmp_path: Path) -> None:
    out = ask("show", NAME).out
    assert from_dict(Recipe, tomllib.loads(out)) == RECIPES[NAME]
    file = tmp_path / "my.toml"
    file.write_text(out)
    assert ask("show", str(file)).out == out


def test_show_json(ask: Ask) -> None:
    assert from_dict(Recipe, json.loads(ask("show", NAME, "--json").out)) == RECIPES[NAME]


def test_show_set(ask: Ask) -> None:
    out = ask("show", NAME, "--set", "train.max_steps=7", "--set", "model.dropout=0.5").out
    recipe = from_dict(Recipe, tomllib.loads(out))
    assert (recipe.train.max_steps, recipe.model.dropout) == (7, 0.5)


def test_show_params(ask: Ask) -> None:
    lines = [line.split("  ") for line in ask("show", NAME, "--params").out.splitlines()]
    rows = {cells[0]: [c.strip() for c in cells[1:] if c.strip()] for cells in lines}
    assert rows["part"] == ["parameters", "share"]
    assert rows["output"] == ["3,395,584", "8.8%"]  # 6632 * 512 of 38,685,184
    assert rows["total"] == ["38,685,184", "100.0%"]
    numbers = [int(row[0].replace(",", "")) for part, row in rows.items() if part != "part"]
    assert sum(numbers) == 2 * 38_685_184


def test_show_params_as_json_and_changed(ask: Ask) -> None:
    changed = ("--set", "model.share_embeddings=decoder")
    parts = json.loads(ask("show", NAME, "--params", "--json", *changed).out)
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
def test_mistakes_are_one_line(ask: Ask, arguments: list[str], message: str) -> None:
    answer = ask(*arguments)
    assert answer.code == 2
    assert answer.out == ""
    assert answer.err.startswith("error: ") and answer.err.count("\n") == 1
    assert message in answer.err
