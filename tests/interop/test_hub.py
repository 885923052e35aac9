"""Models by name, with a hub's cache on disk and without a network."""

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import huggingface_hub
import pytest

import lightconv
from lightconv.cli import main
from lightconv.files import digest, inside
from lightconv.interop.hub import check_name, find_folder, push
from lightconv.models.folder import ModelFolder

GOLDEN = Path(__file__).parent.parent / "golden"
REVISION = "0" * 40
LINES = ["mi havas hundon .", "la kato dormas ."]


class DiskHub:
    """HfApi's two calls: a commit becomes blobs and links of the cache."""

    root: Path

    def create_repo(self, name: str, **_: Any) -> str:
        return f"hub:{name}"

    def create_commit(self, name: str, operations: list[Any], **_: Any) -> None:
        repository = self.root / f"models--{name.replace('/', '--')}"
        snapshot = repository / "snapshots" / REVISION
        for folder in (repository / "blobs", repository / "refs", snapshot):
            folder.mkdir(parents=True)
        (repository / "refs" / "main").write_text(REVISION)
        for number, each in enumerate(operations):
            (repository / "blobs" / f"b{number}").write_bytes(each.path_or_fileobj)
            (snapshot / each.path_in_repo).symlink_to(f"../../blobs/b{number}")


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(DiskHub, "root", tmp_path / "hub", raising=False)
    monkeypatch.setattr(huggingface_hub, "HfApi", DiskHub)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.chdir(tmp_path)
    return tmp_path / "hub"


def model_folder(path: Path) -> Path:
    """A folder of this version, with a manifest, of the golden model."""
    model = lightconv.load(GOLDEN / "end" / "pairs")
    old = ModelFolder(GOLDEN / "end" / "pairs")
    names = ("codes.txt", "pipeline.json", "vocab.txt")
    files: dict[str, bytes | Path] = {name: old.path / name for name in names}
    ModelFolder.write(path, model.model, files=files, tables=old.tables)
    return path


def test_a_pushed_model_gives_the_same_texts_and_digests(
    cache: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = model_folder(tmp_path / "mine")
    assert main(["push", str(folder), "user/mine", "--licence", "cc-by-4.0"]) == 0
    assert capsys.readouterr().out == "hub:user/mine\n"
    found = find_folder("user/mine")
    assert found.is_relative_to(cache) and (found / "config.json").is_symlink()
    kept = {path.name: digest(path) for path in folder.iterdir() if path.name != "README.md"}
    assert {name: digest(found / name) for name in kept} == kept
    card = huggingface_hub.ModelCard.load(found / "README.md").data
    assert card.license == "cc-by-4.0" and card.library_name == "lightconv"
    assert card.pipeline_tag == "translation" and "lightconv" in card.tags
    assert lightconv.load("user/mine").translate(LINES) == lightconv.load(folder).translate(LINES)


def test_a_damaged_cache_is_refused(cache: Path, tmp_path: Path) -> None:
    push(model_folder(tmp_path / "mine"), "user/mine")
    weights = (find_folder("user/mine") / "model.safetensors").resolve()
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    with pytest.raises(ValueError, match=r"SHA-256.*damaged"):
        lightconv.load("user/mine")


def test_a_link_out_of_the_cache_is_refused(cache: Path, tmp_path: Path) -> None:
    push(model_folder(tmp_path / "mine"), "user/mine")
    found = find_folder("user/mine")
    (tmp_path / "secret").write_text("{}")
    (found / "config.json").unlink()
    (found / "config.json").symlink_to(tmp_path / "secret")
    with pytest.raises(ValueError, match="leaves its folder"):
        lightconv.load("user/mine")
    blobs = found.parent.parent / "blobs"
    shutil.move(blobs, tmp_path / "elsewhere")
    blobs.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ValueError, match="leaves its folder"):
        inside(found, "vocab.txt")


def test_a_model_that_is_not_there_offline(cache: Path) -> None:
    with pytest.raises(ValueError, match=r"user/nothing is neither a folder nor"):
        lightconv.load("user/nothing")


@pytest.mark.parametrize(
    "name",
    [
        *("..", "../x", "a/..", "a/b/c", "/a/b", "a//b", "a/b.git", "a--b/c", "a/b\n", "-a/b"),
        *("é/b", "a/" + "b" * 100, "https://x/y", "a", "", "a/b\x1b[2J", "a/.b"),
    ],
)
def test_hostile_names_are_refused(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail = SimpleNamespace(side_effect=lambda *_, **__: pytest.fail("the hub was asked"))
    monkeypatch.setattr(huggingface_hub, "snapshot_download", fail.side_effect)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match="expected user/name"):
        check_name(name)
    with pytest.raises((ValueError, OSError)):
        lightconv.load(name)


@pytest.mark.parametrize("licence", ["MIT\nx: y", "", "a b", "-"])
def test_a_licence_is_one_word(licence: str) -> None:
    with pytest.raises(ValueError, match="licence"):
        push(GOLDEN / "end" / "pairs", "user/mine", licence=licence)
