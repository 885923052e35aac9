"""What the documents name exists: links, files, commands, options, settings, Python names.

Every block of Python is run, here or in the test that RUN_BY names for its page, and so are the
commands of the pages about text, on models that were trained here.
"""

import argparse
import ast
import io
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch

import lightconv
from lightconv import cli
from lightconv.commands.parser import Parser
from lightconv.ops.library import native
from lightconv.paper import RECIPES
from lightconv.paper.tables import TABLES
from tests.trained import Trained

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "lightconv"
OTHERS = {"--max-restarts"}  # torchrun's
FAIRSEQ = ROOT / "docs" / "fairseq.md"
PATTERNS = ("*.md", "docs/*.md", "docs/performance/*.md", "docs/results/README.md", "examples/*.md")
PAGES = {
    str(path.relative_to(ROOT)): path.read_text()
    for path in sorted(path for pattern in PATTERNS for path in ROOT.glob(pattern))
}


SHELL = r"(lightconv [a-z-]|python (-m|[a-z])|make [a-z]|torchrun )"


def lines(text: str) -> list[str]:
    """Indented or fenced lines that a shell would run, without comments and redirections."""
    text = re.sub(r"^    srun .* bash -c '(.*)'$", r"    \1", text, flags=re.MULTILINE)
    found = re.findall(r"^    (?:echo .* \| )?(\S.*)$", text, re.MULTILINE)
    for block in re.findall(r"^```sh\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        found += [line.rpartition(" | ")[2] for line in block.splitlines() if line]
    return [re.split(r"  #| > ", line)[0].strip() for line in found]


def mentions(text: str) -> list[str]:
    """The same in `...`, where a command may stand without all of its arguments."""
    text = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    return [" ".join(name.split()).split(" > ")[0] for name in re.findall(r"`([^`]+)`", text)]


def each(*commands: str, among: Sequence[Callable[[str], list[str]]]) -> pytest.MarkDecorator:
    """Parametrises a test over the commands of all pages that begin so."""
    found = [
        pytest.param(command, id=f"{page}: {command}")
        for find in among
        for page, text in PAGES.items()
        for command in find(re.sub(r"```(?!sh).*?```", "", text, flags=re.DOTALL))
        if re.match(SHELL, command) and command.startswith(commands)
    ]
    assert found
    return pytest.mark.parametrize("command", found)


# --- commands


@pytest.fixture
def understand(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Has a command read its arguments and do nothing; its recipes and examples are there."""
    parsed: list[argparse.Namespace] = []
    real = Parser.parse
    recipe = r"(iwslt|wmt|billion|cnn|debian)-[\w-]*(conv|attention)(-small)?"

    def parse(self: Parser, argv: Sequence[str]) -> argparse.Namespace:
        parsed.append(real(self, argv))
        raise SystemExit(0)

    def check(command: str) -> None:
        words = shlex.split(command.partition(" -m ")[2] or command)
        parsed.clear()
        assert cli.main(words[1:]) == 0, command
        assert len(parsed) == 1
        for word in words[2:]:
            assert not word.startswith("examples/") or (ROOT / word).exists()
            assert not re.fullmatch(recipe, word) or word in RECIPES

    monkeypatch.setattr(Parser, "parse", parse)
    return check


@each("lightconv ", "torchrun ", among=[lines])
def test_a_command_is_understood(command: str, understand: Callable[[str], None]) -> None:
    understand(command)


@pytest.mark.parametrize("name", ["", *cli.COMMANDS])
def test_the_examples_of_a_help_are_understood(
    name: str, capsys: pytest.CaptureFixture[str], request: pytest.FixtureRequest
) -> None:
    assert cli.main([*name.split(), "--help"]) == 0
    text = capsys.readouterr().out.replace(" \\\n     ", "")
    examples = text.partition("examples:\n")[2] if name else text
    found = re.findall(r"^  .*?(lightconv .*)$", examples, re.MULTILINE)
    assert len(found) > (0 if name else 5)
    understand = request.getfixturevalue("understand")
    for line in found:
        understand(re.split(r"  +#| [<>|] ", line)[0])


@each("lightconv ", among=[mentions])
def test_a_mentioned_command_exists(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """And has the options that stand behind it."""
    known: set[str] = set()

    def parse(self: Parser, argv: Sequence[str]) -> argparse.Namespace:
        known.update(self._option_string_actions)
        raise SystemExit(0)

    monkeypatch.setattr(Parser, "parse", parse)
    assert cli.main(command.split()[1:]) == 0
    given = {word.strip("[]") for word in command.split()[2:] if word.strip("[]").startswith("--")}
    assert given <= known


@each("python ", among=[lines, mentions])
def test_a_script_has_its_options(command: str) -> None:
    words = shlex.split(command)[1:]
    name = words[1].replace(".", "/") if words[0] == "-m" else words[0].removesuffix(".py")
    path = ROOT / f"{name}.py"
    assert path.exists() or (ROOT / name).is_dir(), name
    for option in (word for word in words if word.startswith("--")):
        assert f'"{option}"' in path.read_text(), option


@each("make ", among=[lines, mentions])
def test_make_has_the_target(command: str) -> None:
    words = ["make", "-n", *shlex.split(command)[1:]]
    assert subprocess.run(words, cwd=ROOT, capture_output=True, check=False).returncode == 0


# --- names


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: str) -> None:
    for link in re.findall(r"\]\(([^)]+)\)", PAGES[page]):
        if "://" in link:
            continue
        name, _, anchor = link.partition("#")
        path = (ROOT / page).parent / name if name else ROOT / page
        assert path.exists(), link
        if anchor:
            heads = re.findall(r"^#+ (.*)$", path.read_text(), re.MULTILINE)
            assert anchor in {re.sub(r"[^\w -]", "", h).lower().replace(" ", "-") for h in heads}


@pytest.mark.parametrize("page", PAGES)
def test_files_of_the_project_exist(page: str) -> None:
    begins = r"`((?:src|tests|docs|benchmarks|examples|\.ci|lightconv|ops|csrc)/[\w./*-]+)`"
    for name in re.findall(begins, PAGES[page]):
        places = (ROOT, ROOT / "src", SOURCE, SOURCE / "ops")
        assert any(any(place.glob(name.rstrip("/"))) for place in places), name


@pytest.mark.parametrize("page", PAGES)
def test_options_exist(page: str) -> None:
    """Ours and those of tools that we call stand in the source."""
    source = "\n".join(
        path.read_text()
        for folder in (SOURCE, ROOT / "benchmarks", ROOT / "examples")
        for path in folder.rglob("*.py")
    )
    text = PAGES[page]
    if ROOT / page == FAIRSEQ:  # the first column of its tables is fairseq's
        text = re.sub(r"^\|[^|]*\|", "", text, flags=re.MULTILINE)
    for option in set(re.findall(r"`[^`]*?(?<![\w-])(--[a-z][a-z-]+)", text)):
        assert option in OTHERS or re.search(rf'["` ]{option}["` ]', source), option


@pytest.mark.parametrize("page", PAGES)
def test_python_names_exist(page: str) -> None:
    for name in set(re.findall(r"`(lightconv(?:\.\w+)+)(?<!\.py)`", PAGES[page])):
        found: object = lightconv
        place = "lightconv"
        for part in name.split(".")[1:]:
            place = f"{place}.{part}"
            try:
                found = getattr(found, part, None) or import_module(place)
            except ImportError as error:  # of a package that an extra brings
                assert "pip install 'lightconv[" in str(error)
                break


def test_the_page_of_the_paper_has_its_figures() -> None:
    """As `lightconv table` has them, which tests/paper compares with the paper."""
    rows = re.findall(
        r"^\| `lightconv table (\w+)` \|.*\| (.*) \| (\d+) \|$", PAGES["docs/paper.md"], re.M
    )
    assert [name for name, _, _ in rows] == list(TABLES)
    for name, figures, count in rows:
        table = TABLES[name]
        assert int(count) == len(table.rows)
        known = {figure for row in table.rows for figure in row.figures}
        assert set(re.findall(r"\d+\.\d+(?: ± \d+\.\d+)?", figures)) <= known
    assert [row.figures for row in TABLES["normalization"].rows].count(["diverges"]) == 5


def test_variables_of_the_environment_are_all_explained() -> None:
    """LIGHTCONV_... in the source and in the documents are the same, but for the private ones."""
    written = {name for text in PAGES.values() for name in re.findall(r"LIGHTCONV_[A-Z_]+", text)}
    used = {
        name
        for path in [*SOURCE.rglob("*.py"), *SOURCE.rglob("*.cpp"), *SOURCE.rglob("*.h")]
        for name in re.findall(r'"(LIGHTCONV_[A-Z_]+)"', path.read_text())
    }
    assert written <= used
    assert used - written <= {"LIGHTCONV_PARENT", "LIGHTCONV_VNNI", "LIGHTCONV_STORE"}


def test_versions_are_one() -> None:
    citation = re.search(r"^version: (.*)$", (ROOT / "CITATION.cff").read_text(), re.MULTILINE)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert citation
    assert citation[1] == project["version"] == lightconv.__version__


# --- pages about text, run

KINDS = "translate|summarize|generate|score|interactive|evaluate|tune"
ABOUT_TEXT = PAGES["docs/translate.md"] + PAGES["docs/evaluation.md"]
TEXT = set(re.findall(rf"^    (lightconv (?:{KINDS}) .*?)(?:  +#.*)?$", ABOUT_TEXT, re.M))


@pytest.fixture
def folder(
    copies: Trained, texts: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder with all that the pages name."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(copies.run, "runs/first")
    Path("data").mkdir()
    Path("data/mine").symlink_to(copies.data)
    Path("text-model").symlink_to(texts.model)
    for name in ("in", "out", "ref", "articles", "baseline"):
        Path(f"{name}.txt").write_text("w1 w2 .\nw3 w4 .\n")
    for name in ("out.tok", "ref.tok"):
        Path(name).write_text("w1 w2 .\nw3 w4 .\n")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"w1 w2\n")))


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("command", sorted(TEXT))
def test_commands_run(command: str, capfd: pytest.CaptureFixture[str]) -> None:
    model = "text-model" if " generate " in command else "runs/first"
    command = command.replace("MODEL", model).replace("'the king'", "the").partition(" > ")[0]
    code = cli.main(shlex.split(command)[1:])
    out, err = capfd.readouterr()
    assert code == 0, err
    assert out


# --- Python

PYTHON = {
    page: found
    for page, text in PAGES.items()
    if (found := re.findall(r"```python\n(.*?)```", text, re.S))
}
RUN_BY = {
    "README.md": "tests/test_readme.py",
    "docs/data.md": "tests/commands/test_prepare.py",
    "docs/decoding.md": "tests/decode/test_models.py",
    "docs/evaluation.md": "tests/commands/test_evaluate.py",
    "docs/training.md": "tests/train/test_training_docs.py",
}
# Pages whose blocks are run below, one after the other, and the extras that they need.
RUN_HERE = {
    "docs/engine.md": (),
    "docs/model-folder.md": ("transformers",),
    "docs/operators.md": ("onnx", "onnxscript"),
    "docs/translate.md": (),
    "docs/tutorial-layer.md": (),
    "docs/tutorial-model.md": (),
}


def test_every_block_of_python_is_run() -> None:
    assert set(PYTHON) == {*RUN_BY, *RUN_HERE, "docs/serve.md"}
    for page, test in RUN_BY.items():
        assert Path(page).name in (ROOT / test).read_text()


@pytest.mark.usefixtures("folder")
@pytest.mark.filterwarnings("ignore::FutureWarning")  # torch's own, of its exporter
@pytest.mark.parametrize("page", RUN_HERE)
def test_blocks_run(page: str, copies: Trained, monkeypatch: pytest.MonkeyPatch) -> None:
    for extra in RUN_HERE[page]:
        pytest.importorskip(extra, reason="an extra")
    if page == "docs/engine.md" and native().library is None:
        pytest.skip("no C++ kernels")
    Path("my-model").symlink_to(copies.model)
    monkeypatch.delitem(sys.modules, "causal_conv1d", raising=False)  # and what compat adds
    names: dict[str, Any] = {"lightconv": lightconv, "torch": torch, "max_len": 9}
    names["model"] = model = lightconv.load(copies.model)
    names |= {"source": torch.tensor([[5, 6, 2]]), "first": torch.tensor([2])}
    if page == "docs/engine.md":
        exec(PYTHON[page][0], names | {"model": model.model})
    for block in PYTHON[page][page == "docs/engine.md" :]:
        exec(block, names)


def test_the_names_of_bulk_translation() -> None:
    """Those that tests/serve/test_ray.py runs with Ray, which is an extra."""
    (block,) = PYTHON["docs/serve.md"]
    job = "".join((ROOT / "tests" / "serve" / n).read_text() for n in ("ray_job.py", "test_ray.py"))
    source = (SOURCE / "ray.py").read_text()
    for node in ast.walk(ast.parse(block)):
        if isinstance(node, ast.ImportFrom) and node.module == "lightconv.ray":
            assert all(f"\ndef {name.name}(" in source for name in node.names)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            assert node.func.id in job
