"""How the tokens of a split lie on the disk; nothing here needs torch.

Each side has two files, both little-endian and with a header of 128 bytes:

    train.source.bin   the ids of all sentences one after the other, uint16 or uint32
    train.source.idx   where each sentence begins and the last one ends, uint64 [examples + 1]

No EOS is stored: batches add it.
"""

import hashlib
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lightconv.files import inside

# What an example is made of: a pair, or one text for language modelling.
PAIR = ("source", "target")
TEXT = ("text",)

VERSION = 1
SUFFIXES = (".bin", ".idx")
MAGICS = dict(zip(SUFFIXES, (b"LCTOKENS", b"LCOFFSET"), strict=True))
HEADER_BYTES = 128
# Magic, version, bytes of an item, examples, tokens, vocabulary, digests; a CRC-32 ends it.
_FIELDS = struct.Struct("<8sIIQQQ32s32s20x")
_CHECK = struct.Struct("<I")


@dataclass(frozen=True, kw_only=True)
class Header:
    """What a file says about itself, its side and its split."""

    suffix: str
    item: int
    examples: int
    tokens: int
    vocab: int
    # SHA-256 of what follows the header.
    payload: bytes
    # SHA-256 of all payload digests of the split: equal in files that belong together.
    split: bytes

    @property
    def items(self) -> int:
        """How many numbers follow the header."""
        return self.tokens if self.suffix == ".bin" else self.examples + 1

    @property
    def size(self) -> int:
        """How many bytes the file has."""
        return HEADER_BYTES + self.items * self.item

    def pack(self) -> bytes:
        """The header as it is written."""
        data = _FIELDS.pack(
            MAGICS[self.suffix],
            VERSION,
            self.item,
            self.examples,
            self.tokens,
            self.vocab,
            self.payload,
            self.split,
        )
        return data + _CHECK.pack(zlib.crc32(data))


def token_bytes(vocab: int) -> int:
    """How many bytes an id takes: two as long as the vocabulary allows."""
    return 2 if vocab <= 2**16 else 4


def file_name(split: str, side: str, suffix: str) -> str:
    """The name of one file of a split."""
    return f"{split}.{side}{suffix}"


def split_digest(payloads: Sequence[bytes]) -> bytes:
    """The digest of a split from those of its files, in the order of sides and suffixes."""
    return hashlib.sha256(b"".join(payloads)).digest()


def damaged(path: Path, found: str) -> ValueError:
    """The error for a file that cannot be used."""
    return ValueError(f"prepared data ({path}): {found}. Run `lightconv prepare` again")


def read_header(folder: Path, name: str) -> Header:
    """The header of a file, checked as far as that costs nothing: the size must be right."""
    path = inside(folder, name)
    with path.open("rb") as file:
        data = file.read(HEADER_BYTES)
    header = _unpack(path, data)
    size = path.stat().st_size
    if size != header.size:
        raise damaged(path, f"{size} bytes, expected {header.size} as its header says")
    return header


def _unpack(path: Path, data: bytes) -> Header:
    magic = MAGICS[path.suffix]
    if len(data) < HEADER_BYTES or not data.startswith(magic):
        raise damaged(path, f"begins with {data[:8]!r}, expected {magic!r} and a whole header")
    fields = _FIELDS.unpack(data[: _FIELDS.size])
    # Before the CRC: another version may check itself in another way.
    if fields[1] != VERSION:
        raise damaged(path, f"version {fields[1]} of the format, expected {VERSION}")
    if _CHECK.unpack(data[_FIELDS.size :])[0] != zlib.crc32(data[: _FIELDS.size]):
        raise damaged(path, "the header does not match its checksum, expected an intact one")
    header = Header(
        suffix=path.suffix,
        item=fields[2],
        examples=fields[3],
        tokens=fields[4],
        vocab=fields[5],
        payload=fields[6],
        split=fields[7],
    )
    expected = token_bytes(header.vocab) if path.suffix == ".bin" else 8
    if header.item != expected:
        raise damaged(path, f"numbers of {header.item} bytes, expected {expected}")
    return header
