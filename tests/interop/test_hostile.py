"""R12: files made to do harm: none runs anything, none grows, each is refused with a line."""

import argparse
import functools
import io
import os
import pickle
import random
import re
import resource
import subprocess
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from lightconv.interop.fairseq import read_model
from lightconv.interop.pickles import LEGACY_START
from tests.interop.writer import PAIR, arguments, make, state_of, write

Make = Callable[[Path], None]
MARKER = "LIGHTCONV_TEST_MARKER"
ENTRY = b"PK\x01\x02"  # of an archive's directory


class Call:
    """Pickled as a call."""

    def __init__(self, function: Any, *values: Any) -> None:
        self.call = (function, values)

    def __reduce__(self) -> Any:
        return self.call


def touch() -> str:
    return f"touch {os.environ[MARKER]}"


def system() -> Call:
    return Call(os.system, touch())


def checkpoint(**changes: Any) -> dict[str, Any]:
    args = argparse.Namespace(**arguments(PAIR))
    return {"args": args, "model": state_of(make(PAIR), "2019"), **changes}


def saved(make_one: Callable[[], Any], *, is_zip: bool = True) -> Make:
    return lambda path: torch.save(make_one(), path, _use_new_zipfile_serialization=is_zip)


def with_tensor(make_tensor: Callable[[], Any]) -> Make:
    """A checkpoint with one odd tensor."""

    def changed() -> dict[str, Any]:
        found = checkpoint()
        found["model"]["encoder.layers.0.fc1.weight"] = make_tensor()
        return found

    return saved(changed)


def archive(data: bytes, **entries: bytes) -> bytes:
    """A zip as of torch.save with this pickle."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as zipped:
        zipped.writestr("x/data.pkl", data)
        zipped.writestr("x/byteorder", "little")
        zipped.writestr("x/version", "3\n")
        for name, content in entries.items():
            zipped.writestr(f"x/{name}", content)
    return file.getvalue()


def raw(data: bytes) -> Make:
    return lambda path: path.write_bytes(data) and None


def zipped(data: bytes, **entries: bytes) -> Make:
    return raw(archive(data, **entries))


def pickled(protocol: int, wrap: Callable[[bytes], bytes]) -> Make:
    """os.system in a pickle of another kind."""
    dump = functools.partial(pickle.dumps, protocol=protocol)
    return lambda path: path.write_bytes(wrap(dump(system()))) and None


def rezipped(change: Callable[[zipfile.ZipFile, str, bytes], None]) -> Make:
    """A good checkpoint whose entries are written in another way."""

    def write_it(path: Path) -> None:
        write(make(PAIR), "v0.9", path)
        with (
            zipfile.ZipFile(io.BytesIO(path.read_bytes())) as old,
            zipfile.ZipFile(path, "w") as new,
        ):
            for name in old.namelist():
                change(new, name, old.read(name))

    return write_it


def deflate(new: zipfile.ZipFile, name: str, data: bytes) -> None:
    new.writestr(name, data, zipfile.ZIP_DEFLATED)


def deflate_bomb(new: zipfile.ZipFile, name: str, data: bytes) -> None:
    bomb = name.endswith("data/0")
    how = zipfile.ZIP_DEFLATED if bomb else zipfile.ZIP_STORED
    new.writestr(name, bytes(50 << 20) if bomb else data, how)


def climb(new: zipfile.ZipFile, name: str, data: bytes) -> None:
    new.writestr(name.replace("/data/0", "/../../../tmp/evil"), data)


def flatten(new: zipfile.ZipFile, name: str, data: bytes) -> None:
    new.writestr(name.rpartition("/")[2], data)


def twice(new: zipfile.ZipFile, name: str, data: bytes) -> None:
    new.writestr(name, data)
    if name.endswith("data.pkl"):
        new.writestr(name, pickle.dumps(system(), protocol=2))


def changed(change: Callable[[bytearray], Any], layout: str = "v0.9") -> Make:
    """A good file with some bytes changed in place."""

    def write_it(path: Path) -> None:
        write(make(PAIR), layout, path)
        content = bytearray(path.read_bytes())
        change(content)
        path.write_bytes(content)

    return write_it


def patched(offset: int, data: bytes) -> Make:
    """Some bytes of the last entry of an archive's directory replaced."""

    def change(content: bytearray) -> None:
        place = content.rindex(ENTRY) + offset
        content[place : place + len(data)] = data

    return changed(change)


def overlap(content: bytearray) -> None:
    """All storages of the archive become one and the same piece of the file."""
    _, _, first, *others = (found.start() + 42 for found in re.finditer(ENTRY, content))
    for offset in others:
        content[offset : offset + 4] = content[first : first + 4]


def truncated(layout: str, share: float) -> Make:
    def change(content: bytearray) -> None:
        del content[int(len(content) * share) :]

    return changed(change, layout)


def storage_lie(numbers: int, *more: None) -> bytes:
    """A pickle of one tensor that claims a storage of so many numbers."""

    class Liar(pickle._Pickler):  # type: ignore[name-defined, misc]
        def persistent_id(self, value: Any) -> Any:
            lie = ("storage", torch.FloatStorage, "0", "cpu", numbers, *more)
            return lie if value is LIE else None

    file = io.BytesIO()
    tensor = Call(torch._utils._rebuild_tensor_v2, LIE, 0, (numbers,), (1,), False, {})
    Liar(file, protocol=2).dump({"args": None, "model": {"x": tensor}})
    return file.getvalue()


LIE = object()


def legacy_lie(path: Path) -> None:
    body = storage_lie(10**12, None)  # this format has one more field
    parts = [1001, {"little_endian": True}]
    path.write_bytes(LEGACY_START + b"".join(pickle.dumps(p, protocol=2) for p in parts) + body)


def shared_numbers() -> dict[str, Any]:
    """Sixty layers that are one layer: the folder would be larger than the file."""
    found = checkpoint()
    model = found["model"]
    for name in list(model):
        if name.startswith("encoder.layers.0."):
            for place in range(2, 60):
                model[name.replace(".0.", f".{place}.", 1)] = model[name]
    found["args"].encoder_layers = 60
    found["args"].encoder_kernel_size_list = None
    return found


NAMES = r"names {}, which no checkpoint of fairseq needs"
SYSTEM = NAMES.format(r"posix\.system")
COMPRESSED = r"entry '.*' is compressed"
ODD_NAME = r"is not a name of torch\.save"
DAMAGED = r"is damaged"
NOTHING = r"is not a checkpoint"
VIEW = r"is a view with gaps or repetitions"
STORED = {"data/0": bytes(64)}


# Calls that a careless reader would make, and their names in the error.
CALLS: dict[str, tuple[Callable[[], Call], str]] = {
    "os.system": (system, r"posix\.system"),
    "eval": (lambda: Call(eval, f"__import__('os').system('{touch()}')"), r"\w+\.eval"),
    "exec": (lambda: Call(exec, f"import os; os.system('{touch()}')"), r"\w+\.exec"),
    "getattr": (lambda: Call(getattr, "a", "upper"), r"\w+\.getattr"),
    "subprocess": (lambda: Call(subprocess.Popen, ["touch", os.environ[MARKER]]), r"\w+\.Popen"),
    "torch.load": (lambda: Call(torch.load, "other.pt"), r"torch\.serialization\.load"),
    "torch.hub": (lambda: Call(torch.hub.load, "a/b", "c"), r"torch\.hub\.load"),
    "bytearray of a terabyte": (lambda: Call(bytearray, 10**12), r"\w+\.bytearray"),
}
HOSTILE: dict[str, tuple[Make, str]] = {
    **{
        name: (saved(lambda call=call: checkpoint(extra=call())), NAMES.format(shown))
        for name, (call, shown) in CALLS.items()
    },
    "os.system, legacy": (saved(lambda: checkpoint(extra=system()), is_zip=False), SYSTEM),
    "os.system as arguments": (saved(lambda: checkpoint(args=system())), SYSTEM),
    "protocol 4": (pickled(4, archive), r"STACK_GLOBAL in a pickle of torch\.save"),
    "bare pickle": (pickled(2, bytes), NOTHING),
    "name with spaces": (zipped(b"\x80\x02cos system\nx\n."), NAMES.format(r"os\.system x")),
    "class by extension code": (zipped(b"\x80\x02\x82\x01."), r"EXT1 in a pickle"),
    "old instance": (zipped(b"\x80\x02(S'x'\nios\nsystem\n."), NAMES.format(r"os\.system")),
    "deflated": (rezipped(deflate), COMPRESSED),
    "deflated bomb": (rezipped(deflate_bomb), COMPRESSED),
    "entry above the archive": (rezipped(climb), ODD_NAME),
    "entries without a folder": (rezipped(flatten), ODD_NAME),
    "entry twice": (rezipped(twice), r"names an entry twice"),
    "encrypted": (patched(8, b"\x01"), r"is encrypted"),
    "entries overlap": (changed(overlap), r"overlaps another one"),
    "size beyond the file": (patched(20, b"\xff\xff\xff\x7f" * 2), r"are longer than the file"),
    "directory lost": (truncated("v0.9", 0.9), DAMAGED),
    "half of an archive": (truncated("v0.9", 0.5), DAMAGED),
    "half of a legacy file": (truncated("2019", 0.5), DAMAGED),
    "legacy without its end": (truncated("2019", 0.99), DAMAGED),
    "legacy start only": (raw(LEGACY_START), DAMAGED),
    "archive without pickle": (zipped(b""), DAMAGED),
    "pickle cut": (zipped(b"\x80\x02}q\x00"), DAMAGED),
    "stack underflow": (zipped(b"\x80\x02a."), DAMAGED),
    "string longer than the file": (zipped(b"\x80\x02X\xff\xff\xff\x7fabc."), DAMAGED),
    "operation of an old protocol": (zipped(b"\x80\x02I1\n."), r"is not of torch\.save"),
    "memo unknown": (zipped(b"\x80\x02h\x09."), DAMAGED),
    "TorchScript": (
        zipped(b"\x80\x02}.", **{"constants.pkl": b"\x80\x02).", "code/a.py": b"0"}),
        r"an archive, but not of torch\.save",
    ),
    "empty": (raw(b""), NOTHING),
    "text": (raw(b"hello\n"), NOTHING),
    "gzip": (raw(b"\x1f\x8b\x08\x00" + bytes(100)), NOTHING),
    "zip of nothing": (raw(b"PK\x05\x06" + bytes(18)), NOTHING),
    "zip start only": (raw(b"PK\x03\x04" + bytes(50)), DAMAGED),
    "storage of a terabyte": (zipped(storage_lie(2**40), **STORED), DAMAGED),
    "storage longer than its entry": (zipped(storage_lie(1000), **STORED), DAMAGED),
    "storage missing": (zipped(storage_lie(16)), DAMAGED),
    "storage of a terabyte, legacy": (legacy_lie, r"is damaged: .*memory"),
    "view of one number": (with_tensor(lambda: torch.zeros(1).expand(10**6, 10**6)), VIEW),
    "view with overlaps": (with_tensor(lambda: torch.zeros(20).as_strided((12, 8), (1, 1))), VIEW),
    "sparse": (
        with_tensor(lambda: torch.eye(12, 8).to_sparse()),
        NAMES.format(r"torch\._utils\._rebuild_sparse_tensor"),
    ),
    "meta": (
        with_tensor(lambda: torch.empty(12, 8, device="meta")),
        NAMES.format(r"torch\._utils\._rebuild_meta_tensor_no_storage"),
    ),
    "complex": (with_tensor(lambda: torch.zeros(12, 8, dtype=torch.complex64)), r"complex64"),
    "numbers shared by layers": (saved(shared_numbers), r"they share their numbers"),
    "nesting": (zipped(b"\x80\x02" + b"]" * 200_000 + b"a" * 199_999 + b"."), r"holds no dict"),
    "folder": (lambda path: path.mkdir(), r"is not a file"),
    "pipe": (os.mkfifo, r"is not a file"),
    "class of the original": (  # the package beside the file would leave a mark
        zipped(b"\x80\x02cfairseq.meters\nAverageMeter\nX\x01\x00\x00\x00a\x85R."),
        r"holds no dict",
    ),
}


@pytest.fixture
def target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the file shall be. Beside it stands a package for those who would import it."""
    monkeypatch.setenv(MARKER, str(tmp_path / "marker"))
    for name in ("fairseq", "omegaconf"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text(f"import os; os.system({touch()!r})\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path / "checkpoint.pt"


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.filterwarnings("ignore")
def test_hostile_files_are_refused(name: str, target: Path) -> None:
    make_it, message = HOSTILE[name]
    make_it(target)
    before, start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    with pytest.raises(ValueError, match=message) as raised:
        read_model(target)
    assert str(target) in str(raised.value)
    assert time.process_time() - start < 2.0
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200 << 10  # 200 MB
    assert len(str(raised.value)) < 600
    assert "weights" not in str(raised.value).lower()  # torch advises to load without restrictions
    assert not Path(os.environ[MARKER]).exists()


@pytest.mark.parametrize(
    "limit, message", [("LARGEST_PICKLE", "a pickle of"), ("MOST_ENTRIES", "entries")]
)
def test_files_of_unusual_size_are_refused(
    limit: str, message: str, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(make(PAIR), "v0.9", target)
    monkeypatch.setattr(f"lightconv.interop.pickles.{limit}", 50)
    with pytest.raises(ValueError, match=message):
        read_model(target)


def test_what_nobody_could_write_out_is_not_written_out(target: Path) -> None:
    """10 ** 30 numbers in a file of kilobytes."""
    nested: Any = 1
    for _ in range(30):
        nested = [nested] * 10
    write(make(PAIR), "v0.9", target, encoder_kernel_size_list=nested)
    start = time.process_time()
    assert read_model(target).model.config == PAIR  # by the shapes of its tensors
    assert time.process_time() - start < 2.0


@pytest.mark.parametrize("layout", ["2019", "v0.12"])
@pytest.mark.filterwarnings("ignore")
def test_mutated_files_are_errors_or_models(layout: str, target: Path) -> None:
    write(make(PAIR), layout, target)
    good = target.read_bytes()
    # Where the structure is: in front of a legacy file, at both ends of an archive.
    places = (
        range(4000) if layout == "2019" else [*range(4000), *range(len(good) - 4000, len(good))]
    )
    draw = random.Random(0)
    for _ in range(150):
        data = bytearray(good)
        for _ in range(draw.randint(1, 3)):
            data[draw.choice(places)] = draw.randrange(256)
        target.write_bytes(data)
        try:
            read_model(target)
        except ValueError as error:
            assert len(str(error)) < 600
    assert not Path(os.environ[MARKER]).exists()
