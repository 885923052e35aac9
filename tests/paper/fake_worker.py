"""In the place of `lightconv`: trains nothing, measures what the environment says.

FAKE is JSON: by RECIPE.seedN, what becomes of it; FAKE_LOG a file that gets a line for each call.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path

STEPS = 6
ENDS = {
    "diverge": (3, "error: gradients were not finite at step 3"),
    "refuse": (2, "error: vocabulary (data): 3 ids, expected 4"),
    "fail": (1, "error: disk is full"),
}


def note(text: str) -> None:
    with Path(os.environ["FAKE_LOG"]).open("a") as log:
        log.write(f"{text}\n")


def wait(run: Path) -> int:
    """Trains until it is told to stop, or for a minute."""
    told: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, frame: told.append(number))
    (run / "waiting").touch()
    for _ in range(6000):
        if told:
            note(f"told {signal.Signals(told[0]).name}")
            return 130 if told[0] == signal.SIGINT else 75
        if os.getppid() != int(os.environ["LIGHTCONV_PARENT"]):
            time.sleep(1.0)  # it saves
            note("orphan ended")
            return 75
        time.sleep(0.01)
    return 1


def train(arguments: list[str]) -> int:
    run = Path(arguments[arguments.index("--out") + 1])
    run.mkdir(parents=True, exist_ok=True)
    fate = json.loads(os.environ.get("FAKE", "{}")).get(run.name)
    entries = [{"kind": "train", "step": step, "loss": 1.0} for step in range(1, STEPS + 1)]
    (run / "log.jsonl").write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    if fate == "wait":
        return wait(run)
    if fate == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    code, message = ENDS.get(fate, (0, ""))
    print(message, file=sys.stderr)
    return code


def measure(arguments: list[str]) -> int:
    """BLEU is ten times the seed and the number of letters of the recipe."""
    run = Path(arguments[0])
    recipe, seed = run.name.split(".seed")
    splits = [arguments[i + 1] for i, word in enumerate(arguments) if word == "--split"]
    diverged = "--diverged" in arguments
    score = {
        "metric": "sacrebleu",
        "value": 10.0 * int(seed) + len(recipe),
        "parts": {},
        "signature": "sacrebleu|fake",
    }
    sentences = 1 if "--one-by-one" in arguments else 64
    speed = {"split": splits[-1], "lines": 20, "seconds": 4.0, "tokens": 100, "engine": "torch"}
    found = {
        "machine": {"processor": "an abacus"},
        "parameters": 1000 + len(recipe),
        "training": {"steps": STEPS, "tokens": 600, "seconds": {"updates": 3.0, "loading": 57.0}},
        "scores": {} if diverged else {split: [score] for split in splits},
        "speed": None if diverged else {**speed, "sentences": sentences},
    }
    Path(arguments[arguments.index("--out") + 1]).write_text(json.dumps(found))
    return 0


def main(arguments: list[str]) -> int:
    note(" ".join(arguments))
    return {"train": train, "measure": measure}.get(arguments[0], lambda _: 0)(arguments[1:])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
