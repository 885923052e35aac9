"""Fixtures of the corpora that come through a package client."""

from pathlib import Path

import pytest

from tests.corpora.fake_apt import FakeApt


@pytest.fixture
def apt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeApt:
    """A package client and a mirror, the only ones in PATH."""
    folder = tmp_path / "fake"
    folder.mkdir()
    fake = FakeApt(folder)
    monkeypatch.setenv("PATH", str(fake.bin))
    return fake
