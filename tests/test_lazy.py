"""Configurations are read without torch; what needs it is loaded when it is named."""

import subprocess
import sys

import pytest

import lightconv.data
import lightconv.decode
import lightconv.train


@pytest.mark.parametrize(
    "module",
    [
        "lightconv.config",
        "lightconv.recipe",
        "lightconv.data",
        "lightconv.decode",
        "lightconv.models",
        "lightconv.train",
        "lightconv.train.config",
    ],
)
def test_importing_it_does_not_import_torch(module: str) -> None:
    code = f"import sys, {module}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(
    "package", [lightconv.data, lightconv.decode, lightconv.train], ids=lambda p: p.__name__
)
def test_every_name_is_there(package: object) -> None:
    for name in package.__all__:  # type: ignore[attr-defined]
        assert getattr(package, name) is not None
    with pytest.raises(AttributeError, match=r"module 'lightconv\.\w+' has no attribute 'Nothing'"):
        _ = package.Nothing  # type: ignore[attr-defined]
