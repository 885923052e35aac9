"""`lightconv completion`: commands, options and values for the shells that complete them."""

from collections.abc import Callable, Mapping, Sequence

from lightconv.commands.parser import DESCRIBE, DescribedError, Parser

Command = Callable[[Sequence[str]], int]
SHELLS = ("bash", "zsh", "fish")
# zsh runs the functions of bash.
ZSH = "autoload -U +X bashcompinit && bashcompinit\n"
BASH = """_lightconv() {
  local cur="${COMP_WORDS[COMP_CWORD]}" words=""
  if [ "$COMP_CWORD" -eq 1 ]; then words="@NAMES@"; else
    case "${COMP_WORDS[1]} ${COMP_WORDS[COMP_CWORD-1]} $cur" in
@CASES@
    esac
  fi
  if [ -n "$words" ]; then COMPREPLY=($(compgen -W "$words" -- "$cur"))
  else COMPREPLY=($(compgen -f -- "$cur")); fi
}
complete -o filenames -F _lightconv lightconv"""


def main(argv: Sequence[str], commands: Mapping[str, Command]) -> int:
    """Prints the script of a shell; `commands` are the other commands by name."""
    parser = Parser(
        "completion",
        "Prints a script that completes commands, options and their values in a shell.",
        "lightconv completion fish | source            # in config.fish",
        "lightconv completion bash > ~/.lightconv.sh   # and `source` it in ~/.bashrc",
        "lightconv completion zsh > ~/.lightconv.sh    # in ~/.zshrc, after compinit",
    )
    parser.add("SHELL", ", ".join(SHELLS), choices=SHELLS)
    shell = parser.parse(argv).shell
    found = {name: _options(command) for name, command in commands.items()}
    if shell == "fish":
        print("\n".join(_fish(found)))
    else:
        print(ZSH * (shell == "zsh") + _bash(found))
    return 0


def _options(command: Command) -> dict[str, list[str]]:
    """Options of a command with the values that each may have, from its parser."""
    try:
        command([DESCRIBE])
    except DescribedError as found:
        actions = found.parser._actions
    long = [(name, each) for each in actions for name in each.option_strings if name[:2] == "--"]
    return {name: [str(value) for value in each.choices or ()] for name, each in long}


def _bash(found: Mapping[str, Mapping[str, list[str]]]) -> str:
    cases = [f'      "completion "*) words="{" ".join(SHELLS)}";;']
    for command, options in found.items():
        values = {name: each for name, each in options.items() if each}
        cases += [
            f'      "{command} {name} "*) words="{" ".join(values[name])}";;' for name in values
        ]
        cases.append(f'      "{command} "*" -"*) words="{" ".join(options)}";;')
    names = " ".join([*found, "completion"])
    return BASH.replace("@NAMES@", names).replace("@CASES@", "\n".join(cases))


def _fish(found: Mapping[str, Mapping[str, list[str]]]) -> list[str]:
    first = "complete -c lightconv -n __fish_use_subcommand -f -a"
    lines = [f"{first} '{' '.join([*found, 'completion'])}'"]
    seen = "complete -c lightconv -n '__fish_seen_subcommand_from"
    lines.append(f"{seen} completion' -f -a '{' '.join(SHELLS)}'")
    for command, options in found.items():
        for name, values in options.items():
            choice = f" -x -a '{' '.join(values)}'" if values else ""
            lines.append(f"{seen} {command}' -l {name[2:]}{choice}")
    return lines
