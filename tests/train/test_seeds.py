"""Seeds are a function of numbers, and nothing like each other."""

from itertools import product

import torch

from lightconv.train.optim import derive, set_seed


def test_seeds_differ_and_fit() -> None:
    seeds = {derive(*numbers) for numbers in product(range(5), range(20), range(9))}
    assert len(seeds) == 900
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert derive(1, 2) != derive(2, 1)
    assert derive(1) != derive(1, 0)
    # Written into no file, but a resumed run of a later version should repeat it.
    assert derive(1, 2, 3) == 6520558355739401531


def test_seeding_is_that_of_torch() -> None:
    set_seed(5, torch.device("cpu"))
    found = torch.rand(3)
    torch.manual_seed(5)
    assert torch.equal(found, torch.rand(3))
