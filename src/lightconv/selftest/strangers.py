"""R12: files from strangers that try to run code or to fill the memory."""

import io
import os
import pickle
import subprocess
import zipfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from lightconv.interop.pickles import read_pickle
from lightconv.models.folder import build, load
from lightconv.selftest.promise import Figures, expect
from lightconv.selftest.resume import model_config


class Call:
    """Pickled as a call."""

    def __init__(self, function: Any, *values: Any) -> None:
        self.call = (function, values)

    def __reduce__(self) -> Any:
        return self.call


def check_strangers(folder: Path, full: bool) -> Figures:
    """R12."""
    mark, path = folder / "mark", folder / "stranger.pt"
    hostile = dict(_hostile(mark))
    for name, data in hostile.items():
        path.write_bytes(data)
        expect(_refuses(read_pickle, path) and not mark.exists(), f"{name} was read")
    for name, content in (("pickled", data), ("headerless", b"\xff" * 8), ("linked", None)):
        build(model_config(12, 12)).save(folder / name)
        weights = folder / name / "model.safetensors"
        weights.unlink()
        weights.symlink_to("/etc/hostname") if content is None else weights.write_bytes(content)
        expect(_refuses(load, folder / name) and not mark.exists(), f"{name} weights were loaded")
    return {"files": len(hostile) + 3, "refused": len(hostile) + 3}


def _refuses(read: Callable[[Path], object], path: Path) -> bool:
    with suppress(ValueError):
        read(path)
        return False
    return True


def _hostile(mark: Path) -> Iterator[tuple[str, bytes]]:
    """Calls that torch.load would run, in all the formats of torch.save; a bare pickle is last."""
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
    bad, good = pickle.dumps(calls["os.system"], 4), pickle.dumps({"a": 1}, 2)
    nested = b"\x80\x02" + b"]" * 200_000 + b"a" * 199_999 + b"."
    bomb = {"x/data.pkl": good, "x/data/0": bytes(5 << 20)}
    yield "an archive of protocol 4", _archive({"x/data.pkl": bad})
    yield "a compressed archive", _archive(bomb, zipfile.ZIP_DEFLATED)
    yield "an entry outside the archive", _archive({"x/data.pkl": good, "x/../../evil": b"1"})
    yield "nested lists", _archive({"x/data.pkl": nested})
    yield "an empty file", b""
    yield "a bare pickle", bad


def _archive(entries: dict[str, bytes], how: int = zipfile.ZIP_STORED) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", how) as archive:
        for name, data in entries.items():
            archive.writestr(name, data)
    return file.getvalue()
