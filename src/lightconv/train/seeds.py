"""Randomness is derived, not carried: a function of (seed, step, batch), so a resume repeats it."""

import hashlib
import struct

import torch


def derive(*numbers: int) -> int:
    """A seed of 63 bits from whole numbers; different ones give unrelated seeds."""
    packed = struct.pack(f"<{len(numbers)}q", *numbers)
    digest = hashlib.blake2b(packed, digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def set_seed(seed: int, device: torch.device) -> None:
    """Seeds what models draw from: torch's generators of the CPU and of `device`."""
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        torch.cuda.manual_seed(seed)
