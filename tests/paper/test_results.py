"""Results: files, means over seeds by hand, columns and notes; the results kept in docs."""

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from lightconv.paper.results import (
    Experiment,
    Measurement,
    Result,
    ResultsFolder,
    Speed,
    SplitScore,
    TableReport,
    Training,
    find_results,
    show_mean,
    show_results,
)
from lightconv.paper.tables import Column

ROOT = Path(__file__).parents[2] / "docs" / "results"
KEPT = sorted(path.parent.relative_to(ROOT) for path in ROOT.glob("*/*/experiment.json"))
# `**Title** ...`, up to the next.
FINDINGS = re.findall(
    r"^\*\*(?P<title>[^*]+)\*\*(?P<text>.*?)(?=^\*\*|\Z)",
    (ROOT / "README.md").read_text().split("\n## ")[1],
    re.MULTILINE | re.DOTALL,
)
LINK = r"\((\w+/[\w.-]+)/table\.md\)"

BLEU = Column(name="BLEU")
BEST = replace(BLEU, best=True)
SPEED = Column(name="Sent/sec", measured="sentences/s", digits=1)
TOKENS = Column(name="Tok/sec", measured="tokens/s", digits=1)


def experiment(**changes: object) -> Experiment:
    values = {"table": "lm", "name": "mine", "scale": "cpu", "corpus": "own"}
    return Experiment(**{**values, "data": {"train": "a"}, **changes})  # type: ignore[arg-type]


def score(value: float, **parts: float) -> tuple[SplitScore, ...]:
    return (SplitScore(metric="bleu", value=value, parts=parts, signature="bleu|x"),)


def result(
    seed: int, value: float | None, status: str = "done", valid: float | None = None
) -> Result:
    found = Measurement(
        machine={},
        parameters=7,
        training=Training(steps=3, tokens=100, seconds={"updates": 4.0, "loading": 1.0}),
        scores=({} if value is None else {"test": score(value, rouge1=2 * value)})
        | ({} if valid is None else {"valid": score(valid)}),
        speed=Speed(split="test", lines=30, seconds=4.0, tokens=90, engine="torch", sentences=64),
    )
    return Result(
        row="a row",
        recipe="some-recipe",
        seed=seed,
        status=status,  # type: ignore[arg-type]
        command="lightconv table lm",
        date="today",
        measured=None if status == "failed" else found,
    )


def test_mean_and_deviation() -> None:
    assert show_mean([1.0, 2.0, 6.0], 4) == "3.0000 ± 2.6458"  # ((2^2 + 1^2 + 3^2) / 2) ** 0.5
    assert show_mean([1234.5], 1) == "1,234.5"
    assert show_mean([], 1) == ""


@pytest.mark.parametrize(
    "results, column, shown",
    [
        ([], BLEU, "not run"),
        ([result(1, 20.0)], BLEU, "20.00"),
        ([result(1, 20.0), result(2, 22.0)], BLEU, "21.00 ± 1.41"),
        ([result(1, 20.0), result(2, None, "diverged")], BLEU, "20.00, 1 diverged"),
        ([result(1, None, "diverged"), result(2, None, "diverged")], BLEU, "diverged"),
        ([result(1, None, "failed")], BLEU, "failed"),
        ([result(1, None, "failed"), result(2, 3.0)], BLEU, "3.00, 1 failed"),
        ([result(1, None, "failed")], SPEED, "-"),
        ([result(1, 20.0), result(2, 22.0)], SPEED, "7.5 ± 0.0"),
        ([result(1, 20.0)], TOKENS, "22.5"),
        # Of the seed that is best on validation, not of the one that is best on the test.
        ([result(1, 20.0, valid=8.0), result(2, 22.0, valid=7.0)], BEST, "20.00 (21.00 ± 1.41)"),
        ([result(1, 20.0, valid=8.0)], BEST, "20.00"),
        (
            [result(1, 20.0, valid=8.0), result(2, 22.0, valid=9.0), result(3, None, "diverged")],
            replace(BEST, part="rouge1"),
            "44.00 (42.00 ± 2.83), 1 diverged",
        ),
        # Results of 0.1.0 have no validation scores.
        ([result(1, 20.0), result(2, 22.0)], BEST, "21.00 ± 1.41"),
        ([result(1, 20.0, valid=8.0), result(2, 22.0)], BEST, "21.00 ± 1.41"),
        ([result(1, 20.0)], Column(name="Rouge-1", part="rouge1"), "40.00"),
        ([result(1, 20.0)], Column(name="Rouge-9", part="rouge9"), "-"),
        ([result(1, 20.0)], replace(BLEU, split="valid"), "-"),
    ],
)
def test_cells(results: list[Result], column: Column, shown: str) -> None:
    assert show_results(results, column) == shown


def test_cells_of_speed() -> None:
    """The median of the rounds, not the mean; the slowest and the fastest; a loud machine."""
    found = result(1, 20.0)
    assert found.measured is not None and found.measured.speed is not None
    rounds = replace(found.measured.speed, rounds=(4.0, 3.0, 30.0, 5.0, 2.0), beam=4, threads=1)
    for noise, said in ((0.01, ""), (0.3, ", noisy")):
        speed = replace(rounds, noise=noise)
        timed = replace(found, measured=replace(found.measured, speed=speed))
        assert show_results([timed, result(2, 21.0)], SPEED) == f"7.5 (1.0 to 15.0{said})"
        assert show_results([timed], TOKENS) == f"22.5 (3.0 to 45.0{said})"
        assert ("machine noisy (the time of a product varied by 30.0%)" in speed.origin()) == bool(
            said
        )
    assert "lightconv 0.1" in found.measured.speed.origin()


@pytest.mark.parametrize("valid", [3.0, None])
def test_the_choice_of_a_seed_is_said(valid: float | None, tmp_path: Path) -> None:
    data = dict.fromkeys(("train", "valid", "test"), "digest")
    folder = ResultsFolder.create(tmp_path, experiment(table="mt1", data=data))
    recipe = "wmt-en-de-selfattention-small"
    for seed in (1, 2):
        folder.save(replace(result(seed, 10.0 * seed, valid=valid), recipe=recipe))
    report = TableReport(folder)
    notes, (rows,) = " ".join(report.notes()), report.show()[0].values()
    assert ("best on validation (mean" in notes) == (valid is not None)
    assert ("validation was not scored" in notes) == (valid is None)
    assert rows[0][0] == "self-attention, width 256, 4 heads, 3+3 layers"
    assert rows[0][3] == ("10.00 (15.00 ± 7.07)" if valid else "15.00 ± 7.07")
    assert not any("et al." in cell for row in rows for cell in row)


def test_the_pace_is_that_of_trainings_that_ended(tmp_path: Path) -> None:
    data = dict.fromkeys(("train", "valid", "test"), "digest")
    folder = ResultsFolder.create(tmp_path, experiment(table="mt1", data=data))
    good, bad = result(1, 10.0), result(2, None, "diverged")
    assert bad.measured is not None and bad.measured.training is not None
    training = replace(bad.measured.training, seconds={"updates": 400.0})
    bad = replace(bad, measured=replace(bad.measured, training=training))
    for each in (good, bad):
        folder.save(replace(each, recipe="wmt-en-de-selfattention-small"))
    rows, header, _ = TableReport(folder).show()
    found = dict(zip(header, next(iter(rows.values()))[0], strict=True))
    assert (found["training (ours)"], found["tokens/s (ours)"]) == ("0.1 min", "25")


def test_results_come_back(tmp_path: Path) -> None:
    results = ResultsFolder.create(tmp_path, experiment())
    for seed in (10, 2):
        results.save(result(seed, 1 / 3))
    again = find_results(tmp_path, "lm")
    assert [each.experiment for each in again] == [experiment()]
    assert again[0].all() == {"some-recipe": [result(2, 1 / 3), result(10, 1 / 3)]}
    assert again[0].find("some-recipe", 10) == result(10, 1 / 3)
    assert again[0].find("some-recipe", 3) is None
    assert find_results(tmp_path, "mt1") == []
    assert not list(tmp_path.rglob(".*"))


def test_another_experiment_does_not_mix_with_it(tmp_path: Path) -> None:
    ResultsFolder.create(tmp_path, experiment())
    ResultsFolder.create(tmp_path, experiment())
    with pytest.raises(ValueError, match=r"made otherwise: data.train: .* another --name"):
        ResultsFolder.create(tmp_path, experiment(data={"train": "b"}))
    with pytest.raises(ValueError, match="settings"):
        ResultsFolder.create(tmp_path, experiment(settings=("model.dropout=0.3",)))
    ResultsFolder.create(tmp_path, experiment(name="other", settings=("model.dropout=0.3",)))


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"row": 1}', json.dumps({"row": "x"}), "\x00", '{"seed": NaN}']
)
def test_damaged_results_are_named(tmp_path: Path, text: str) -> None:
    results = ResultsFolder.create(tmp_path, experiment())
    results.save(result(1, 2.0))
    path = results.path("some-recipe", 1)
    path.write_text(text)
    with pytest.raises(ValueError, match=r"result \(.*some-recipe.seed1.json\)"):
        results.all()


@pytest.mark.parametrize(
    ("table", "splits", "names"),
    [
        ("lm", ("valid", "test"), ["Valid", "Test"]),
        ("lm", ("valid",), ["Valid"]),
        ("mt2", ("valid", "test"), ["BLEU"]),
        ("mt2", ("valid",), ["BLEU, validation"]),
    ],
)
def test_validation_in_the_place_of_a_test_is_said(
    table: str, splits: tuple[str, ...], names: list[str], tmp_path: Path
) -> None:
    data = dict.fromkeys(("train", *splits), "digest")
    folder = ResultsFolder.create(tmp_path, experiment(table=table, data=data))
    report = TableReport(folder)
    said = "the data has no split test: validation is scored in its place"
    assert (said in report.notes()) == ("test" not in splits)
    columns = report.columns
    assert [column.name for column in columns] == names
    assert {column.split for column in columns} <= set(splits)


# --- Results that the project keeps: tables are of their files, figures of the page of tables


@pytest.mark.parametrize("kept", KEPT, ids=str)
def test_a_table_is_of_its_files(kept: Path, tmp_path: Path) -> None:
    shutil.copytree(ROOT / kept, tmp_path / kept)
    results = ResultsFolder.open(tmp_path / kept)
    path = TableReport(results).write()
    assert path.read_text() == (ROOT / kept / "table.md").read_text()
    for result in (each for seeds in results.all().values() for each in seeds):
        assert result.commit is not None and "+" not in result.commit
        assert f"--name {kept.name} " in f"{result.command} "
        assert not re.search(r"(^|\s)/", result.command)


def test_every_experiment_is_mentioned() -> None:
    assert set(re.findall(LINK, (ROOT / "README.md").read_text())) == set(map(str, KEPT))


@pytest.mark.parametrize(("title", "text"), FINDINGS, ids=[title for title, _ in FINDINGS])
def test_figures_are_those_of_the_tables(title: str, text: str) -> None:
    """Ours and the paper's, rounded: all in cells; of prose decimals, but differences below one."""
    known = [
        float(figure.replace(",", ""))
        for link in re.findall(LINK, text)
        for line in (ROOT / link / "table.md").read_text().splitlines()
        if line.startswith("|")
        for figure in re.findall(r"\d[\d,]*(?:\.\d+)?", line)
    ]
    text = re.sub(r"\([^()]*`[^()]*\)", "", text)  # what another command printed
    lines = [line for line in text.splitlines() if line.startswith("|")]
    cells = " ".join(line.split("|", 2)[2] for line in lines[2:])
    figures = re.findall(r"\d[\d,]*(?:\.\d+)?", re.sub(r"[,;] ", " ", cells))
    figures += [f for f in re.findall(r"(?<![\w.=])\d+\.\d+", text) if float(f) >= 1]
    for figure in (figure.replace(",", "") for figure in figures):
        digits = len(figure.partition(".")[2])
        assert any(abs(float(figure) - each) <= 0.51 * 10**-digits for each in known), figure
