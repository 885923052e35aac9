"""Models by name, `user/name`: fetched from a hub into its cache, and published there."""

import re
from pathlib import Path

from lightconv.files import MANIFEST_FILE, inside, read_manifest
from lightconv.models.folder import CARD_FILE, CONFIG_FILE, WEIGHTS_FILE, ModelFolder

# One word on each side of the slash; neither dots nor hyphens follow each other.
NAME = re.compile(r"\w+(?:[.-]\w+)*/\w+(?:[.-]\w+)*", re.ASCII)
LICENCE = re.compile(r"[a-z0-9]+(?:[.-][a-z0-9]+)*")
# Files of a model folder; others of a repository are not fetched.
FILES = ("*.json", "*.txt", "*.safetensors", CARD_FILE)
LONGEST = 96


def find_folder(name: str | Path, revision: str | None = None) -> Path:
    """The folder of a model: a path that exists, else `user/name` of the hub or of its cache.

    Without a network, or with HF_HUB_OFFLINE=1, the cache alone answers.
    """
    path = Path(name)
    if path.exists() or not isinstance(name, str) or not NAME.fullmatch(name):
        return path
    check_name(name)
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(name, revision=revision, allow_patterns=list(FILES)))
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        raise ValueError(
            f"{name} is neither a folder nor a model that the hub or its cache has "
            f"({type(error).__name__}). Check the name and the network"
        ) from error


def push(
    folder: str | Path, name: str, *, licence: str | None = None, private: bool = False
) -> str:
    """Publishes the verified files of a model folder as `user/name`; the address of its page."""
    check_name(name)
    if licence is not None and not LICENCE.fullmatch(licence):
        raise ValueError(
            f"licence {licence[:60]!r}, expected an identifier such as mit or cc-by-4.0"
        )
    found = ModelFolder(folder)
    found.verify()
    path = found.path
    if (path / MANIFEST_FILE).exists():
        names = {*read_manifest(path), MANIFEST_FILE}
    else:  # a folder of lightconv 0.1
        names = {each.name for form in FILES for each in path.glob(form)}
    files = {each: inside(path, each).read_bytes() for each in sorted(names - {CARD_FILE})}
    if missing := {CONFIG_FILE, WEIGHTS_FILE} - files.keys():
        raise ValueError(f"{path} has no {min(missing)}, expected a whole model folder")
    card = (
        inside(path, CARD_FILE).read_text(encoding="utf-8") if (path / CARD_FILE).exists() else ""
    )
    files[CARD_FILE] = _set_licence(card or "---\nlibrary_name: lightconv\n---\n", licence).encode()

    from huggingface_hub import CommitOperationAdd, HfApi

    api = HfApi()
    address = api.create_repo(name, exist_ok=True, private=private or None)
    additions = [CommitOperationAdd(each, data) for each, data in files.items()]
    api.create_commit(name, additions, commit_message="A model of lightconv")
    return str(address)


def check_name(name: str) -> None:
    if not NAME.fullmatch(name) or len(name) > LONGEST or name.endswith((".git", ".ipynb")):
        raise ValueError(f"{name[:100]!r} is not the name of a model, expected user/name")


def _set_licence(card: str, licence: str | None) -> str:
    """The card with this licence among its metadata."""
    if licence is None:
        return card
    if not card.startswith("---\n"):
        return f"---\nlibrary_name: lightconv\nlicense: {licence}\n---\n\n{card}"
    head, end, rest = card[4:].partition("\n---")
    lines = [line for line in head.split("\n") if not line.startswith("license:")]
    return "---\n" + "\n".join([*lines, f"license: {licence}"]) + end + rest
