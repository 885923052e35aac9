"""The figures of the paper: typed a second time, and read from its TeX where that is at hand."""

import re
from pathlib import Path

import pytest

from lightconv.paper.recipes import RECIPES
from lightconv.paper.tables import TABLES, Row, find_table
from lightconv.train.config import CosineConfig

PAPERS = sorted((Path(__file__).parents[3] / "shared" / "paper").glob("*.txt"))
LABELS = {
    "mt1": "tab:mt1",
    "mt2": "tab:mt2",
    "ablation": "tab:ablation",
    "lm": "tab:gbw_lm",
    "summarization": "tab:abs",
    "normalization": "tab:ablation_softmax",
    "decoders": "tab:smalldec",
}
# Rows of the paper's own, in its order: parameters and figures.
OWN = {
    "mt1": "LightConv 202 28.9 43.1 / DynamicConv 213 29.7 43.2",
    "mt2": "Self 292 34.4 23.8 / Light 285 34.8 24.3 / Dynamic 296 35.2 24.4",
    "ablation": "inf 210 26.9 0.1 52.1 0.1 / window 210 26.9 0.3 54.9 0.2 / "
    "cnn 208 25.9 0.2 68.1 0.3 / depth 195 26.1 0.2 67.1 1.0 / incr 195 26.4 0.2 63.3 0.1 / "
    "drop 195 26.5 0.2 63.3 0.1 / share 195 26.5 0.1 63.7 0.4 / soft 195 26.6 0.2 63.6 0.1 / "
    "dyn 200 26.9 0.2 62.6 0.4 / nosoft 200 diverges / aan 260 26.8 0.1 59.5 0.1 / "
    "aan2 310 22.5 0.1 59.2 2.1",
    "lm": "self 331 26.67 26.73 / dyn 339 26.60 26.67",
    "summarization": "self 90 39.26 15.98 36.35 / light 86 39.52 15.97 36.51 / "
    "dyn 87 39.84 16.25 36.73",
    "normalization": "none diverges / softmax 26.9 0.2 / sigmoid 26.6 0.3 / tanh 25.6 0.2 / "
    "l1 diverges / l2 26.8 0.2 / square diverges / abs diverges / absl1 diverges / absl2 26.7 0.2",
    "decoders": "one 124 26.1 15.2 423.0 / three 153 27.7 7.2 202.3 / six 200 28.5 3.9 110.9",
}


def numbers(row: Row) -> list[str]:
    """What a row prints, in order."""
    cells = " ".join([row.params.removesuffix("M"), *row.figures])
    return [word for word in cells.split() if word not in ("-", "±")]


def side_by_side(name: str) -> list[list[str]]:
    """Our rows as the paper has them: of tables 1 and 2, both tasks in one."""
    rows = [row for row in TABLES[name].rows if "Ott" not in row.text]
    if name == "mt1":
        return [numbers(a) + numbers(b) for a, b in zip(rows[:2], rows[2:], strict=True)]
    if name == "mt2":  # the paper's Param column is of the second task
        pairs = zip(rows[:3], rows[3:], strict=True)
        return [[numbers(b)[0], *numbers(a), *numbers(b)[1:]] for a, b in pairs]
    return [numbers(row) for row in rows]


@pytest.mark.parametrize("name", TABLES)
def test_own_rows(name: str) -> None:
    expected = [row.split()[1:] for row in OWN[name].split(" / ")]
    assert side_by_side(name) == expected


def test_the_baseline_of_table_1_is_cited() -> None:
    rows = [row for row in TABLES["mt1"].rows if "Ott" in row.text]
    assert [numbers(row) for row in rows] == [["210", "29.3"], ["43.2"]]


def tex_rows(name: str) -> list[list[str]]:
    """The numbers of each row of a table of the paper's source, in order; and `diverges`."""
    text = PAPERS[0].read_text()
    end = text.index(f"\\label{{{LABELS[name]}}}")
    start = text.rindex("\\begin{tabular}", 0, end)
    body = text[text.index("\\midrule", start) : text.index("\\bottomrule", start)]
    body = body.replace("\\midrule", "").replace("\\\\ \\citep{guo2018non}", "")
    found = []
    for row in body.split("\\\\"):
        cells = row.split("&")[1:]
        figures = re.findall(r"\d+(?:\.\d+)?|diverges", " ".join(cells).replace("{2}{*}", ""))
        if figures:
            found.append(figures)
    return found


@pytest.mark.skipif(not PAPERS, reason="the paper's source is not at hand")
@pytest.mark.parametrize("name", TABLES)
def test_every_row_of_the_source(name: str) -> None:
    """All rows, those of others too."""
    table = TABLES[name]
    cited = [numbers(row) for row in table.cited]
    if name in ("mt1", "mt2"):
        merged: dict[str, list[str]] = {}
        for row in table.cited:
            merged.setdefault(row.text.rpartition(",")[0], []).extend(numbers(row))
        cited = list(merged.values())
    ours = [*cited, *side_by_side(name)]
    if name == "mt1":
        ours.append(["210", "29.3", "43.2"])
    assert sorted(ours) == sorted(tex_rows(name))


@pytest.mark.parametrize("name", TABLES)
def test_tables_hold_together(name: str) -> None:
    table = TABLES[name]
    for row in (*table.rows, *table.cited):
        assert len(row.figures) == len(table.columns)
        for figure in (row.params, *row.figures):
            assert re.fullmatch(r"-|diverges|\d+M|\d+\.\d+( ± \d\.\d)?", figure)
    assert all(row.recipe in RECIPES for row in table.rows)
    assert all(row.recipe is None for row in table.cited)
    assert set(table.splits) <= {"valid", "test"}
    # Ablations are scored on validation data, everything else on a test set.
    assert ("valid" in table.splits) == (name in ("ablation", "normalization", "lm"))


@pytest.mark.parametrize(
    "name, twins", [("mt1", 3), ("mt2", 3), ("ablation", 12), ("lm", 2), ("summarization", 3)]
)
def test_twins(name: str, twins: int) -> None:
    rows = TABLES[name].twin_rows
    assert len(rows) == twins
    assert all(recipe.endswith("-small") and recipe in RECIPES for recipe in rows)
    kinds = {RECIPES[recipe].task.kind for recipe in rows}
    full = {RECIPES[row.recipe].task.kind for row in rows.values() if row.recipe}
    assert kinds == full and len(kinds) == 1
    # Whoever compares them gives all of them the same training.
    trained = [RECIPES[recipe].train for recipe in rows]
    assert all(each == trained[0] for each in trained)
    assert isinstance(trained[0].schedule, CosineConfig)


def test_what_stands_in_for_large_corpora() -> None:
    assert list(TABLES["lm"].twin_rows) == [
        "debian-lm-selfattention-small",
        "debian-lm-dynamicconv-small",
    ]
    assert [row.recipe for row in TABLES["lm"].twin_rows.values()] == [
        "billion-word-selfattention",
        "billion-word-dynamicconv",
    ]
    assert "debian-summary-lightconv-small" in TABLES["summarization"].twin_rows


def test_all_rows_of_the_appendix_have_twins() -> None:
    for name in ("normalization", "decoders"):
        assert len(TABLES[name].twin_rows) == len(TABLES[name].rows)
    assert TABLES["decoders"].one_by_one


def test_unknown_tables_get_the_nearest() -> None:
    with pytest.raises(ValueError, match="did you mean 'ablation'"):
        find_table("ablatoin")
    with pytest.raises(ValueError, match="known: mt1, mt2"):
        find_table("x")
