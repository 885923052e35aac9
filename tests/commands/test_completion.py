"""Completion, as the shells themselves complete."""

import shutil
import subprocess
from collections.abc import Callable

import pytest

from lightconv.cli import COMMANDS
from tests.commands.conftest import Run

# Words typed, the last of which is completed -> some completions, and a word that is none.
CASES = {
    ("tra",): ({"train", "translate"}, "tune"),
    ("translate", "model", "--en"): ({"--engine", "--ensemble"}, "--beam"),
    ("translate", "--engine", ""): ({"auto", "native", "torch"}, "--beam"),
    ("completion", ""): ({"bash", "zsh", "fish"}, "--help"),
    ("prepare", "--source"): ({"--source-lang"}, "--set"),
}


def ask_bash(script: str, words: tuple[str, ...]) -> set[str]:
    typed = " ".join(f"'{word}'" for word in ("lightconv", *words))
    call = f"COMP_WORDS=({typed}); COMP_CWORD={len(words)}; _lightconv; printf '%s\\n' "
    return ask("bash", f'{script}\n{call} "${{COMPREPLY[@]}}"')


def ask_zsh(script: str, words: tuple[str, ...]) -> set[str]:
    typed = " ".join(f"'{word}'" for word in ("lightconv", *words))
    begin = f"autoload -U compinit && compinit -D -u\n{script}\nemulate sh"
    call = f"COMP_WORDS=({typed}); COMP_CWORD={len(words)}; _lightconv; printf '%s\\n' "
    found = ask("zsh", f'{begin}\n{call} "${{COMPREPLY[@]}}"')
    return {each for each in found if each.startswith(words[-1])}  # zsh itself does this


def ask_fish(script: str, words: tuple[str, ...]) -> set[str]:
    typed = " ".join(("lightconv", *words))
    return {line.split("\t")[0] for line in ask("fish", f"{script}\ncomplete -C '{typed}'")}


def ask(shell: str, text: str) -> set[str]:
    if (found := shutil.which(shell)) is None:
        pytest.skip(f"{shell} is not installed")
    done = subprocess.run(
        [found], check=True, input=text, capture_output=True, text=True, timeout=60
    )
    assert not done.stderr, done.stderr
    return set(done.stdout.split("\n")) - {""}


@pytest.mark.parametrize("asker", [ask_bash, ask_zsh, ask_fish])
def test_a_shell_completes(run: Run, asker: Callable[[str, tuple[str, ...]], set[str]]) -> None:
    script = run("completion", asker.__name__.removeprefix("ask_"))
    assert script.code == 0 and not script.err
    for words, (wanted, unwanted) in CASES.items():
        found = asker(script.out, words)
        assert wanted <= found and unwanted not in found, (words, found)
    assert asker(script.out, ("",)) >= COMMANDS.keys()


def test_an_unknown_shell_is_refused(run: Run) -> None:
    assert run("completion", "tcsh").refused("tcsh", "bash")
