"""R17: folders from strangers can be wrong, but not do anything."""

import json
import subprocess
import sys
from collections import Counter

import pytest

from tests.harness.hostile import CHANGES


@pytest.mark.parametrize("cases", [500, pytest.param(10_000, marks=pytest.mark.slow)])
def test_a_hostile_folder_is_refused_in_one_line_or_answers_within_limits(cases: int) -> None:
    """No signal, no more than 10 s, no more memory than twice the weights and 512 MB."""
    command = [sys.executable, "-m", "tests.harness.hostile", "0", str(cases)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert [row["case"] for row in rows] == list(range(cases)), done.stderr
    assert not [row for row in rows if row["fault"]]
    answered = sum(row["outcome"] == "answered" for row in rows)
    changes = Counter(name for row in rows for name in row["changes"])
    print(f"{answered} of {cases} answered, slowest {max(row['seconds'] for row in rows):.1f} s")
    assert answered > cases // 20, "changes that nothing survives test little"
    assert set(changes) == {change.__name__ for change in CHANGES}
