"""R1 and R6 for the writer of checkpoints alone: the cases of `crash.py`, judged."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lightconv.selftest.crash import LAST, NEW, NEXT
from lightconv.selftest.forks import shared
from lightconv.selftest.promise import BrokenError, expect

# How many operations a save of the small checkpoints is known to have; fewer: some go unnoticed.
FEWEST_POINTS = 30
Results = dict[str, list[dict[str, Any]]]


def run_cases(folder: Path, *cases: str) -> Results:
    """The results of some cases, or of all."""
    answer = shared().run(cases=[str(folder), *cases])
    if answer["code"]:
        raise BrokenError(answer["err"])
    found: Results = json.loads(answer["out"])
    return found


def check_killed(folder: Path, full: bool) -> int:
    """R1: killed at every operation; how many kills there were."""
    cases = ("kill-new", "kill-remains", "kill-again", "halfway-new") if full else ("kill-new",)
    return _judge_all(run_cases(folder, *cases), cases)


def check_failing(folder: Path, full: bool) -> int:
    """R6: every operation fails in turn, a full disk, a closed folder, two writers at once."""
    cases = ("fail-new", "fail-again") if full else ("fail-new",)
    results = run_cases(folder, *cases, "small-disk", "closed-folder", "two-writers")
    for result in results["small-disk"][:-1]:
        expect((result.get("step"), result.get("skipped")) == (LAST, 0), f"full disk: {result}")
        expect("Make room" in result.get("refused", ""), f"full disk: {result}")
    (closed,) = results["closed-folder"]
    expect("Permission denied" in closed.get("refused", ""), f"closed folder: {closed}")
    second, _, later = results["two-writers"]
    expect("another process" in second.get("error", ""), f"a second writer: {second}")
    expect(later == {}, f"the writer after a dead one: {later}")
    return _judge_all(results, cases)


def _judge_all(results: Results, cases: Sequence[str]) -> int:
    for case in cases:
        expect(len(results[case]) > FEWEST_POINTS, f"{case}: only {len(results[case])} operations")
        for result in results[case]:
            _judge(case, result)
    return sum(len(results[case]) - 1 for case in cases)


def _judge(case: str, result: dict[str, Any]) -> None:
    """Before or after, never between: a whole checkpoint is found, and the next save works."""
    where = f"{case} at operation {result.get('point')}"
    expect("error" not in result, f"{where}: {result.get('error')}")
    expect(result["after"]["step"] in (LAST, NEW), f"{where}: {result['after']}")
    expect(result["after"]["skipped"] == 0, f"{where}: a damaged checkpoint was left")
    expect(result["next"]["step"] == NEXT, f"{where}: {result['next']}")
    expect(not [n for n in result["names"] if n.startswith(".step")], f"{where}: remains are left")
