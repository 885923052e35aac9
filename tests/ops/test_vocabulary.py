"""The chunked loss against torch's cross entropy, the best words against sorting in Python."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from lightconv import ops
from lightconv.ops.vocabulary import chunk_of, linear_cross_entropy, topk


def inputs(n: int, D: int, V: int, dtype: torch.dtype = torch.float64) -> list[torch.Tensor]:
    torch.manual_seed(n + V)
    x, weight = (torch.randn(rows, D, dtype=torch.float64) for rows in (n, V))
    target = torch.randint(V, (n,))
    return [x.to(dtype).requires_grad_(), weight.to(dtype).requires_grad_(), target]


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("chunk", [1, 3, 7, 1024])
@pytest.mark.parametrize("n", [0, 1, 7, 20])
def test_equals_cross_entropy(n: int, chunk: int, smoothing: float) -> None:
    x, weight, target = inputs(n, 5, 11)
    loss, nll = linear_cross_entropy(x, weight, target, smoothing=smoothing, chunk=chunk)
    logits = x @ weight.t()
    wanted = F.cross_entropy(logits, target, reduction="sum", label_smoothing=smoothing)
    torch.testing.assert_close(loss, wanted)
    torch.testing.assert_close(nll, F.cross_entropy(logits, target, reduction="sum"))
    assert not nll.requires_grad
    with torch.no_grad():
        assert not linear_cross_entropy(x, weight, target, chunk=chunk)[0].requires_grad
    found, expected = (torch.autograd.grad(3.0 * y, (x, weight)) for y in (loss, wanted))
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("chunk", [3, 1024])
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
def test_two_matrices_are_one(dtype: torch.dtype, chunk: int) -> None:
    """Those of common words and of classes, in the head of an adaptive softmax."""
    x, weight, target = inputs(20, 5, 11, dtype)
    target[:2] = torch.tensor([8, 10])
    given = [x, *(part.detach().requires_grad_() for part in weight.split([8, 3]))]
    loss, nll = linear_cross_entropy(*given[:2], target, more=given[2], smoothing=0.1, chunk=chunk)
    one, plain = linear_cross_entropy(x, weight, target, smoothing=0.1, chunk=chunk)
    torch.testing.assert_close((loss, nll), (one, plain))
    found = torch.autograd.grad(loss, given)
    of_x, of_weight = torch.autograd.grad(one, (x, weight))
    torch.testing.assert_close(torch.cat(found[1:]), of_weight)
    # The gradient of x is rounded once more.
    assert (found[0] - of_x).norm() <= torch.finfo(dtype).eps * of_x.norm()


def test_formula_by_hand() -> None:
    """Two words, one position: p = 1 / (1 + e^-2) for the first."""
    x, weight = torch.tensor([[1.0]]), torch.tensor([[1.0], [-1.0]])
    loss, nll = linear_cross_entropy(x, weight, torch.tensor([0]), smoothing=0.2)
    first, second = 0.126928, 2.126928  # -log p of the two words
    assert nll.item() == pytest.approx(first, abs=1e-5)
    assert loss.item() == pytest.approx(0.8 * first + 0.1 * (first + second), abs=1e-5)


@pytest.mark.parametrize("wanted", [0, 1])
def test_one_gradient_alone(wanted: int) -> None:
    *given, target = inputs(6, 4, 9)
    given[1 - wanted].requires_grad_(False)
    loss, _ = linear_cross_entropy(*given, target, chunk=4)
    exact = F.cross_entropy(given[0] @ given[1].t(), target, reduction="sum")
    found, expected = (torch.autograd.grad(y, given[wanted]) for y in (loss, exact))
    torch.testing.assert_close(found, expected)


def test_under_autocast_sums_stay_wide() -> None:
    x, weight, target = inputs(40, 16, 50, torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        loss, _ = linear_cross_entropy(x, weight, target, smoothing=0.1, chunk=16)
    assert loss.dtype == torch.float32
    exact = F.cross_entropy(x @ weight.t(), target, reduction="sum", label_smoothing=0.1)
    assert abs(loss.item() / exact.item() - 1.0) < 0.02
    found, wanted = (torch.autograd.grad(y, (x, weight)) for y in (loss, exact))
    for a, b in zip(found, wanted, strict=True):
        assert a.dtype == torch.float32
        assert (a - b).norm() < 0.03 * b.norm()


@pytest.mark.parametrize(
    "change, message",
    [
        ({"target": torch.zeros(5, dtype=torch.int64)}, r"target must be \[6\] like x, got \[5\]"),
        ({"weight": torch.zeros(9, 5)}, r"weight \[V, D\], got \[6, 4\] and \[9, 5\]"),
        ({"more": torch.zeros(2, 5)}, r"more must be \[C, 4\] like weight, got \[2, 5\]"),
        ({"smoothing": 1.0}, r"smoothing=1.0 must be in \[0, 1\)"),
        ({"chunk": 0}, "chunk=0 must be at least 1"),
    ],
)
def test_bad_input(change: dict[str, object], message: str) -> None:
    x, weight, target = inputs(6, 4, 9)
    given = {"x": x, "weight": weight, "target": target, **change}
    with pytest.raises(ValueError, match=message):
        linear_cross_entropy(**given)


def test_large_vocabularies_have_small_chunks() -> None:
    assert [chunk_of(V) for V in (1, 32768, 65536, 633_471)] == [1024, 1024, 512, 52]
    assert chunk_of(10**12) == 1


def test_numbers_beyond_exp_are_no_trouble() -> None:
    """Scores of a thousand: exp alone would be infinite."""
    x, weight = torch.tensor([[1.0]], requires_grad=True), torch.tensor([[1000.0], [999.0]])
    loss, _ = linear_cross_entropy(x, weight, torch.tensor([1]))
    assert loss.item() == pytest.approx(1.3132617, abs=1e-4)
    (found,) = torch.autograd.grad(loss, x)
    assert found.item() == pytest.approx(1000.0 * 0.7310586 - 999.0 * 0.7310586, abs=1e-2)


PEAK = """
import json, sys, torch
from pathlib import Path
from lightconv.models import AdaptiveConfig
from lightconv.models.embedding import AdaptiveEmbedding, TokenEmbedding

def status(field):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(field))

n, D, V, cutoffs = json.loads(sys.argv[1])
bands = AdaptiveConfig(cutoffs=tuple(cutoffs)) if cutoffs else None
embedding = AdaptiveEmbedding(V, D, 1, bands) if bands else TokenEmbedding(V, D, 1)
output = embedding.output(tied=False)
x, target = torch.randn(n, D, requires_grad=True), torch.randint(V, (n,))
smoothing = 0.0 if cutoffs else 0.1
output.loss(x[:8], target[:8], smoothing)[0].backward()
before = status("VmRSS")
Path("/proc/self/clear_refs").write_text("5")
output.loss(x, target, smoothing)[0].backward()
print(json.dumps([status("VmHWM") - before, sum(p.nbytes for p in output.parameters())]))
"""
CHUNK = 4 * 1024 * 32768  # bytes of the logits of 1,024 positions at V = 32,768


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="no /proc to measure with")
@pytest.mark.parametrize(
    "n, V, cutoffs",
    [(4096, 32768, []), (1024, 131_072, []), (4096, 32768, [24_000, 28_000])],
    ids=["plain", "large", "adaptive"],
)
def test_memory_is_that_of_one_chunk(n: int, V: int, cutoffs: list[int]) -> None:
    """The real peak of forward and backward, without the gradients that are its result."""
    command = [sys.executable, "-c", PEAK, json.dumps([n, 32, V, cutoffs])]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    peak, matrices = json.loads(done.stdout)
    # A gradient exists up to three times: summed over chunks, scaled, added to that of before.
    assert peak - 3 * matrices < 1.4 * CHUNK
    assert peak < 2 * CHUNK


# --- the most probable words ----------------------------------------------------------------------


def by_sorting(row: list[float], k: int) -> list[int]:
    return sorted(range(len(row)), key=lambda i: (-row[i], i))[:k]


@settings(max_examples=200, deadline=None)
@given(
    st.integers(1, 9).flatmap(
        lambda V: st.lists(
            st.lists(st.sampled_from([-math.inf, -1.0, 0.0, 0.5, 3.0]), min_size=V, max_size=V),
            max_size=4,
        ).map(lambda rows: torch.tensor(rows).view(-1, V))
    ),
    st.integers(0, 9),
)
def test_equal_values_come_in_order(x: torch.Tensor, k: int) -> None:
    k = min(k, x.shape[1])
    values, indices = topk(x, k)
    assert values.shape == indices.shape == (len(x), k)
    assert indices.tolist() == [by_sorting(row, k) for row in x.tolist()]
    assert torch.equal(values, x.gather(1, indices))


# Shorter than the strands that the kernel cuts a row into, as long, and longer with a rest.
@pytest.mark.parametrize("V, k", [(40, 1), (40, 4), (40, 40), (64, 9), (1003, 9), (1003, 100)])
@pytest.mark.parametrize(
    "dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str
)
def test_logprobs(dtype: torch.dtype, V: int, k: int) -> None:
    generator = torch.Generator().manual_seed(k)
    # So coarse that narrow numbers are often equal.
    logits = (8 * torch.randn(7, V, generator=generator)).round().div(4).to(dtype)
    values, words = ops.topk_logprobs(logits, k)
    assert values.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    assert words.dtype == torch.int64
    for row, found, chosen in zip(logits.tolist(), values.tolist(), words.tolist(), strict=True):
        norm = math.log(sum(math.exp(x) for x in row))
        assert chosen == by_sorting(row, k)
        assert found == pytest.approx([row[i] - norm for i in chosen], abs=1e-5)


def test_large_logits_do_not_overflow() -> None:
    values, words = ops.topk_logprobs(torch.tensor([[1e4, 1e4, -1e4, -math.inf]]), 3)
    assert words.tolist() == [[0, 1, 2]]
    assert values[0].tolist() == pytest.approx([-math.log(2), -math.log(2), -2e4], rel=1e-4)


@pytest.mark.parametrize("few", [0, 3])
def test_rows_of_almost_nothing(few: int) -> None:
    logits = torch.full((1, 500), -math.inf)
    logits[0, 400 : 401 + few] = 1.0
    values, words = ops.topk_logprobs(logits, 6)
    assert words[0, : 1 + few].tolist() == list(range(400, 401 + few))
    assert words[0, 1 + few :].tolist() == list(range(5 - few))
    assert values[0].tolist() == pytest.approx(
        [-math.log(1 + few)] * (1 + few) + [-math.inf] * (5 - few)
    )


@pytest.mark.parametrize("place", [0, 70, 499])
def test_what_is_no_number_is_seen(place: int) -> None:
    logits = torch.zeros(1, 500)
    logits[0, place] = math.nan
    values, words = ops.topk_logprobs(logits, 9)
    assert values.isnan().all()
    assert ((words >= 0) & (words < 500)).all()


def test_topk_leaves_its_input_alone() -> None:
    x = torch.zeros(3, 6)
    topk(x, 2)[0].add_(1.0)
    assert torch.equal(x, torch.zeros(3, 6))


@pytest.mark.parametrize("rows, k", [(0, 2), (3, 0), (3, -1), (3, 7)])
def test_topk_of_nothing_and_of_more_than_there_are(rows: int, k: int) -> None:
    if 0 <= k <= 6:
        values, words = ops.topk_logprobs(torch.zeros(rows, 6), k)
        assert values.shape == words.shape == (rows, k)
    else:
        with pytest.raises(ValueError, match=rf"k={k} must be in \[0, 6\]"):
            topk(torch.zeros(rows, 6), k)
