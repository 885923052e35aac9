"""Every example is in the index, answers --help, and refuses what it cannot do in one line."""

import pytest

from tests.examples.conftest import FOLDER, load_example

REFUSED = {
    "swap_attention": ["--steps", "0"],
    "stream": ["--tokens", "-1"],
    "long": ["--length", "12"],
    "images": ["--seeds", "0"],
    "question": ["--steps", "0"],
    "hybrid": ["--steps", "0"],
    "onnx_decode": ["folder", "--most", "0"],
}


def test_the_index_names_every_example() -> None:
    index = (FOLDER / "README.md").read_text()
    for path in FOLDER.iterdir():
        if path.suffix in (".py", ".toml", ".ipynb"):
            assert f"examples/{path.name}`" in index


@pytest.mark.parametrize("name", sorted(path.stem for path in FOLDER.glob("*.py")))
def test_help_and_mistakes(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    if name == "onnx_decode":
        pytest.importorskip("onnxruntime", reason="ONNX is not installed (extra: onnx)")
    main = load_example(name).main
    for words, code, said in ((["--help"], 0, "usage:"), (REFUSED.get(name, []), 2, "must be")):
        if words:
            with pytest.raises(SystemExit) as ended:
                main(words)
            assert ended.value.code == code
            assert said in "".join(capsys.readouterr())
