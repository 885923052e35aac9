"""Dilation, states, gates, bias, SiLU, residual, rows of a window: against sums written out."""

import itertools
import random
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from lightconv import ops
from lightconv.ops.check import accumulate_dtype
from lightconv.ops.reference import drop_scale

WIDE = torch.float64


def noise(*shape: int, dtype: torch.dtype = WIDE) -> Tensor:
    return torch.randn(*shape, dtype=WIDE).to(dtype)


def by_sums(
    x: Tensor, weight: Tensor, left: int, options: dict[str, Any], bounds: list[int] | None
) -> Tensor:
    """The definition, a tap at a time: x [B, T, D], weight [B, T, H, K] or [H, K] -> [B, T, D]."""
    d, state = options.get("dilation", 1), options.get("initial_state")
    inputs = x * options["gate_in"] if "gate_in" in options else x
    B, T, D = x.shape
    H, K = weight.shape[-2:]
    weight = weight.expand(B, T, H, K)
    if options.get("dropconnect"):
        weight = weight * drop_scale(torch.tensor(options["seed"]), (B, T, H, K), 0.4, x.dtype)
    weight = weight.repeat_interleave(D // H, 2)
    rows = []
    for b in range(B):
        spans = itertools.pairwise([0, T] if bounds is None else bounds)
        for s, (begin, end) in enumerate(spans):
            past = None if state is None else state[b if bounds is None else s]
            for t in range(begin, end):
                total = 0 * x[b, t]
                for j in range(K):
                    at = t + (j - left) * d - begin
                    if 0 <= at < end - begin:
                        total = total + weight[b, t, :, j] * inputs[b, begin + at]
                    elif at < 0 and past is not None:
                        total = total + weight[b, t, :, j] * past[at + len(past)]
                rows.append(total)
    out = torch.stack(rows).view(B, T, D) if rows else x
    if "bias" in options:
        out = out + options["bias"]
    if options.get("activation"):
        out = out * torch.sigmoid(out)
    if "gate_out" in options:
        out = out * options["gate_out"]
    return out + x if options.get("residual") else out


def draw(rng: random.Random, dtype: torch.dtype = WIDE) -> tuple[Any, ...]:
    """A random case: operator, x, weight, left, options, boundaries."""
    torch.manual_seed(rng.randrange(2**31))
    packed = rng.random() < 0.4
    B, T, H = 1 if packed else rng.randint(1, 3), rng.randint(0, 14), rng.choice([1, 2, 3, 20])
    D, d = H * rng.choice([1, 2, 5, 16, 33]), rng.choice([1, 1, 2, 3, 7])
    K = rng.choice([1, 2, 3, 4, 5, rng.randint(6, 40)])
    name = rng.choice(["dynamicconv", "lightconv", "dynamicconv_softmax", "lightconv_softmax"])
    shape = (B, T, H, K) if name.startswith("dynamic") else (H, K)
    weight = noise(*shape, dtype=rng.choice([dtype, accumulate_dtype(dtype)]))
    bounds = sorted([0, T, *(rng.randint(0, T) for _ in range(3))]) if packed else None
    S = len(bounds) - 1 if bounds else B
    causal = rng.random() < 0.7
    options: dict[str, Any] = {"dilation": d}
    candidates: dict[str, Any] = {
        "bias": noise(D, dtype=dtype),
        "activation": "silu",
        "residual": True,
        "gate_in": noise(B, T, D, dtype=dtype),
        "gate_out": noise(B, T, D, dtype=dtype),
    }
    if causal:
        candidates["initial_state"] = noise(S, (K - 1) * d, D, dtype=dtype)
    options |= {key: value for key, value in candidates.items() if rng.random() < 0.5}
    if rng.random() < 0.3:
        options |= {"dropconnect": 0.4, "seed": rng.randint(-(2**63), 2**63 - 1)}
    left = K - 1 if causal else rng.randint(0, K + 1)
    return name, noise(B, T, D, dtype=dtype), weight, left, options, bounds


# Share of the largest result that output and gradients may be off by.
SHARES = {WIDE: 1e-10, torch.float32: 1e-5, torch.float16: 1e-2, torch.bfloat16: 6e-2}


def check(seed: int) -> None:
    """An operator of any dtype against the sums in float64, with all gradients."""
    rng = random.Random(seed)
    dtype = rng.choice([WIDE, WIDE, *SHARES])
    name, x, weight, left, options, bounds = draw(rng, dtype)
    tensors = {"x": x, "weight": weight}
    tensors |= {key: value for key, value in options.items() if isinstance(value, Tensor)}
    others = {key: value for key, value in options.items() if key not in tensors}
    cu = {} if bounds is None else {"cu_seqlens": torch.tensor(bounds)}
    direction = torch.randn(x.shape, dtype=WIDE)
    results = []
    for backend in ("formula", "auto", "reference"):
        exact = backend == "formula"
        leaves = {key: v.to(WIDE if exact else v.dtype) for key, v in tensors.items()}
        leaves = {key: v.detach().clone().requires_grad_() for key, v in leaves.items()}
        x, weight, *_ = leaves.values()
        given = {**others, **{key: leaves[key] for key in list(leaves)[2:]}}
        if exact:
            kernels = weight.softmax(-1) if name.endswith("softmax") else weight
            out = by_sums(x, kernels, left, given, bounds)
        else:
            out = getattr(ops, name)(x, weight, left, backend=backend, **given, **cu)
            assert out.dtype == dtype
        total = (out.double() * direction).sum()
        wanted = list(leaves.values())
        grads = torch.autograd.grad(total, wanted, allow_unused=True, materialize_grads=True)
        results.append({"out": out, **dict(zip(leaves, grads, strict=True))})
    for found in results[1:]:
        for key, value in results[0].items():
            allowed = SHARES[dtype] * max(1.0, value.abs().max().item() if value.numel() else 0.0)
            off = (found[key].double() - value).abs()
            assert bool((off <= allowed).all()), f"seed {seed}: {key} is off by {off.max():.1e}"


@pytest.mark.parametrize("part", range(4))
def test_every_option_crossed_at_random(part: int) -> None:
    for seed in range(75 * part, 75 * part + 75):
        check(seed)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(8))
def test_many_more(part: int) -> None:
    """5,000 cases."""
    for seed in range(10_000 + 625 * part, 10_625 + 625 * part):
        check(seed)


def test_gradcheck() -> None:
    """First and second derivatives by finite differences, of everything at once."""
    torch.manual_seed(0)
    x, weight, gate, past = noise(1, 5, 4), noise(2, 3), noise(1, 5, 4), noise(2, 4, 4)
    leaves = [v.requires_grad_() for v in (x, weight, noise(4), gate, past)]

    def run(x: Tensor, weight: Tensor, bias: Tensor, gate: Tensor, past: Tensor) -> Tensor:
        options: Any = {"dilation": 2, "cu_seqlens": torch.tensor([0, 2, 5]), "residual": True}
        options |= {"activation": "silu", "gate_in": gate, "gate_out": gate.sin()}
        return ops.lightconv(x, weight, 2, bias=bias, initial_state=past, **options)

    assert torch.autograd.gradcheck(run, leaves)
    assert torch.autograd.gradgradcheck(run, leaves)
    plain = lambda x, w, b: ops.lightconv(x, w, 2, bias=b, activation="silu", residual=True)
    assert torch.autograd.gradcheck(plain, leaves[:3])
    assert torch.autograd.gradgradcheck(plain, leaves[:3])


def test_nothing_leaks_between_sequences_and_phases() -> None:
    torch.manual_seed(0)
    x, weight, cu = noise(1, 12, 4), noise(2, 3), torch.tensor([0, 5, 5, 12])
    state = noise(3, 4, 4)
    options: dict[str, Any] = {"dilation": 2, "cu_seqlens": cu}
    whole = ops.lightconv(x, weight, 2, initial_state=state, **options)
    bad = state.clone()
    bad[2], bad[0, 1::2] = torch.nan, torch.nan
    out = ops.lightconv(x, weight, 2, initial_state=bad, **options)
    assert torch.equal(out[:, 0:5:2], whole[:, 0:5:2])  # the even phase of the first sequence
    poisoned = x.clone()
    poisoned[:, 5:] = torch.nan
    out = ops.lightconv(poisoned, weight, 2, initial_state=state, **options)
    assert torch.equal(out[:, :5], whole[:, :5])


# --- states ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("K", [1, 2, 4])
@pytest.mark.parametrize("dilation", [1, 2, 5])
def test_chunks_with_states_are_the_whole(K: int, dilation: int) -> None:
    """Chunks of 0, 1 and more positions, whole and packed; the gradient too."""
    torch.manual_seed(0)
    x, weight = noise(2, 17, 6).requires_grad_(), noise(3, K).requires_grad_()
    whole = ops.lightconv(x, weight, K - 1, dilation=dilation)
    state: Tensor | None = None
    packed_state: Tensor | None = None
    parts, packed = [], []
    for chunk in x.split([1, 0, 3, 1, 12], dim=1):
        options: dict[str, Any] = {"dilation": dilation}
        parts.append(ops.lightconv(chunk, weight, K - 1, initial_state=state, **options))
        state = ops.final_state(chunk, (K - 1) * dilation, initial_state=state)
        n = chunk.shape[1]
        cu, flat = torch.tensor([0, n, 2 * n]), chunk.reshape(1, 2 * n, 6)
        options |= {"cu_seqlens": cu, "initial_state": packed_state}
        packed.append(ops.lightconv(flat, weight, K - 1, **options).view(2, n, 6))
        packed_state = ops.final_state(
            flat, (K - 1) * dilation, initial_state=packed_state, cu_seqlens=cu
        )
        torch.testing.assert_close(packed_state, state)
    direction = torch.randn_like(whole)
    expected = torch.autograd.grad((whole * direction).sum(), [x, weight])
    for each in (parts, packed):
        joined = torch.cat(each, dim=1)
        torch.testing.assert_close(joined, whole)
        torch.testing.assert_close(
            torch.autograd.grad((joined * direction).sum(), [x, weight]), expected
        )


@pytest.mark.parametrize("dynamic", [True, False], ids=["dynamic", "shared"])
@pytest.mark.parametrize("K", [1, 2, 4])
@pytest.mark.parametrize("dilation", [1, 2, 5])
@pytest.mark.parametrize("recorded", [True, False], ids=["recorded", "in place"])
def test_steps_of_chosen_rows(dynamic: bool, K: int, dilation: int, recorded: bool) -> None:
    """Rows of a pool at positions of their own, in chunks of any size: each equals its sequence."""
    rng = random.Random(0)
    torch.manual_seed(0)
    M, T, D, H = 5, 23, 6, 3
    x = noise(M, T, D).requires_grad_(recorded)
    weight = noise(M, T, H, K) if dynamic else noise(H, K)
    around = {"bias": noise(D), "activation": "silu", "residual": True, "dilation": dilation}
    op, step = ("dynamicconv", "dynamicconv_step") if dynamic else ("lightconv", "lightconv_step")
    whole = getattr(ops, op)(x, weight, K - 1, **around)
    pool = torch.zeros(M, (K - 1) * dilation, D, dtype=WIDE)
    times = [0] * M
    for _ in range(25):
        n = rng.choice([0, 1, 1, 2, 7])
        rows = [row for row in rng.sample(range(M), rng.randint(1, M)) if times[row] + n <= T]
        if not rows:
            continue
        spans = [(row, slice(times[row], times[row] + n)) for row in rows]
        before = pool
        out, pool = getattr(ops, step)(
            torch.stack([x[span] for span in spans]),
            pool,
            torch.tensor([times[row] for row in rows]),
            torch.stack([weight[span] for span in spans]) if dynamic else weight,
            state_indices=torch.tensor(rows),
            **around,
        )
        assert (pool is before) != recorded
        torch.testing.assert_close(out, torch.stack([whole[span] for span in spans]))
        for row in rows:
            times[row] += n
    if recorded:
        assert torch.autograd.grad(out.sum(), x)[0].isfinite().all()


# --- mistakes -------------------------------------------------------------------------------------

BAD: list[tuple[dict[str, Any], str]] = [
    ({"dilation": 0}, "dilation must be an integer of at least 1, got 0"),
    ({"activation": "relu"}, "activation must be None or 'silu', got 'relu'"),
    ({"bias": torch.zeros(5)}, r"bias must have shape \[6\], got \[5\]"),
    ({"gate_in": torch.zeros(6)}, r"gate_in must have shape \[2, 4, 6\]"),
    ({"gate_out": torch.zeros(2, 4, 5)}, r"gate_out must have shape"),
    ({"initial_state": torch.zeros(2, 3, 6)}, r"initial_state must have shape \[2, 2, 6\]"),
    ({"initial_state": torch.zeros(2, 2, 6), "left": 1}, "needs a causal kernel, left=2, got 1"),
    ({"dilation": 2, "backend": "band"}, "'band' has neither dilation nor initial_state"),
    ({"bias": torch.zeros(6), "backend": "bend"}, "backend must be one of"),
]


@pytest.mark.parametrize(("options", "message"), BAD)
def test_bad_options(options: dict[str, Any], message: str) -> None:
    arguments = {"left": 2, **options}
    with pytest.raises(ValueError, match=message):
        ops.lightconv(torch.zeros(2, 4, 6), torch.zeros(3, 3), **arguments)


def test_bad_steps() -> None:
    x, window, weight = torch.zeros(2, 1, 6), torch.zeros(2, 2, 6), torch.zeros(3, 3)
    for options, message in (
        ({"dilation": 2}, r"window must have shape \[2, 4, 6\], got \[2, 2, 6\]"),
        ({"initial_state": window}, "a step has no initial_state"),
        ({"position": torch.zeros(3, dtype=torch.int64)}, r"integers of shape \[2\]"),
    ):
        arguments: dict[str, Any] = {"position": 0, "residual": True, **options}
        with pytest.raises(ValueError, match=message):
            ops.lightconv_step(x, window, weight=weight, **arguments)
    with pytest.raises(TypeError, match=r"lightconv\(\) got an unexpected .* 'biass'"):
        ops.lightconv(x, weight, 2, biass=None)  # type: ignore[call-arg]


def test_silu_is_torch_s() -> None:
    x, weight = noise(1, 5, 4), noise(4, 2)
    plain = ops.lightconv(x, weight, 1)
    torch.testing.assert_close(ops.lightconv(x, weight, 1, activation="silu"), F.silu(plain))
