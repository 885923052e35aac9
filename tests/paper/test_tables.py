"""The figures of the paper, typed a second time and read from its TeX; the size of every model."""

import re
import time
from pathlib import Path

import pytest

from lightconv.paper.recipes import RECIPES
from lightconv.paper.tables import TABLES, agrees
from lightconv.recipe import count_parameters, count_parts
from lightconv.train.config import CosineConfig
from tests.paper.formulas import parameters

PAPERS = sorted((Path(__file__).parents[3] / "shared" / "paper").glob("*.txt"))
# Labels of the paper's source that are not our names.
LABELS = {"lm": "gbw_lm", "summarization": "abs"}
LABELS |= {"normalization": "ablation_softmax", "decoders": "smalldec"}
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


# Rows without a number of parameters in the paper.
UNPRINTED = {
    *("wmt-en-fr-lightconv", "wmt-en-fr-dynamicconv"),
    *(f"iwslt-de-en-{mixer}" for mixer in ("selfattention", "lightconv", "dynamicconv")),
    *(row.recipe for row in TABLES["normalization"].rows),
}


def numbers(printed: str) -> list[str]:
    """Parameters and figures of a row, in order."""
    cells = " ".join(printed.split(" | ")[1:]).replace("M ", " ")
    return [word for word in cells.split() if word not in ("-", "±")]


def side_by_side(name: str) -> list[list[str]]:
    """Our rows as the paper has them: of tables 1 and 2, both tasks in one."""
    rows = [numbers(row.printed) for row in TABLES[name].rows if not row.cited]
    if name == "mt1":
        return [a + b for a, b in zip(rows[:2], rows[2:], strict=True)]
    if name == "mt2":  # the paper's Param column is of the second task
        return [[b[0], *a, *b[1:]] for a, b in zip(rows[:3], rows[3:], strict=True)]
    return rows


def test_the_baseline_of_table_1_is_cited() -> None:
    cited = {name: [row for row in table.rows if row.cited] for name, table in TABLES.items()}
    assert [numbers(row.printed) for row in cited.pop("mt1")] == [["210", "29.3"], ["43.2"]]
    assert not any(cited.values())


def tex_rows(name: str) -> list[list[str]]:
    """The numbers of each row of a table of the paper's source, in order; and `diverges`."""
    text = PAPERS[0].read_text()
    end = text.index(f"\\label{{tab:{LABELS.get(name, name)}}}")
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
    cited = [numbers(row) for row in TABLES[name].cited]
    if name in ("mt1", "mt2"):
        merged: dict[str, list[str]] = {}
        for row in TABLES[name].cited:
            merged.setdefault(row.split(" | ")[0].rpartition(",")[0], []).extend(numbers(row))
        cited = list(merged.values())
    ours = [*cited, *side_by_side(name)]
    if name == "mt1":
        ours.append(["210", "29.3", "43.2"])
    assert sorted(ours) == sorted(tex_rows(name))


@pytest.mark.parametrize("name", TABLES)
def test_figures_and_rows(name: str) -> None:
    table = TABLES[name]
    assert side_by_side(name) == [row.split()[1:] for row in OWN[name].split(" / ")]
    for printed in (*(row.printed for row in table.rows), *table.cited):
        text, *cells = printed.split(" | ")
        assert text and len(cells) == 1 + len(table.columns)
        assert all(re.fullmatch(r"-|diverges|\d+M|\d+\.\d+( ± \d\.\d)?", cell) for cell in cells)
    assert len({row.text for row in table.rows}) == len(table.rows)
    assert all(row.recipe in RECIPES for row in table.rows)
    # Ablations are scored on validation data, everything else on a test set.
    # Validation chooses the seed of translations and summaries.
    splits = {"ablation": {"valid"}, "normalization": {"valid"}, "decoders": {"test"}}
    assert set(table.splits) == splits.get(name, {"valid", "test"})
    best = name in ("mt1", "mt2", "summarization")
    assert {column.best for column in table.columns} == {best}
    assert table.speed == {"ablation": (4, 256), "decoders": (1, 1)}.get(name)


@pytest.mark.parametrize("name", TABLES)
def test_twins(name: str) -> None:
    rows = TABLES[name].rows_at("cpu")
    assert len(rows) == {"ablation": 12, "lm": 2, "normalization": 10}.get(name, 3)
    assert all(recipe.endswith("-small") and recipe in RECIPES for recipe in rows)
    kinds = {RECIPES[recipe].task.kind for recipe in rows}
    assert kinds == {RECIPES[row.recipe].task.kind for row in rows.values()} and len(kinds) == 1
    # All twins of a table have the same training, or they could not be compared.
    (train,) = {RECIPES[recipe].train for recipe in rows}
    assert isinstance(train.schedule, CosineConfig)


def test_stand_ins_for_large_corpora() -> None:
    twins = {recipe: row.recipe for recipe, row in TABLES["lm"].rows_at("cpu").items()}
    mixers = ("selfattention", "dynamicconv")
    assert twins == {f"debian-lm-{mixer}-small": f"billion-word-{mixer}" for mixer in mixers}
    assert "debian-summary-lightconv-small" in TABLES["summarization"].rows_at("cpu")


# --- Parameters


def test_printed_sizes_are_those_of_the_formulas() -> None:
    """Cut or rounded to millions; docs/paper.md holds all exact numbers."""
    ours = [row for table in TABLES.values() for row in table.rows if not row.cited]
    assert {row.recipe for row in ours if row.params == "-"} == UNPRINTED
    for row in (row for row in ours if row.params != "-"):
        exact = parameters(RECIPES[row.recipe].model)
        assert row.params in (f"{exact // 10**6}M", f"{round(exact / 1e6)}M"), row.recipe


EXACT = {
    "wmt-en-de-lightconv": 202_569_904,
    "wmt-zh-en-dynamicconv": 296_112_128,
    "wmt-en-de-ablation-aan-decoder": 260_261_888,
    "billion-word-dynamicconv": 339_457_984,
    "cnn-dailymail-lightconv": 86_543_960,
}


@pytest.mark.parametrize("name", RECIPES)
def test_counts_follow_the_formulas_quickly(name: str) -> None:
    model, times = RECIPES[name].model, []
    for _ in range(3):  # what torch loads at its first use is not the model's time
        start = time.process_time()
        counts = count_parts(model)
        times.append(time.process_time() - start)
    assert min(times) < 1.0
    expected = parameters(model)
    assert sum(counts.values()) == count_parameters(model) == expected
    assert EXACT.get(name, expected) == expected


@pytest.mark.parametrize(
    "printed, yes, no",
    [
        ("160,239", [160_239], [160_240, 160_000]),
        ("4.5M", [4_500_966, 4_549_000], [4_560_000, 4_400_000, 45_000_000]),
        ("36M", [35_762_532, 36_400_000, 36_900_000], [35_400_000, 37_000_000]),
        ("87M", [86_543_960, 87_900_000], [86_400_000, 88_000_000]),
        ("199M", [199_999_999], [200_000_000, 198_400_000]),
        ("200M", [199_999_999, 200_000_000], [199_400_000]),
    ],
)
def test_agrees_when_cut_or_rounded(printed: str, yes: list[int], no: list[int]) -> None:
    assert all(agrees(printed, count) for count in yes)
    assert not any(agrees(printed, count) for count in no)
