"""R1 and R6: whatever happens to the writer, there is an intact checkpoint, and saving works."""

import tempfile
from pathlib import Path
from typing import Any

import pytest

from tests.harness.crash import CASES, LAST, NEW, NEXT, OLD, run
from tests.harness.server import RankServer

# A save of the small checkpoints has more operations than this; fewer: some go unnoticed.
FEWEST_POINTS = 30
Results = dict[str, Any]


@pytest.fixture(scope="module")
def results(rank_server: RankServer) -> dict[str, list[Results]]:
    """All cases, run once; in a folder that another user may enter."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        Path(folder).chmod(0o755)
        found = {name: rank_server.call(run, size=1, name=name, folder=folder) for name in CASES}
    return {name: results for name, (results,) in found.items()}


@pytest.mark.parametrize("case", ["kill-new", "kill-remains", "halfway-new", "kill-again"])
def test_killed_at_every_operation(case: str, results: dict[str, list[Results]]) -> None:
    found = results[case]
    assert len(found) > FEWEST_POINTS
    assert [result.get("killed") for result in found] == [9] * (len(found) - 1) + [None]
    # The latest is the previous one, and from some point on the new one, both whole.
    before, after = {"step": LAST, "version": 0}, {"step": NEW, "version": 0}
    if case == "kill-again":
        after = {"step": LAST, "version": 1}
    states = [result["after"] for result in found]
    change = states.index(after | {"skipped": 0})
    assert 0 < change < len(found)
    assert states[:change] == [before | {"skipped": 0}] * change
    assert states[change:] == [after | {"skipped": 0}] * (len(found) - change)
    for result in found:
        last = result["after"]["step"]
        assert result["next"] == {"step": NEXT, "version": 0, "skipped": 0}
        assert result["names"] == [".lock", f"step-{last:08d}", f"step-{NEXT:08d}"]


@pytest.mark.parametrize("case", ["fail-new", "fail-again"])
def test_a_failure_of_every_operation(case: str, results: dict[str, list[Results]]) -> None:
    found = results[case]
    assert len(found) > FEWEST_POINTS
    refused = [result for result in found if "refused" in result]
    assert len(refused) > FEWEST_POINTS // 2
    for result in refused:
        step, version = result["after"]["step"], result["after"]["version"]
        message = result["refused"]
        assert "\n" not in message
        assert "No space left on device" in message
        assert message.endswith(f"step-{step:08d}. Make room and start again")
        # The one failure after the change: the disk may not have it, but the folder does.
        if (step, version) == (LAST, 0):
            shown = [name for name in result["left"] if name != ".lock"]
            assert shown == [f"step-{OLD:08d}", f"step-{LAST:08d}"]
    for result in found:
        assert result["after"]["skipped"] == 0
        assert result["next"] == {"step": NEXT, "version": 0, "skipped": 0}
        last = result["after"]["step"]
        assert result["names"] == [".lock", f"step-{last:08d}", f"step-{NEXT:08d}"]


def test_all_is_on_the_disk_before_it_has_its_name(results: dict[str, list[Results]]) -> None:
    log = results["order"]
    renames = [place for place, entry in enumerate(log) if entry["name"] == "rename"]
    change = renames[0]
    fresh, path = Path(log[change]["path"]), Path(log[change]["to"])
    assert path.name == f"step-{NEW:08d}"
    written = {entry["path"] for entry in log[:change] if entry["name"] == "write"}
    assert {Path(name).name for name in written} == {
        "model.safetensors",
        "optimizer.safetensors",
        "state.json",
        "manifest.json",
    }
    for name in written:
        last = max(i for i, e in enumerate(log) if e["name"] == "write" and e["path"] == name)
        assert {"name": "fsync", "path": name, "to": ""} in log[last:change]
    created = max(i for i, e in enumerate(log[:change]) if e["name"] in ("open", "mkdir"))
    assert {"name": "fsync", "path": str(fresh), "to": ""} in log[created:change]
    # The new name is on the disk before an old checkpoint goes.
    assert {"name": "fsync", "path": str(path.parent), "to": ""} in log[change : renames[1]]
    assert log[renames[1]]["path"].endswith(f"step-{OLD:08d}")
    assert not [e for e in log[: renames[1]] if e["name"] in ("unlink", "rmdir")]


def test_a_file_may_not_grow(results: dict[str, list[Results]]) -> None:
    *limited, last = results["small-disk"]
    for result in limited:
        assert result["names"] == [".lock", f"step-{OLD:08d}", f"step-{LAST:08d}"], result
        assert (result["step"], result["skipped"]) == (LAST, 0)
        assert result["refused"].startswith(f"the checkpoint of step {NEW} was not written (")
        assert result["refused"].endswith(f"/step-{LAST:08d}. Make room and start again")
    assert last["step"] == NEW


def test_a_closed_folder(results: dict[str, list[Results]]) -> None:
    (result,) = results["closed-folder"]
    assert result["refused"].startswith("checkpoints cannot be written (")
    assert "): Permission denied. The last good checkpoint is " in result["refused"]
    remedy = f"/step-{LAST:08d}. Make the folder writable and start again"
    assert result["refused"].endswith(remedy)
    assert result["names"] == [f"step-{OLD:08d}", f"step-{LAST:08d}"]


def test_one_process_writes(results: dict[str, list[Results]]) -> None:
    second, reader, later = results["two-writers"]
    assert second["error"].startswith("ValueError: another process is writing checkpoints to ")
    assert reader == {"steps": []}
    assert later == {}
