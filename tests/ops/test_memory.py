"""The pool of large outputs: nothing is lent twice, what is free comes back, up to a bound."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from lightconv import ops
from lightconv.ops import library
from lightconv.ops.library import SMALLEST, Pool

LARGE = torch.Size([SMALLEST // 4])  # of float32, the smallest that is pooled


def large(pool: Pool, count: int = 1) -> torch.Tensor:
    return pool.empty(torch.Size([count, *LARGE]), torch.float32)


def test_memory_comes_back_when_its_last_reader_is_gone() -> None:
    pool = Pool(most_idle=1 << 30)
    first = large(pool)
    address = first.data_ptr()
    view = first[0, 10:20]
    del first
    assert pool.idle_bytes() == 0
    second = large(pool)
    assert second.data_ptr() != address
    del view
    assert pool.idle_bytes() >= SMALLEST
    assert large(pool).data_ptr() == address


def test_a_graph_is_a_reader() -> None:
    pool = Pool(most_idle=1 << 30)
    tensor = large(pool).fill_(2.0)
    x = torch.ones(1, requires_grad=True)
    product = (tensor * x).sum()
    del tensor  # saved for backward
    assert pool.idle_bytes() == 0
    large(pool).fill_(99.0)
    (grad,) = torch.autograd.grad(product, x)
    assert grad.item() == 2.0 * LARGE.numel()
    del product
    assert pool.idle_bytes() > 0


def test_small_and_huge_requests_are_not_pooled() -> None:
    pool = Pool(most_idle=4 * SMALLEST)
    for shape in (torch.Size([4]), torch.Size([2 * SMALLEST])):
        tensor = pool.empty(shape, torch.float32)
        assert tensor.shape == shape
        del tensor
        assert pool.idle_bytes() == 0


def test_what_lies_idle_is_bounded_and_the_oldest_goes_first() -> None:
    pool = Pool(most_idle=3 * SMALLEST)
    tensors = [large(pool) for _ in range(8)]
    addresses = [tensor.data_ptr() for tensor in tensors]
    while tensors:
        del tensors[0]
    assert pool.idle_bytes() == 3 * SMALLEST
    assert large(pool).data_ptr() in addresses[-3:]
    pool.clear()
    assert pool.idle_bytes() == 0


def test_a_piece_serves_smaller_requests_but_not_much_smaller_ones() -> None:
    pool = Pool(most_idle=1 << 30)
    piece = large(pool, 10)
    address = piece.data_ptr()
    del piece
    assert large(pool, 5).data_ptr() != address
    assert large(pool, 9).data_ptr() == address


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_tensors_are_like_any_other(dtype: torch.dtype) -> None:
    tensor = Pool(most_idle=1 << 30).empty(torch.Size([3, 1024, 2048]), dtype)
    assert tensor.dtype == dtype
    assert tensor.shape == (3, 1024, 2048)
    assert tensor.is_contiguous()
    assert not tensor._is_view()
    assert tensor.data_ptr() % 64 == 0


def test_an_output_can_be_changed_in_place() -> None:
    x = torch.randn(1, 2048, 1024, requires_grad=True)
    weight = torch.randn(16, 3)
    assert x.nbytes >= SMALLEST
    out = ops.lightconv(x, weight, 1)
    assert not out._is_view()
    out.mul_(2.0)
    (grad,) = torch.autograd.grad(out.sum(), x)
    taps = weight.sum(1).repeat_interleave(64)
    torch.testing.assert_close(grad[0, 1000], 2.0 * taps)


def test_operators_do_not_read_what_memory_held_before() -> None:
    torch.manual_seed(0)
    x = torch.randn(1, 2050, 1024, requires_grad=True)
    logits = torch.randn(1, 2050, 16, 70, requires_grad=True)
    grad = torch.randn_like(x)
    assert logits.nbytes >= SMALLEST

    def run() -> list[torch.Tensor]:
        out = ops.dynamicconv_softmax(x, logits, 35)
        return [out, *torch.autograd.grad(out, (x, logits), grad)]

    library.POOL.clear()
    first = [t.clone() for t in run()]
    spoiled = [library.POOL.empty(t.shape, t.dtype).fill_(torch.nan) for t in first]
    del spoiled
    assert library.POOL.idle_bytes() >= sum(t.nbytes for t in first)
    for again, before in zip(run(), first, strict=True):
        assert torch.equal(again, before)


def test_threads_never_share_a_piece() -> None:
    pool = Pool(most_idle=4 * SMALLEST)
    wrong = []

    def work(mark: float) -> None:
        for _ in range(30):
            tensor = large(pool)
            tensor[0, ::4096] = mark
            if not bool((tensor[0, ::4096] == mark).all()):
                wrong.append(mark)

    with ThreadPoolExecutor(6) as threads:
        list(threads.map(work, map(float, range(6))))
    assert not wrong
    assert pool.idle_bytes() <= 4 * SMALLEST


def test_the_environment_sets_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """When memory is first asked for."""
    pools = {setting: Pool() for setting in ("0", "64", "much")}
    for setting, pool in pools.items():
        monkeypatch.setenv("LIGHTCONV_KEEP_MB", setting)
        if setting.isdecimal():
            assert pool.most_idle == int(setting) << 20
        else:
            with pytest.raises(ValueError, match="LIGHTCONV_KEEP_MB='much' must be a whole number"):
                large(pool)
    monkeypatch.delenv("LIGHTCONV_KEEP_MB")
    assert 0 < Pool().most_idle <= 1 << 30
    assert pools["64"].most_idle == 64 << 20
