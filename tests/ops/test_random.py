"""DropConnect's hash: its definition in plain integers, and how random it looks."""

import math

import pytest
import torch
from torch import Tensor

from lightconv.ops.check import as_seed
from lightconv.ops.reference import drop_scale, drop_threshold, random_bits

COUNT = 1 << 18
SEEDS = (0, 1, 12345, -1, 2**32, 0x0123456789ABCDEF)
every_seed = pytest.mark.parametrize("seed", SEEDS)
every_distance = pytest.mark.parametrize("distance", [1, 2, 1000, 2**31, 2**32, 2**40, 2**32 + 1])


def bits(seed: int, first: int = 0, step: int = 1) -> Tensor:
    index = first + step * torch.arange(COUNT, dtype=torch.int64)
    return random_bits(torch.tensor(seed), index)


def uniform(seed: int, first: int = 0, step: int = 1) -> Tensor:
    """In [-sqrt(3), sqrt(3)): mean 0, variance 1."""
    return (bits(seed, first, step).double() / 2**32 - 0.5) * math.sqrt(12)


def mix(h: int) -> int:
    h ^= h >> 16
    h = h * 0x7FEB352D % 2**32
    h ^= h >> 15
    h = h * 0x846CA68B % 2**32
    return h ^ h >> 16


def defined(seed: int, index: int) -> int:
    """The hash in Python's integers: low halves, then high halves and the seed once more."""
    seed, index = seed % 2**64, index % 2**64
    low = seed % 2**32
    key = (seed >> 32) + (low + 1) * 0x9E3779B9
    return mix((mix(index % 2**32 ^ low) + key) % 2**32 ^ index >> 32)


@every_seed
def test_definition(seed: int) -> None:
    index = [0, 1, 2, 1000, 2**31, 2**32 - 1, 2**32, 2**32 + 1, 5 * 2**32 + 7, 2**62]
    found = random_bits(torch.tensor(seed), torch.tensor(index))
    assert found.tolist() == [defined(seed, i) for i in index]


@pytest.mark.parametrize(
    ("seed", "index", "value"),
    [
        (0, 0, 0x01FCE552),
        (0, 1, 0xB21C8E52),
        (-1, 12345, 0x21A4F23E),
        (0x0123456789ABCDEF, 2**32 + 3, 0xB52D967F),
    ],
)
def test_values_never_change(seed: int, index: int, value: int) -> None:
    """A resumed run depends on these."""
    assert random_bits(torch.tensor(seed), torch.tensor(index)).item() == value
    assert defined(seed, index) == value


@every_seed
def test_every_bit_is_balanced(seed: int) -> None:
    drawn = bits(seed)
    assert drawn.min() >= 0
    assert drawn.max() < 2**32
    share = torch.stack([(drawn >> bit & 1).double().mean() for bit in range(32)])
    assert ((share - 0.5).abs() < 5 * 0.5 / COUNT**0.5).all()


@pytest.mark.parametrize("shift", [0, 8, 16, 24])
@every_seed
def test_every_byte_is_uniform(seed: int, shift: int) -> None:
    """Chi-square over 256 bins: mean 255, deviation sqrt(510)."""
    counts = torch.bincount(bits(seed) >> shift & 0xFF, minlength=256).double()
    expected = COUNT / 256
    chi_square = ((counts - expected).square() / expected).sum()
    assert abs(chi_square - 255) < 5 * math.sqrt(510)


@every_distance
@every_seed
def test_neighbouring_elements_and_seeds_are_unrelated(seed: int, distance: int) -> None:
    for other in (uniform(seed, first=distance), uniform(seed + distance)):
        assert abs((uniform(seed) * other).mean()) < 5 / COUNT**0.5


@every_distance
def test_seeds_do_not_permute_one_stream(distance: int) -> None:
    """Two seeds share no more values than chance gives them."""
    shared = torch.isin(bits(12345), bits(12345 + distance)).double().mean()
    assert shared < 10 * COUNT / 2**32


@pytest.mark.parametrize("step", [2, 7, 64, 31 * 16])
@every_seed
def test_strided_elements_are_uniform(seed: int, step: int) -> None:
    """One tap of every position, one head of every position."""
    drawn = uniform(seed, step=step)
    assert abs(drawn.mean()) < 5 / COUNT**0.5
    assert abs(drawn.square().mean() - 1) < 5 * math.sqrt(0.8 / COUNT)


@pytest.mark.parametrize("p", [0.1, 0.3, 0.5])
@every_seed
def test_keep_rate(seed: int, p: float) -> None:
    scale = drop_scale(torch.tensor(seed), (COUNT // 8, 8), p, torch.float64)
    kept = (scale > 0).double()
    assert abs(kept.mean() - (1 - p)) < 5 * math.sqrt(p * (1 - p) / COUNT)
    assert scale.unique().tolist() == [0.0, 1.0 / (1.0 - p)]
    together = ((kept - kept.mean()) * (kept - kept.mean()).roll(1, 0)).mean()
    assert abs(together) < 5 * p * (1 - p) / COUNT**0.5


def test_shape_is_only_a_view() -> None:
    """Element i is the same in every shape, so packed and padded layouts can be compared."""
    flat = drop_scale(torch.tensor(9), (24,), 0.5)
    assert torch.equal(drop_scale(torch.tensor([9]), (2, 3, 4), 0.5).flatten(), flat)
    assert drop_scale(torch.tensor(9), (2, 0, 4), 0.5).shape == (2, 0, 4)


def test_thresholds() -> None:
    assert [drop_threshold(p) for p in (0.0, 0.25, 0.5)] == [0, 2**30, 2**31]
    assert drop_threshold(math.nextafter(1.0, 0.0)) == 2**32 - 1


def test_drawn_seeds() -> None:
    torch.manual_seed(0)
    seeds = [as_seed(None, 0.5, torch.device("cpu")) for _ in range(100)]
    assert all(seed.dtype == torch.int64 and seed.shape == () for seed in seeds)
    assert len({seed.item() for seed in seeds}) == 100
    assert max(seed.item() for seed in seeds) > 2**62
    torch.manual_seed(0)
    assert as_seed(None, 0.5, torch.device("cpu")) == seeds[0]
