"""Which Chinese-English pairs are learned from: the rules of Hassan et al. (2018)."""

import re
import struct
from hashlib import blake2b

from lightconv.data.corpus import Example

_HAN = "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
_CHINESE = re.compile(f"[{_HAN}]")
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")
# Some owners put spaces between words; others do not, and neither does what is translated later.
_JOINED = f"[{_HAN}\u3000-\u303f\uff01-\uff60]"
_SPACE = re.compile(f"(?<={_JOINED}) +| +(?={_JOINED})")


class Seen:
    """Texts that came before, in 2**bits bits whatever their number (a Bloom filter).

    With 30 bits, 128 MB, fewer than one in a million of 25 million texts is taken for another.
    """

    _PLACES = struct.Struct("<8Q")

    def __init__(self, bits: int = 30) -> None:
        self._bits = bytearray(1 << (bits - 3))
        self._mask = (1 << bits) - 1

    def add(self, text: str) -> bool:
        """Whether the text is new; from now on it is not."""
        digest = blake2b(text.encode(), digest_size=self._PLACES.size).digest()
        new = False
        for place in self._PLACES.unpack(digest):
            byte, bit = divmod(place & self._mask, 8)
            new |= not self._bits[byte] >> bit & 1
            self._bits[byte] |= 1 << bit
        return new


class Cleaner:
    """Pairs in turn: put right, or None for one to leave out."""

    def __init__(self) -> None:
        self._seen = Seen()

    def __call__(self, chinese: str, english: str) -> Example | None:
        """Chinese on its side alone, and no pair twice; lengths are the business of the filters."""
        chinese = _SPACE.sub("", _CONTROL.sub("", chinese)).strip()
        english = _CONTROL.sub("", english).strip()
        if not _CHINESE.search(chinese) or _CHINESE.search(english):
            return None
        return (chinese, english) if self._seen.add(f"{chinese}\n{english}") else None
