"""Every parameter count of the paper, exactly: written out here, by formula, and by the models."""

import time

import pytest

from lightconv.paper.params import PAPER_COUNTS, TABLE_TITLES, agrees, count, total
from lightconv.paper.recipes import RECIPES
from tests.paper.formulas import parameters

# recipe: (the paper's figure in millions, the exact number)
WMT = {
    "selfattention": (210, 209_911_808),
    "ablation-windowed": (210, 209_911_808),
    "lightconv": (202, 202_569_904),
    "dynamicconv": (213, 213_237_760),
    "ablation-cnn": (208, 208_823_296),
    "ablation-depthwise": (195, 195_258_368),
    "ablation-increasing-kernel": (195, 195_491_840),
    "ablation-dropconnect": (195, 195_491_840),
    "ablation-sharing": (195, 195_222_704),
    "ablation-softmax": (195, 195_222_704),
    "ablation-dynamicconv": (200, 199_592_960),
    "ablation-dynamicconv-nosoftmax": (200, 199_592_960),
    "ablation-aan-decoder": (260, 260_261_888),
    "ablation-aan-both": (310, 310_611_968),
    "decoder-1": (124, 124_680_192),
    "decoder-3": (153, 153_976_832),
    "decoder-6": (200, 199_592_960),
}
PRINTED = {
    **{f"wmt-en-de-{name}": counts for name, counts in WMT.items()},
    "wmt-zh-en-selfattention": (292, 292_786_176),
    "wmt-zh-en-lightconv": (285, 285_444_272),
    "wmt-zh-en-dynamicconv": (296, 296_112_128),
    "billion-word-selfattention": (331, 330_827_712),
    "billion-word-dynamicconv": (339, 339_457_984),
    "cnn-dailymail-selfattention": (90, 90_218_496),
    "cnn-dailymail-lightconv": (86, 86_543_960),
    "cnn-dailymail-dynamicconv": (87, 87_635_456),
}
UNPRINTED = {
    "iwslt-de-en-selfattention": 42_864_640,
    "iwslt-de-en-lightconv": 38_139_436,
    "iwslt-de-en-dynamicconv": 38_685_184,
}
ROWS = {
    "mt1": 4,
    "mt2": 6,
    "ablation": 12,
    "lm": 2,
    "summarization": 3,
    "normalization": 10,
    "decoders": 3,
}


@pytest.mark.parametrize("name", PRINTED)
def test_counts_of_the_paper(name: str) -> None:
    millions, exact = PRINTED[name]
    assert total(RECIPES[name].model) == exact
    assert millions in (exact // 10**6, round(exact / 1e6))


@pytest.mark.parametrize("name", UNPRINTED)
def test_counts_without_a_figure(name: str) -> None:
    assert total(RECIPES[name].model) == UNPRINTED[name]


@pytest.mark.parametrize("name", RECIPES)
def test_counts_follow_the_formulas(name: str) -> None:
    assert sum(count(RECIPES[name].model).values()) == parameters(RECIPES[name].model)


@pytest.mark.parametrize("name", RECIPES)
def test_counting_is_quick(name: str) -> None:
    times = []
    for _ in range(3):  # what torch loads at its first use is not the model's time
        start = time.process_time()
        count(RECIPES[name].model)
        times.append(time.process_time() - start)
        if times[-1] < 1.0:
            break
    assert min(times) < 1.0


def test_the_table_says_what_the_paper_says() -> None:
    figures = {row.recipe: (row.millions, row.exact) for row in PAPER_COUNTS if row.millions}
    assert figures == PRINTED
    assert {
        table: sum(row.table == table for row in PAPER_COUNTS) for table in TABLE_TITLES
    } == ROWS
    assert len({(row.table, row.row) for row in PAPER_COUNTS}) == len(PAPER_COUNTS)


@pytest.mark.parametrize("row", PAPER_COUNTS, ids=lambda row: f"{row.table}-{row.recipe}")
def test_every_row_is_a_recipe_of_that_size(row: tuple[str, str, str, int | None, int]) -> None:
    _, _, recipe, _, exact = row
    assert total(RECIPES[recipe].model) == exact


def test_parts_of_a_shared_matrix() -> None:
    layer, d = 4 * 1024**2 + 4 * 1024, 1024
    assert count(RECIPES["wmt-en-de-selfattention"].model) == {
        "embedding": 32_768 * d,
        "output": 0,
        "encoder mixers": 6 * layer,
        "encoder norms": 6 * 2 * 2 * d,
        "encoder ffn": 6 * (2 * d * 4096 + 4096 + d),
        "decoder mixers": 6 * layer,
        "decoder norms": 6 * 3 * 2 * d,
        "decoder ffn": 6 * (2 * d * 4096 + 4096 + d),
        "source attention": 6 * layer,
    }


def test_parts_of_separate_matrices() -> None:
    parts = count(RECIPES["iwslt-de-en-lightconv"].model)
    assert parts["embedding"] == (8848 + 6632) * 512
    assert parts["output"] == 6632 * 512


def test_parts_of_a_language_model() -> None:
    parts = count(RECIPES["billion-word-selfattention"].model)
    assert list(parts) == ["embedding", "output", "mixers", "norms", "ffn"]
    assert parts["mixers"] == 16 * (4 * 1024**2 + 4 * 1024)
    # Band words and their projections in; a projection out of each further band, two classes.
    assert parts["output"] == 1024 * (256 + 64) + 2 * 1024


@pytest.mark.parametrize(
    "millions, exact, answer",
    [
        (86, 86_543_960, True),
        (87, 86_543_960, True),
        (85, 86_543_960, False),
        (331, 330_827_712, True),
        (330, 330_827_712, True),
        (332, 330_827_712, False),
        (196, 195_222_704, False),
        (200, 200_000_000, True),
        (199, 200_000_000, False),
        (200, 199_999_999, True),
    ],
)
def test_agrees_when_cut_or_rounded(millions: int, exact: int, answer: bool) -> None:
    assert agrees(millions, exact) is answer
