"""R12: files from strangers that would like to run code or to fill the memory."""

import io
import os
import pickle
import subprocess
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from lightconv.interop.pickles import read_pickle
from lightconv.models import Seq2Seq
from lightconv.models.folder import load
from lightconv.selftest.examples import small_config
from lightconv.selftest.promise import Figures, expect


class Call:
    """Pickled as a call."""

    def __init__(self, function: Any, *values: Any) -> None:
        self.call = (function, values)

    def __reduce__(self) -> Any:
        return self.call


def check_strangers(folder: Path, full: bool) -> Figures:
    """R12."""
    folder.mkdir(parents=True, exist_ok=True)
    mark, refused = folder / "mark", 0
    for name, data in _hostile(mark):
        path = folder / "stranger.pt"
        path.write_bytes(data)
        expect(_refuses(lambda path=path: read_pickle(path)), f"{name} was read")  # type: ignore
        expect(not mark.exists(), f"{name} has run code")
        refused += 1
    for name, spoil in _spoilt_folders(mark):
        model = folder / f"model-{refused}"
        Seq2Seq(small_config()).save(model)
        spoil(model)
        expect(_refuses(lambda model=model: load(model)), f"{name} was loaded")  # type: ignore
        expect(not mark.exists(), f"{name} has run code")
        refused += 1
    return {"files": refused, "refused": refused}


def _refuses(read: Callable[[], object]) -> bool:
    try:
        read()
    except ValueError:
        return True
    return False


def _hostile(mark: Path) -> Iterator[tuple[str, bytes]]:
    """What torch.load would obey, in all the ways torch.save can store it."""
    touch = f"touch {mark}"
    calls = {
        "os.system": Call(os.system, touch),
        "eval": Call(eval, f"__import__('os').system('{touch}')"),
        "exec": Call(exec, f"import os; os.system('{touch}')"),
        "getattr": Call(getattr, "a", "upper"),
        "Popen": Call(subprocess.Popen, ["touch", str(mark)]),
        "torch.load": Call(torch.load, "other.pt"),
        "bytearray of a terabyte": Call(bytearray, 10**12),
    }
    for name, call in calls.items():
        for zipped in (True, False):
            file = io.BytesIO()
            torch.save({"model": call}, file, _use_new_zipfile_serialization=zipped)
            yield f"{name}, {'archive' if zipped else 'legacy'}", file.getvalue()
    bad = pickle.dumps(calls["os.system"], protocol=4)
    yield "a bare pickle", bad
    yield "an archive of protocol 4", _archive({"x/data.pkl": bad})
    good = pickle.dumps({"a": 1}, protocol=2)
    bomb = {"x/data.pkl": good, "x/data/0": bytes(5 << 20)}
    yield "a compressed archive", _archive(bomb, zipfile.ZIP_DEFLATED)
    yield "an entry above the archive", _archive({"x/data.pkl": good, "x/../../evil": b"1"})
    yield (
        "nested lists",
        _archive({"x/data.pkl": b"\x80\x02" + b"]" * 200_000 + b"a" * 199_999 + b"."}),
    )
    yield "nothing", b""


def _archive(entries: dict[str, bytes], how: int = zipfile.ZIP_STORED) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", how) as archive:
        for name, data in entries.items():
            archive.writestr(name, data)
    return file.getvalue()


def _spoilt_folders(mark: Path) -> Iterator[tuple[str, Callable[[Path], object]]]:
    """Model folders that are not what they seem."""
    weights = "model.safetensors"
    bad = pickle.dumps(Call(os.system, f"touch {mark}"), protocol=4)

    def link(folder: Path) -> None:
        (folder / weights).unlink()
        (folder / weights).symlink_to("/etc/hostname")

    yield "a pickle as weights", lambda folder: (folder / weights).write_bytes(bad)
    yield "weights outside the folder", link
    yield "a header of gigabytes", lambda folder: (folder / weights).write_bytes(b"\xff" * 8)
    yield "no weights", lambda folder: (folder / weights).unlink()
