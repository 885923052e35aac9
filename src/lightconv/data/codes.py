"""Codes of byte pair encoding: which two symbols are merged, in the order of importance.

The file is subword-nmt's: a line `#version: 0.2`, then two symbols per line. Its version 0.1 and
the three columns of fastBPE are read too.
"""

import re
from collections.abc import Iterable
from heapq import heapify, heappop, heappush
from io import BytesIO
from itertools import pairwise
from pathlib import Path
from typing import Literal

from lightconv.data.text import lines_of

Version = Literal["0.1", "0.2"]
# How the last symbol of a word is told from others: a part of it (0.2), or one behind it (0.1).
END = "</w>"

# The files of a model folder: one for both sides, or one each.
SHARED_CODES = "codes.txt"
PAIR_CODES = ("codes.source.txt", "codes.target.txt")
# A hundred times the paper's largest.
LARGEST_CODES = 64 << 20

PAIR = re.compile(r"([^ ]+) ([^ ]+)")
FASTBPE = re.compile(r"([^ ]+) ([^ ]+) [0-9]+")
HEADER = re.compile(r"#version: *(0\.[12])(\.0)* *")


class Codes:
    """Merges by rank; the first is done first wherever it fits."""

    def __init__(self, merges: Iterable[tuple[str, str]], version: Version = "0.2") -> None:
        self.merges = tuple(merges)
        self.version = version
        # Of a merge listed twice the first counts.
        self._ranks = {pair: rank for rank, pair in reversed(list(enumerate(self.merges)))}

    def __len__(self) -> int:
        return len(self.merges)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Codes):
            return NotImplemented
        return (self.version, self.merges) == (other.version, other.merges)

    def __hash__(self) -> int:
        return hash((self.version, self.merges))

    def __reduce__(self) -> tuple[type["Codes"], tuple[object, ...]]:
        return Codes, (self.merges, self.version)

    def merge(self, symbols: list[str]) -> list[str]:
        """Symbols -> fewer, longer symbols with the same text.

        As long as there is a pair with a rank, all places of the pair with the lowest one are
        merged, from left to right. With a heap, since a "word" may be a page without spaces.
        """
        rank_of = self._ranks.get
        queue = [
            (rank, place)
            for place, pair in enumerate(pairwise(symbols))
            if (rank := rank_of(pair)) is not None
        ]
        if not queue:
            return symbols
        heapify(queue)
        count = len(symbols)
        # A symbol stands where its first character stood; "" is left where it took in another.
        merged = symbols.copy()
        following = list(range(1, count + 1))
        preceding = list(range(-1, count - 1))
        while queue:
            rank = queue[0][0]
            left, right = self.merges[rank]
            places = []
            while queue and queue[0][0] == rank:
                place = heappop(queue)[1]
                after = following[place]
                if after == count or merged[place] != left or merged[after] != right:
                    continue  # one of the two went into another merge
                merged[place], merged[after] = left + right, ""
                beyond = following[place] = following[after]
                if beyond < count:
                    preceding[beyond] = place
                places.append(place)
            # Only now: what has just been merged waits for its next turn.
            for place in places:
                for first in (preceding[place], place):
                    second = following[first] if first >= 0 else count
                    if second < count:
                        found = rank_of((merged[first], merged[second]))
                        if found is not None:
                            heappush(queue, (found, first))
        return [symbol for symbol in merged if symbol]

    def to_text(self) -> str:
        """What a file of codes holds."""
        pairs = "".join(f"{left} {right}\n" for left, right in self.merges)
        return f"#version: {self.version}\n{pairs}"

    @classmethod
    def load(cls, path: Path) -> "Codes":
        """Reads a file of codes, which may come from a stranger."""
        if path.stat().st_size > LARGEST_CODES:
            raise ValueError(
                f"{path} is longer than {LARGEST_CODES >> 20} MB, so it holds no codes"
            )
        lines = [line.strip("\r ") for line in lines_of(BytesIO(path.read_bytes()), path)]
        if header := HEADER.fullmatch(lines[0]):
            version, pattern, first = header[1], PAIR, 1
        elif lines[0].startswith("#version:"):
            raise ValueError(f"{path}: {lines[0][:40]!r}, expected #version: 0.2 or 0.1")
        elif FASTBPE.fullmatch(lines[0]):
            version, pattern, first = "0.2", FASTBPE, 0
        else:
            version, pattern, first = "0.1", PAIR, 0
        merges = []
        for number, line in enumerate(lines[first:], first + 1):
            pair = pattern.fullmatch(line)
            if pair is None:
                raise ValueError(
                    f"{path}, line {number}: {line[:80]!r}, expected two symbols of BPE codes"
                )
            merges.append((pair[1], pair[2]))
        return cls(merges, "0.1" if version == "0.1" else "0.2")
