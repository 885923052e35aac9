"""The command `lightconv`: a dict of sub-commands, each a function of its arguments.

A sub-command's module is imported when it runs, so that --help and mistyped names answer at once.
"""

import os
import sys
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module

from lightconv import __version__
from lightconv.console import set_json, suggest, tell
from lightconv.processes import EXIT_INPUT, EXIT_INTERRUPT, PARENT, exit_code, watch_parent

# name -> (module of lightconv.commands:function, purpose)
COMMANDS = {
    "fit": ("fit:fit", "make a model of your own text in the time you give it"),
    "list": ("paper:list_recipes", "list the paper's models by name"),
    "show": ("paper:show_recipe", "print a recipe, or its parameters"),
    "prepare": ("prepare:prepare", "prepare a corpus or your own text for training"),
    "verify-data": ("prepare:verify_data", "compare prepared data with the published figures"),
    "train": ("train:train", "train a recipe, or resume a run"),
    "distill": ("train:distill", "train a small model on the outputs of a large one"),
    "average": ("models:average", "average checkpoints of a run into a model"),
    "plot": ("models:plot", "draw the curves of runs"),
    "translate": ("translate:translate", "translate text, line by line"),
    "summarize": ("translate:summarize", "summarise text, one article per line"),
    "generate": ("translate:generate", "continue text"),
    "interactive": ("translate:interactive", "translate or continue what is typed"),
    "serve": ("serve:main", "serve models on a page and through an API"),
    "score": ("translate:score", "print the log-probability of given text"),
    "evaluate": ("evaluate:evaluate", "score a model, or texts, with a signature"),
    "bench": ("machine:bench", "measure the speed of this machine and of models on it"),
    "speed": ("evaluate:speed", "compare the decoding speed of models"),
    "tune": ("evaluate:tune", "choose length penalty and checkpoints"),
    "shortlist": ("evaluate:shortlist", "choose the words of outputs by those of sources"),
    "table": ("paper:paper_table", "show, print or run the paper's tables"),
    "demo": ("fit:demo", "train a small model and show what it can do"),
    "import": ("models:import_checkpoint", "convert a fairseq checkpoint into a model folder"),
    "export": ("models:export", "write a model as ONNX files"),
    "push": ("models:push", "publish a model folder on a hub"),
    "selftest": ("machine:selftest", "check resume, damage and kernels on this machine"),
    "completion": ("parser:completion", "print the completion of bash, zsh or fish"),
    "doctor": ("machine:doctor", "show which kernels run on this machine, and why"),
}
# Commands that `lightconv table` starts; not listed.
INTERNAL = {"measure": "paper:measure"}
HELP = """usage: lightconv COMMAND [ARGUMENTS]

Lightweight and dynamic convolutions: layers, models and the paper's tables.

commands:
@COMMANDS@

`lightconv COMMAND --help` explains a command; --debug, anywhere, adds the
traceback to an error. For example, from files of your own to a translation:
  lightconv fit train.en train.fr --out my-model --time 10m
  echo 'A fast text editor.' | lightconv translate my-model
  lightconv serve my-model
and the paper:
  lightconv list iwslt
  lightconv show iwslt-de-en-dynamicconv --params
  lightconv table ablation"""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one sub-command and returns the exit code; an error is one line on stderr."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    debug = "--debug" in arguments
    arguments = [argument for argument in arguments if argument != "--debug"]
    try:
        _fill_streams()
        if PARENT in os.environ:
            watch_parent(int(os.environ[PARENT]))
        code = _run(arguments)
        sys.stdout.flush()
    except KeyboardInterrupt:
        return EXIT_INTERRUPT
    except BrokenPipeError:  # the reader, such as `head`, has ended
        _drop_output()
        return 0
    except Exception as error:
        if debug:
            traceback.print_exc()
        tell(f"error: {_describe(error)}")
        if isinstance(error, OSError) and error.errno and error.filename is None:
            _drop_output()
        return exit_code(error)
    finally:
        set_json(on=False)
    return code


def _fill_streams() -> None:
    """Opens /dev/null for streams that are closed, or the next file would take their place."""
    while (handle := os.open(os.devnull, os.O_RDWR)) < 3:
        pass
    os.close(handle)
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, mode, encoding="utf-8"))


def _drop_output() -> None:
    """Points stdout at /dev/null, or Python fails again when it flushes at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _run(arguments: list[str]) -> int:
    if arguments[:1] == ["help"] and len(arguments) > 1:
        arguments = [arguments[1], "--help"]
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        width = max(map(len, COMMANDS))
        lines = (f"  {name:<{width}}  {text}" for name, (_, text) in COMMANDS.items())
        print(HELP.replace("@COMMANDS@", "\n".join(lines)))
        return 0 if arguments else EXIT_INPUT
    if arguments[0] in ("-V", "--version"):
        print(f"lightconv {__version__}")
        return 0
    try:
        return _find(arguments[0])(arguments[1:]) or 0
    except SystemExit as stop:  # argparse, after it has printed its help
        return stop.code if isinstance(stop.code, int) else 0


def _find(name: str) -> Callable[[Sequence[str]], int | None]:
    if name not in COMMANDS and name not in INTERNAL:
        raise ValueError(f"unknown command '{name}'{suggest(name, COMMANDS)}")
    file, function = (INTERNAL.get(name) or COMMANDS[name][0]).split(":")
    module = import_module(f"lightconv.commands.{file}")
    found: Callable[..., int | None] = getattr(module, function)
    if name == "completion":
        return partial(found, commands={each: _find(each) for each in COMMANDS if each != name})
    return found


def _describe(error: Exception) -> str:
    """An error as one line."""
    if isinstance(error, OSError) and error.filename is not None:
        text = f"{error.filename}: {error.strerror}"
    elif isinstance(error, ValueError | OSError) or hasattr(error, "exit_code"):
        text = str(error)
    else:
        text = f"{type(error).__name__}: {error}. `--debug` shows where"
    # Names in files of others may hold commands for the terminal.
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in " ".join(text.split()))
