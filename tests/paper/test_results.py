"""Results on the disk, and means over seeds, by hand."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from lightconv.paper.report import notes, own_columns
from lightconv.paper.results import (
    Experiment,
    Measured,
    Result,
    Results,
    Scored,
    Speed,
    Training,
    find_results,
    show_results,
    summarize,
)
from lightconv.paper.tables import TABLES, Column

BLEU = Column(name="BLEU")
SPEED = Column(name="Sent/sec", measured="sentences/s", digits=1)
TOKENS = Column(name="Tok/sec", measured="tokens/s", digits=1)


def experiment(**changes: object) -> Experiment:
    values = {
        "table": "lm",
        "name": "mine",
        "scale": "cpu",
        "corpus": "own",
        "data": {"train": "a"},
    }
    return Experiment(**values | changes)  # type: ignore[arg-type]


def score(value: float, **parts: float) -> tuple[Scored, ...]:
    return (Scored(metric="bleu", value=value, parts=parts, signature="bleu|x"),)


def result(seed: int, value: float | None, status: str = "done") -> Result:
    found = Measured(
        machine={},
        parameters=7,
        training=Training(steps=3, tokens=100, seconds={"updates": 4.0, "loading": 1.0}),
        scores={} if value is None else {"test": score(value, rouge1=2 * value)},
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
    found = summarize([1.0, 2.0, 6.0])
    assert found is not None
    assert found.mean == 3.0
    assert found.deviation == pytest.approx(7**0.5)  # ((2^2 + 1^2 + 3^2) / 2) ** 0.5
    assert found.show(2) == "3.00 ± 2.65"
    assert summarize([]) is None
    (alone, nothing) = summarize([1234.5]) or (None, None)
    assert (alone, nothing) == (1234.5, None)


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
        ([result(1, 20.0)], Column(name="Rouge-1", part="rouge1"), "40.00"),
        ([result(1, 20.0)], Column(name="Rouge-9", part="rouge9"), "-"),
    ],
)
def test_cells(results: list[Result], column: Column, shown: str) -> None:
    assert show_results(results, column) == shown


def test_validation_is_no_test() -> None:
    found = Measured(machine={}, parameters=1, scores={"valid": score(5.0)})
    mine = Result(row="r", recipe="x", seed=1, status="done", command="c", date="d", measured=found)
    assert mine.figure(BLEU) is None
    assert mine.figure(replace(BLEU, split="valid")) == 5.0


def test_results_come_back(tmp_path: Path) -> None:
    results = Results.create(tmp_path, experiment())
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
    Results.create(tmp_path, experiment())
    Results.create(tmp_path, experiment())
    with pytest.raises(ValueError, match=r"made otherwise: data.train: .* another --name"):
        Results.create(tmp_path, experiment(data={"train": "b"}))
    with pytest.raises(ValueError, match="settings"):
        Results.create(tmp_path, experiment(settings=("model.dropout=0.3",)))
    Results.create(tmp_path, experiment(name="other", settings=("model.dropout=0.3",)))


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"row": 1}', json.dumps({"row": "x"}), "\x00", '{"seed": NaN}']
)
def test_damaged_results_are_named(tmp_path: Path, text: str) -> None:
    results = Results.create(tmp_path, experiment())
    results.save(result(1, 2.0))
    path = results.path("some-recipe", 1)
    path.write_text(text)
    with pytest.raises(ValueError, match=r"result \(.*some-recipe.seed1.json\)"):
        results.all()


def test_validation_in_the_place_of_a_test_is_said(tmp_path: Path) -> None:
    """The table of language models has a column for either."""
    said = "the data has no split test: validation is scored in its place"
    lacking = Results.create(tmp_path / "a", experiment(data={"train": "a", "valid": "b"}))
    assert said in notes(lacking)
    whole = {"train": "a", "valid": "b", "test": "c"}
    assert said not in notes(Results.create(tmp_path / "b", experiment(data=whole)))


@pytest.mark.parametrize(
    ("table", "splits", "names"),
    [
        ("lm", ("valid", "test"), ["Valid", "Test"]),
        ("lm", ("valid",), ["Valid"]),
        ("mt2", ("valid", "test"), ["BLEU"]),
        ("mt2", ("valid",), ["BLEU, validation"]),
    ],
)
def test_no_column_calls_validation_a_test(
    table: str, splits: tuple[str, ...], names: list[str]
) -> None:
    data = dict.fromkeys(("train", *splits), "digest")
    columns = own_columns(TABLES[table], experiment(table=table, data=data), {})
    assert [column.name for column in columns] == names
    assert {column.split for column in columns} <= set(splits)
