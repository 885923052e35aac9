"""Every example is in the index, answers --help, and refuses what it cannot do in one line."""

from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

FOLDER = Path(__file__).parents[2] / "examples"
SCRIPTS = sorted(path.stem for path in FOLDER.glob("*.py"))
REFUSED = {
    "swap_attention": ["--steps", "0"],
    "stream": ["--tokens", "-1"],
    "long": ["--length", "12"],
    "images": ["--seeds", "0"],
    "question": ["--steps", "0"],
}


def test_the_index_names_every_example() -> None:
    index = (FOLDER / "README.md").read_text()
    for path in FOLDER.iterdir():
        if path.suffix in (".py", ".toml"):
            assert f"examples/{path.name}`" in index


@pytest.mark.parametrize("name", SCRIPTS)
def test_help(
    name: str, load_example: Callable[[str], ModuleType], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        load_example(name).main(["--help"])
    assert ended.value.code == 0
    assert "usage:" in capsys.readouterr().out


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_refused(
    name: str, load_example: Callable[[str], ModuleType], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        load_example(name).main(REFUSED[name])
    assert ended.value.code == 2
    assert "must be" in capsys.readouterr().err
