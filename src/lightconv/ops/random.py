"""Random numbers of dropout and DropConnect: a function of (seed, element), on every device.

Nothing is drawn and stored. Element i of a tensor is kept or dropped by a hash of its flat index
and a 64-bit seed, so the backward pass recomputes the forward's mask, a resumed run repeats it, and
the C++ and Triton kernels can be compared with this formula bit for bit.
"""

import math

import torch
from torch import Tensor

_MASK32 = 0xFFFFFFFF
Seed = Tensor | int | None


def draw_seed(device: torch.device) -> Tensor:
    """A fresh int64 seed [] from torch's default generator of that device."""
    return torch.randint(0, 2**63 - 1, (), dtype=torch.int64, device=device)


def as_seed(seed: Seed, p: float, device: torch.device) -> Tensor | None:
    """The seed [] of an operator that drops with probability p; drawn if None, None if p is 0."""
    if p == 0.0:
        return None
    if seed is None:
        return draw_seed(device)
    if isinstance(seed, int):
        if not -(2**63) <= seed < 2**63:
            raise ValueError(f"seed must fit in 64 bits, signed, got {seed}")
        return torch.tensor(seed, dtype=torch.int64, device=device)
    if not isinstance(seed, Tensor):
        raise ValueError(f"seed must be an int or one int64 tensor, got {type(seed).__name__}")
    return seed


def _mix(h: Tensor) -> Tensor:
    # A published 32-bit finaliser with low bias ("lowbias32"), in int64 arithmetic modulo 2**32.
    h = h ^ (h >> 16)
    h = (h * 0x7FEB352D) & _MASK32
    h = h ^ (h >> 15)
    h = (h * 0x846CA68B) & _MASK32
    return h ^ (h >> 16)


def random_bits(seed: Tensor, index: Tensor) -> Tensor:
    """Uniform integers in [0, 2**32) as int64, one for each int64 index.

    Two rounds: the first mixes the low halves of index and seed, the second the high halves and the
    seed once more, so that two seeds, also neighbouring ones, give unrelated streams and not
    permuted copies of one.
    """
    low, high = seed & _MASK32, (seed >> 32) & _MASK32
    key = (high + ((low + 1) * 0x9E3779B9 & _MASK32)) & _MASK32
    h = _mix((index & _MASK32) ^ low)
    return _mix(((h + key) & _MASK32) ^ ((index >> 32) & _MASK32))


def drop_threshold(p: float) -> int:
    """Elements whose random bits are below this integer are dropped."""
    return min(math.floor(p * 2**32), _MASK32)


def drop_scale(
    seed: Tensor, shape: tuple[int, ...], p: float, dtype: torch.dtype = torch.float32
) -> Tensor:
    """Factors for a tensor of that shape: 0 with probability p, else 1 / (1 - p)."""
    index = torch.arange(math.prod(shape), device=seed.device, dtype=torch.int64)
    kept = random_bits(seed.reshape(()), index) >= drop_threshold(p)
    return (kept.to(dtype) / (1.0 - p)).reshape(shape)
