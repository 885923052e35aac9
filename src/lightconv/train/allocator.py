"""Memory that training keeps between updates, instead of returning it and asking for it again.

glibc gives large freed blocks back to the system, which zeroes the pages that it hands out next:
a fifth of a training step on a processor. Told to keep them, it would hold on to the most a process
ever used; so whoever trains asks it to give back what is free whenever the process has grown past a
bound. Other C libraries are left as they are.
"""

import ctypes
import os
import platform
from pathlib import Path

_TRIM_THRESHOLD, _MMAP_MAX = -1, -4  # mallopt's names for them
_STATUS = Path("/proc/self/statm")


class Allocator:
    """Keeps freed memory until the process is larger than `most` bytes."""

    def __init__(self, most: int | None = None) -> None:
        self.most = most or machine_bytes() // 2
        self._libc = _glibc()

    def keep(self) -> bool:
        """Keeps freed memory from now on; False where that cannot be arranged."""
        if self._libc is None:
            return False
        kept = self._libc.mallopt(_MMAP_MAX, 0) and self._libc.mallopt(_TRIM_THRESHOLD, 2**31 - 1)
        return bool(kept)

    def release(self) -> bool:
        """Gives back what is free if the process has outgrown its bound; says whether it had."""
        if self._libc is None or resident_bytes() <= self.most:
            return False
        self._libc.malloc_trim(0)
        return True


def machine_bytes() -> int:
    """The machine's memory."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def resident_bytes() -> int:
    """What this process holds of it, 0 where the system does not say."""
    try:
        return int(_STATUS.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


def _glibc() -> ctypes.CDLL | None:
    if platform.libc_ver()[0] != "glibc":
        return None
    return ctypes.CDLL(None)
