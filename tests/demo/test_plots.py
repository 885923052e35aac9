"""Pictures: their numbers, and texts that are no markup."""

import warnings

import pytest

from lightconv.demo.plots import draw_dynamic, draw_growth, draw_learned, draw_learning, spread


def test_kernels_as_a_matrix() -> None:
    # Causal kernels of width 3 over four positions; the first two reach before the text.
    kernels = [[0.1, 0.2, 0.7], [0.1, 0.3, 0.6], [0.2, 0.3, 0.5], [0.3, 0.3, 0.4]]
    assert spread(kernels, left=2) == [
        [0.7, 0.0, 0.0, 0.0],
        [0.3, 0.6, 0.0, 0.0],
        [0.2, 0.3, 0.5, 0.0],
        [0.0, 0.3, 0.3, 0.4],
    ]
    assert spread([[0.2, 0.8], [0.4, 0.6]], left=0) == [[0.2, 0.8], [0.0, 0.4]]


@pytest.mark.parametrize("token", ["$x$", "$\\frac$", "<b>&", "\\alpha", "中文", "a b", "\x07"])
def test_any_text_is_a_label(token: str) -> None:
    layer = {"left": 1, "weights": [[[0.2, 0.3, 0.5], [0.1, 0.1, 0.8]]]}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        picture = draw_dynamic(layer, [token, "</s>"])
    assert picture.light.startswith(b"<?xml") and picture.light != picture.dark


def test_pictures_of_what_may_be_missing() -> None:
    assert draw_learning([]).light
    assert draw_learning([{"kind": "valid", "step": 3, "nll": None}]).light
    row = {"length": 8, "microseconds": {"a": 1.0, "b": 2.0}, "bytes": None}
    assert draw_growth([row]).light
    later = {"length": 16, "microseconds": {"a": 1.0}, "bytes": {"a": 0.0}}
    assert draw_growth([{**row, "bytes": {"a": 1.0, "b": 3.0}}, later]).dark
    wide = [[1 / 31] * 31] * 16
    assert draw_learned([{"layer": "layer 1", "left": 30, "weights": wide}]).light


def test_the_same_results_are_the_same_picture() -> None:
    log = [{"kind": "train", "step": 1, "nll": 2.0}, {"kind": "train", "step": 2, "nll": 1.0}]
    assert draw_learning(log) == draw_learning(log)
