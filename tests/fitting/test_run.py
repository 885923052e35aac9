"""A fit from pairs to a model: stopped, resumed, improved; the time allowed is kept."""

import json
import random
import time
from pathlib import Path

import pytest

import lightconv
from lightconv.config import read
from lightconv.decode.options import find_model
from lightconv.fitting.plan import OWN, SIZES, choose_dropout, choose_tokens, set_steps
from lightconv.fitting.run import Decision
from lightconv.recipe import Recipe
from lightconv.train.run import Run, RunModel

NAMES = ["ab", "cd", "ef", "gh", "ij", "kl", "mn", "op", "qr", "st", "uv", "wx"]


def make_pairs(count: int = 3000) -> list[tuple[str, str]]:
    """Invented sentences whose translation is each word backwards."""
    draw = random.Random(1)
    texts = [" ".join(draw.choices(NAMES, k=draw.randint(3, 9))) for _ in range(count)]
    return [(text, " ".join(word[::-1] for word in text.split())) for text in texts]


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Decision]]:
    out, choices = tmp_path_factory.mktemp("fit") / "m", list[Decision]()
    lightconv.fit(
        make_pairs(),
        out,
        source_lang="xx",
        target_lang="yy",
        size="nano",
        settings=["train.max_steps=60"],
        licence="cc0-1.0",
        report=choices.append,
    )
    return out, choices


def test_the_folder_is_a_model_with_recipe_and_card(fitted: tuple[Path, list[Decision]]) -> None:
    out, choices = fitted
    assert lightconv.load(out).translate(["ab cd"])[0]
    recipe = read(out / "recipe.toml", Recipe)
    assert (recipe.task.source_lang, recipe.task.target_lang) == ("xx", "yy")
    assert recipe.train.max_steps == 60
    card = (out / "README.md").read_text()
    for part in ("license: cc0-1.0", "- xx", "BLEU", "copying the source", "reference:"):
        assert part in card
    assert {choice.what for choice in choices} >= {"text", "vocabulary", "model", "training"}
    assert all(choice.reason for choice in choices)
    state = json.loads((out.with_name("m.fit") / "state.json").read_text())
    assert state["step"] == 60


def test_a_finished_fit_is_not_repeated(fitted: tuple[Path, list[Decision]]) -> None:
    out, _ = fitted
    before = (out / "model.safetensors").stat().st_mtime_ns
    settings = ["train.max_steps=60"]
    lightconv.fit(make_pairs(), out, source_lang="xx", target_lang="yy", settings=settings)
    assert (out / "model.safetensors").stat().st_mtime_ns == before


def test_other_text_is_refused(fitted: tuple[Path, list[Decision]]) -> None:
    with pytest.raises(ValueError, match="begun with other text"):
        lightconv.fit(make_pairs(2000), fitted[0], source_lang="xx", target_lang="yy")


def test_a_run_that_has_not_ended_is_a_model(fitted: tuple[Path, list[Decision]]) -> None:
    run = fitted[0].with_name("m.fit") / "run"
    model = run / "model"
    hidden = model.rename(run / ".hidden")
    try:
        found = find_model(run)
        assert isinstance(found, RunModel)
        assert found.step in Run.open(run).checkpoints().steps()
        assert "has not ended" in found.note
        assert lightconv.load(run).translate(["ab cd"])[0]
    finally:
        hidden.rename(model)


@pytest.mark.slow
def test_the_time_is_kept_and_more_of_it_improves_the_model(tmp_path: Path) -> None:
    out, best = tmp_path / "m", []
    for seconds in (25, 50):
        began = time.monotonic()
        lightconv.fit(make_pairs(), out, time=seconds, source_lang="xx", target_lang="yy")
        state = json.loads((tmp_path / "m.fit" / "state.json").read_text())
        # The second call has the rest of the time only.
        assert time.monotonic() - began <= 1.15 * 25
        assert 0.8 * seconds <= state["seconds"] <= 1.1 * seconds
        best.append(state["scores"]["model"][0]["value"])
    assert best[1] >= best[0] - 0.5
    assert best[1] > 2 * state["scores"]["nearest"][0]["value"]


def test_recipes_for_little_text_have_names() -> None:
    recipe = OWN["own-translation"]
    assert (recipe.model.dim, recipe.model.dropout, recipe.train.average_last) == (256, 0.2, 3)
    assert (recipe.train.schedule.peak, recipe.train.schedule.warmup) == (2e-3, 400)


def test_choices_grow_with_time_and_repetition() -> None:
    assert [choose_dropout(epochs) for epochs in (1, 5, 20, 100)] == [0.0, 0.1, 0.2, 0.3]
    assert [choose_tokens(whole) for whole in (1e5, 6e6, 1e9)] == [900, 2000, 4000]
    schedule = set_steps(OWN["own-text"].train, 1600).schedule
    assert (schedule.warmup, schedule.period) == (100, 1500)
    assert list(SIZES) == ["nano", "tiny", "small", "medium", "large"]
