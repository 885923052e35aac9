"""A manifest: the size and SHA-256 of every file of a folder, so that damage is found."""

import hashlib
import json
from pathlib import Path
from typing import Any

from lightconv.config.text import LARGEST_FILE, LOADERS
from lightconv.files import inside, sync, write_file

MANIFEST_FILE = "manifest.json"
FORMAT = "lightconv manifest"
VERSION = 1


def write_manifest(folder: str | Path) -> None:
    """Writes manifest.json about the files that lie in a folder; hidden ones are not listed."""
    folder = Path(folder)
    paths = [
        path
        for path in sorted(folder.iterdir())
        if path.is_file() and path.name != MANIFEST_FILE and not path.name.startswith(".")
    ]
    files = {path.name: {"bytes": path.stat().st_size, "sha256": _digest(path)} for path in paths}
    text = json.dumps({"format": FORMAT, "version": VERSION, "files": files}, indent=2) + "\n"
    temporary = folder / f".{MANIFEST_FILE}.new"
    temporary.unlink(missing_ok=True)
    write_file(temporary, text.encode())
    temporary.replace(folder / MANIFEST_FILE)
    sync(folder)


def verify_manifest(folder: str | Path, *, quick: bool = False) -> None:
    """Raises ValueError naming the first file that is missing or not as it was.

    quick  compares sizes only
    """
    folder = Path(folder)
    for name, entry in read_manifest(folder).items():
        path = inside(folder, name)
        size = path.stat().st_size
        if size != entry["bytes"]:
            raise ValueError(f"{path}: {size} bytes, expected {entry['bytes']} by {MANIFEST_FILE}")
        if not quick:
            found = _digest(path)
            if found != entry["sha256"]:
                raise ValueError(
                    f"{path}: SHA-256 {found[:12]}..., expected {entry['sha256'][:12]}... by "
                    f"{MANIFEST_FILE}"
                )


def read_manifest(folder: str | Path) -> dict[str, dict[str, Any]]:
    """What manifest.json says of each file: bytes and sha256. It may come from a stranger."""
    path = inside(Path(folder), MANIFEST_FILE)
    if path.stat().st_size > LARGEST_FILE:
        raise ValueError(f"{path} is longer than {LARGEST_FILE} bytes, so it is no manifest")
    try:
        data = LOADERS[".json"](path.read_bytes().decode())
    except ValueError as error:
        raise ValueError(f"{path} is no manifest: {error}") from None
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise ValueError(f'{path} is no manifest, expected "format": "{FORMAT}"')
    if data.get("version") != VERSION or isinstance(data["version"], bool):
        raise ValueError(f"{path}: version {str(data.get('version'))[:20]}, expected {VERSION}")
    files = data.get("files")
    if not isinstance(files, dict) or not all(_is_entry(*item) for item in files.items()):
        raise ValueError(f"{path}: files must be a table of names with bytes and sha256")
    return files


def _is_entry(name: str, entry: Any) -> bool:
    return (
        Path(name).name == name
        and name.isprintable()
        and isinstance(entry, dict)
        and type(entry.get("bytes")) is int
        and isinstance(entry.get("sha256"), str)
    )


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
