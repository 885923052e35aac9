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
    """BLEU is ten times the seed and the number of letters of the recipe; on validation, less."""
    asked = json.loads(arguments[0])
    recipe, seed = Path(asked["path"]).name.split(".seed")
    score = {"metric": "sacrebleu", "parts": {}, "signature": "sacrebleu|fake"}
    values = {"test": 10.0 * int(seed) + len(recipe), "valid": len(recipe) - 10.0 * int(seed)}
    found = {
        "machine": {"processor": "an abacus"},
        "parameters": 1000 + len(recipe),
        "training": {"steps": STEPS, "tokens": 600, "seconds": {"updates": 3.0, "loading": 57.0}},
        "scores": {s: [{**score, "value": values[s]}] for s in asked["splits"] if asked["ended"]},
    }
    Path(asked["out"]).write_text(json.dumps(found))
    return 0


def speed(arguments: list[str]) -> int:
    """Each run takes a tenth of the number of its place, and half of that longer or shorter."""
    given = {name: arguments[arguments.index(name) + 1] for name in ("--split", "--out", "--beam")}
    about = {"split": given["--split"], "lines": 20, "tokens": 100, "engine": "native"}
    about |= {"sentences": 256, "beam": int(given["--beam"]), "threads": 1, "noise": 0.01}
    found = []
    for place in range(1, arguments.index("--data") + 1):
        rounds = [place / 10 * factor for factor in (1.5, 1.0, 0.5)]
        found.append({**about, "seconds": place / 10, "rounds": rounds})
    Path(given["--out"]).write_text(json.dumps({"speeds": found}))
    return 0


def main(arguments: list[str]) -> int:
    note(" ".join(arguments))
    return {"train": train, "measure": measure, "speed": speed}.get(arguments[0], lambda _: 0)(
        arguments[1:]
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
