"""Memory of large outputs, kept for the next call.

glibc returns every block over 32 MB to the system when it is freed, and the next one of that size
gets fresh pages, which must be zeroed: that costs more than the convolution. So large outputs on
the CPU come from a pool. A piece of memory is lent to one tensor and comes back when the last
tensor that reads it, or a view of it, is gone. Idle memory is bounded; the oldest piece goes first.
"""

import contextlib
import math
import mmap
import os
import weakref
from collections import deque

import torch
from torch import Tensor

from lightconv.device import machine_bytes

SMALLEST = 8 << 20  # bytes; malloc keeps smaller blocks by itself
_PAGE = 2 << 20  # sizes are rounded up to this, so that nearly equal shapes share memory
_SLACK = 1.25  # a piece serves requests down to its size divided by this


def _most_idle() -> int:
    """LIGHTCONV_KEEP_MB, or a sixteenth of the machine's memory and at most 1 GiB."""
    if not hasattr(mmap, "MAP_ANONYMOUS"):
        return 0
    setting = os.environ.get("LIGHTCONV_KEEP_MB")
    if setting is not None:
        if not setting.isdecimal():
            raise ValueError(
                f"LIGHTCONV_KEEP_MB={setting!r} must be a whole number of megabytes, 0 for none"
            )
        return int(setting) << 20
    return min(machine_bytes() // 16, 1 << 30)


class Pool:
    """Pieces of anonymous memory, at most `most_idle` bytes of them idle."""

    def __init__(self, most_idle: int | None = None) -> None:
        self._most_idle = most_idle
        # Finalisers put pieces here, in any thread and at any moment, even within `empty`; append
        # and pop of a deque need no lock, which such a finaliser could not wait for.
        self._idle: deque[mmap.mmap] = deque()

    @property
    def most_idle(self) -> int:
        """Largest number of idle bytes; larger requests are not pooled. Read when first needed."""
        if self._most_idle is None:
            self._most_idle = _most_idle()
        return self._most_idle

    def idle_bytes(self) -> int:
        return sum(len(piece) for piece in list(self._idle))

    def clear(self) -> None:
        """Returns idle memory to the system."""
        self._idle.clear()

    def empty(self, shape: torch.Size, dtype: torch.dtype) -> Tensor:
        """An uninitialised contiguous CPU tensor."""
        count = math.prod(shape)
        needed = count * dtype.itemsize
        if needed < SMALLEST or needed > self.most_idle:
            return torch.empty(shape, dtype=dtype)
        piece = self._take(needed)
        lease = memoryview(piece)
        # The storage holds the lease, so the lease dies with the last tensor that reads it.
        flat = torch.frombuffer(lease, dtype=dtype, count=count)
        weakref.finalize(lease, self._give_back, piece).atexit = False
        # Not a view of what frombuffer made: autograd would forbid changing that in place.
        strides = flat.view(shape).stride()
        return torch.empty(0, dtype=dtype).set_(flat.untyped_storage(), 0, shape, strides)

    def _take(self, needed: int) -> mmap.mmap:
        for _ in range(len(self._idle)):
            try:
                piece = self._idle.popleft()
            except IndexError:
                break
            if needed <= len(piece) <= needed * _SLACK + _PAGE:
                return piece
            self._idle.append(piece)
        size = -(-needed // _PAGE) * _PAGE
        piece = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        if hasattr(mmap, "MADV_HUGEPAGE"):
            # Rows of a tile lie a page apart; large pages save a walk through the page table for
            # each. A system without them raises, and the memory is as good.
            with contextlib.suppress(OSError):
                piece.madvise(mmap.MADV_HUGEPAGE)
        return piece

    def _give_back(self, piece: mmap.mmap) -> None:
        self._idle.append(piece)
        while self.idle_bytes() > self.most_idle:
            try:
                self._idle.popleft()  # unmapped when the last reference is gone
            except IndexError:
                break


POOL = Pool()
