"""The notebook runs from its first to its last cell, and its model learns its text."""

import json
from pathlib import Path
from typing import Any

import pytest

NOTEBOOK = Path(__file__).parents[2] / "examples" / "first.ipynb"


def test_the_notebook_runs() -> None:
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    cells = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    names: dict[str, Any] = {}
    for cell in cells:
        assert not cell.get("outputs"), "outputs are not kept"
        if cell["cell_type"] == "code":
            exec("".join(cell["source"]), names)
    # A text of 26 letters and few words: the loss of guessing letters is above 3.
    assert names["losses"][0] > 2.5 and names["losses"][-1] < 1.0
    assert "fox jumps over" in names["continued"]
    assert names["kernels"].shape == (4, 50, 15)
    assert abs(names["kernels"].sum(-1) - 1).max() < 1e-3
    matplotlib.pyplot.close("all")
