"""The work folder: what was begun is gone on with, or not at all."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from lightconv.data.origin import Origin
from lightconv.data.work import Work

from lightconv.data.config import FilterConfig, PipelineConfig, SideConfig, TaskConfig, WordsConfig

ORIGIN = Origin(
    task=TaskConfig(kind="language_model", corpus="own", metric="perplexity"),
    pipeline=PipelineConfig(sides=(SideConfig(lang="en"),), subword=WordsConfig()),
    filters=FilterConfig(),
    inputs={"a/b.txt": "0" * 64},
)


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "deep" / "out"


def begin(out: Path) -> Path:
    """A folder with one stage done."""
    with Work(out, ORIGIN) as work:
        (work.folder / "scratch").write_text("x")
        (work.result / "file").write_text("x")
        work.finish("first", {"count": 3})
    return work.folder


def test_going_on(out: Path) -> None:
    begin(out)
    with Work(out, ORIGIN) as work:
        assert work.stages == {"first": {"count": 3}}
        assert (work.folder / "scratch").exists()
        assert work.changed == []
        work.publish()
    assert [path.name for path in out.parent.iterdir()] == ["out"]
    assert [path.name for path in out.iterdir()] == ["file"]


def test_another_origin_starts_anew(out: Path) -> None:
    begin(out)
    other = replace(ORIGIN, inputs={"a/b.txt": "1" * 64}, lightconv="0.0.1")
    with Work(out, other) as work:
        assert work.stages == {}
        assert [line.partition(":")[0] for line in work.changed] == [
            "inputs.'a/b.txt'",
            "lightconv",
        ]
        assert not (work.folder / "scratch").exists()
        assert list(work.result.iterdir()) == []


def remove_origin(path: Path) -> None:
    state = json.loads(path.read_text())
    del state["origin"]["task"]
    path.write_text(json.dumps(state))


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: path.write_text("{"),
        lambda path: path.write_text("[]"),
        lambda path: path.unlink(),
        remove_origin,
    ],
)
def test_a_record_that_cannot_be_read_starts_anew(
    out: Path, damage: Callable[[Path], object]
) -> None:
    folder = begin(out)
    damage(folder / "state.json")
    with Work(out, ORIGIN) as work:
        assert work.stages == {}
        assert not (work.folder / "scratch").exists()


def test_a_mistake_leaves_nothing_a_failure_all(out: Path) -> None:
    begin(out)
    with pytest.raises(OSError, match="full"), Work(out, ORIGIN):
        raise OSError("full")
    with pytest.raises(ValueError, match="bad"), Work(out, ORIGIN) as work:
        assert work.stages
        raise ValueError("bad")
    assert list(out.parent.iterdir()) == []


def test_one_at_a_time(out: Path) -> None:
    with Work(out, ORIGIN) as work:
        work.finish("first", {})
        with pytest.raises(ValueError, match="another process prepares"), Work(out, ORIGIN):
            pass
        assert work.folder.exists()
    with Work(out, ORIGIN) as work:
        assert work.stages == {"first": {}}


def test_publishing_replaces(out: Path) -> None:
    out.mkdir(parents=True)
    (out / "old").touch()
    begin(out)
    with Work(out, ORIGIN) as work:
        work.publish()
    assert [path.name for path in out.iterdir()] == ["file"]
