"""Streams equal the whole and keep what their kernels reach back to, no more."""

from types import ModuleType

import pytest
import torch


@pytest.mark.parametrize("tokens", [1, 8, 573])
def test_the_whole_stream_arrives(example: ModuleType, tokens: int) -> None:
    chunks = list(example.arriving(tokens))
    assert sum(chunk.shape[1] for chunk in chunks) == tokens
    assert {chunk.shape[1] for chunk in chunks[:-1]} <= set(example.CHUNKS)


def test_the_comparison_can_fail(example: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    model = example.build()
    step = type(model).step
    # A model that forgets: every chunk starts afresh.
    forget = lambda self, tokens, state: step(self, tokens, self.start(1, 100))
    monkeypatch.setattr(type(model), "step", forget)
    with torch.inference_mode():
        assert example.compare(model, 100) > 0.1


def test_it_streams(example: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    assert example.main(["--tokens", "3000"]) < 1e-4
    (*_, first, last) = capsys.readouterr().out.splitlines()
    window = 4 * 256 * (2 + 6 + 14 + 30)  # the inputs before the present, of each layer
    past = 4 * 256 * 4 * 2 * 3000  # keys and values of four layers
    assert f" {window / 1e3:.0f} kB" in first
    assert f" {window / 1e3:.0f} kB" in last
    assert f" {past / 1e3:,.0f} kB" in last
