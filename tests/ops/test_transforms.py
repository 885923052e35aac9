"""Transforms of torch over every operator and mixer, against finite differences and loops.

docs/operators.md has the table of what works; each of its rows is a test here or, for compiling and
exporting, in test_compile.py.
"""

import copy
import io
import pickle
from collections.abc import Callable
from random import Random
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.func import (
    functional_call,
    functionalize,
    grad,
    hessian,
    jacfwd,
    jacrev,
    jvp,
    vjp,
    vmap,
)

from lightconv import mixers, ops
from lightconv.ops.vocabulary import linear_cross_entropy, topk_logprobs

from .test_frame import draw

# torch's own: it loops where it has no rule, and the result is right.
pytestmark = pytest.mark.filterwarnings("ignore:There is a performance drop")
B, T, D, H, K = 2, 5, 6, 3, 3
Function = Callable[..., Tensor]


def random(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def ring(op: Callable[..., Any], **options: Any) -> Function:
    """A step that returns its result and its window as one tensor."""
    return lambda x, weight, window: torch.cat(op(x, window.clone(), 4, weight, **options), 1)


PACKED = torch.tensor([0, 3, 3, 2 * T])
OPERATORS: dict[str, tuple[Function, list[tuple[int, ...]]]] = {
    "dynamicconv": (lambda x, w: ops.dynamicconv(x, w, 2), [(B, T, D), (B, T, H, K)]),
    "dynamicconv packed": (
        lambda x, w: ops.dynamicconv(x, w, 2, cu_seqlens=PACKED),
        [(1, 2 * T, D), (1, 2 * T, H, K)],
    ),
    "dynamicconv_softmax": (
        lambda x, w: ops.dynamicconv_softmax(x, w, 1),
        [(B, T, D), (B, T, H, K)],
    ),
    "dynamicconv_softmax dropconnect": (
        lambda x, w: ops.dynamicconv_softmax(x, w, 1, dropconnect=0.4, seed=5),
        [(B, T, D), (B, T, H, K)],
    ),
    "lightconv": (lambda x, w: ops.lightconv(x, w, 1), [(B, T, D), (H, K)]),
    "lightconv_softmax": (lambda x, w: ops.lightconv_softmax(x, w, 9), [(B, T, D), (H, K)]),
    "dynamicconv_step": (
        ring(ops.dynamicconv_step, softmax=True),
        [(B, T, D), (B, T, H, K), (B, K - 1, D)],
    ),
    "lightconv_step": (ring(ops.lightconv_step), [(B, 1, D), (H, K), (B, K - 1, D)]),
    "lightconv framed": (
        lambda x, w, b, g, past: ops.lightconv(
            x,
            w,
            2,
            dilation=2,
            bias=b,
            activation="silu",
            residual=True,
            gate_in=g,
            gate_out=g.cos(),
            initial_state=past,
        ),
        [(B, T, D), (H, K), (D,), (B, T, D), (B, 2 * (K - 1), D)],
    ),
    "dynamicconv framed, packed": (
        lambda x, w, past: ops.dynamicconv_softmax(
            x, w, 2, dilation=2, cu_seqlens=PACKED, residual=True, initial_state=past
        ),
        [(1, 2 * T, D), (1, 2 * T, H, K), (3, 2 * (K - 1), D)],
    ),
    "lightconv_step framed": (
        ring(ops.lightconv_step, dilation=2, activation="silu", residual=True),
        [(B, 3, D), (H, K), (B, 2 * (K - 1), D)],
    ),
    "dropout": (lambda x: ops.dropout(x, 0.3, seed=7), [(B, T, D)]),
    "dropout_add": (lambda x, y: ops.dropout_add(x, y, 0.3, seed=7), [(B, T, D)] * 2),
    "dropout_add_norm": (
        lambda x, y, w, b: ops.dropout_add_norm(x, y, w, b, 0.3, seed=7),
        [(B, T, D), (B, T, D), (D,), (D,)],
    ),
    "linear_cross_entropy": (
        lambda x, w, more: linear_cross_entropy(
            x, w, torch.tensor([1, 8, 0]), more=more, smoothing=0.1
        )[0],
        [(3, D), (7, D), (2, D)],
    ),
    "topk_logprobs": (lambda x: topk_logprobs(x, 2)[0], [(3, 7)]),
}
MIXERS = {
    "attention": mixers.Attention(D, heads=2, causal=True),
    "average": mixers.Average(D, ffn_dim=5, causal=True),
    "conv": mixers.Conv(D, kernel=3),
    "dynamicconv": mixers.DynamicConv(D, kernel=3, heads=2, glu=True, causal=True),
    "lightconv": mixers.LightConv(D, kernel=4, heads=3),
    "dilated": mixers.DynamicConv(D, 3, 2, dilation=2, causal=True),
    "lowrankconv": mixers.LowRankConv(D, 3, 2, causal=True),
    "shortconv": mixers.ShortConv(D, 3, causal=True),
    "hyena": mixers.Hyena(D, 4, 2),
}
# Options at random, of test_frame; x of at most 40 numbers.
SEEDS = (7, 8, 27, 29, 58, 86, 116, 149, 440)


def drawn(seed: int) -> tuple[Function, tuple[Tensor, ...]]:
    """A random case as a function of all its tensors."""
    op, x, weight, left, options, bounds = draw(Random(seed))
    names = [name for name, value in options.items() if isinstance(value, Tensor)]
    if bounds is not None:
        options["cu_seqlens"] = torch.tensor(bounds)

    def run(x: Tensor, weight: Tensor, *tensors: Tensor) -> Tensor:
        given = options | dict(zip(names, tensors, strict=True))
        out: Tensor = getattr(ops, op)(x, weight, left, **given)
        return out

    return run, (x, weight, *(options[name] for name in names))


def find(name: str) -> tuple[Function, tuple[Tensor, ...]]:
    """A function of tensors, and tensors for it."""
    torch.manual_seed(0)
    if name.startswith("drawn "):
        return drawn(int(name.split()[1]))
    if name in OPERATORS:
        function, shapes = OPERATORS[name]
        return function, tuple(random(*shape) for shape in shapes)
    module = copy.deepcopy(MIXERS[name.removeprefix("mixer ")]).double()
    names = list(dict(module.named_parameters()))

    def call(x: Tensor, *parameters: Tensor) -> Tensor:
        out: Tensor = functional_call(module, dict(zip(names, parameters, strict=True)), (x,))
        return out

    return call, (random(B, T, D), *(p.detach() for p in module.parameters()))


NAMES = [*OPERATORS, *(f"mixer {name}" for name in MIXERS), *(f"drawn {seed}" for seed in SEEDS)]
every = pytest.mark.parametrize("name", NAMES)


def squares(function: Function) -> Function:
    return lambda *inputs: function(*inputs).square().sum()


def slope(function: Function, inputs: tuple[Tensor, ...], directions: tuple[Tensor, ...]) -> Tensor:
    """The derivative along directions, by central differences."""
    e = 1e-6
    far, near = (
        function(*(v + sign * d for v, d in zip(inputs, directions, strict=True)))
        for sign in (e, -e)
    )
    return (far - near) / (2 * e)


def near(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-5)


@every
def test_forward_mode(name: str) -> None:
    function, inputs = find(name)
    directions = tuple(map(torch.randn_like, inputs))
    expected = slope(function, inputs, directions)
    near(jvp(function, inputs, directions)[1], expected)
    with forward_ad.dual_level():
        duals = map(forward_ad.make_dual, inputs, directions)
        tangent = forward_ad.unpack_dual(function(*duals)).tangent
    near(tangent, expected)


@every
def test_reverse_mode(name: str) -> None:
    """torch.func and torch.autograd, along all inputs at once."""
    function, inputs = find(name)
    out, pull = vjp(function, *inputs)
    directions = tuple(map(torch.randn_like, inputs))
    weights = torch.randn_like(out)
    expected = (slope(function, inputs, directions) * weights).sum()
    leaves = [v.clone().requires_grad_() for v in inputs]
    gradients = torch.autograd.grad(function(*leaves), leaves, weights)
    for found in (pull(weights), gradients):
        near(sum((g * d).sum() for g, d in zip(found, directions, strict=True)), expected)
    near(
        grad(squares(function))(*inputs), torch.autograd.grad(squares(function)(*leaves), leaves)[0]
    )


@every
def test_jacobians_and_hessian(name: str) -> None:
    function, inputs = find(name)
    first, *rest = inputs
    one = lambda v: function(v, *rest)
    direction = torch.randn_like(first)
    expected = slope(one, (first,), (direction,))
    for jacobian in (jacrev(one)(first), jacfwd(one)(first)):
        near((jacobian * direction).flatten(-first.dim()).sum(-1), expected)
    curved = squares(one)
    second = (hessian(curved)(first) * direction).flatten(-first.dim()).sum(-1)
    near(second, slope(grad(curved), (first,), (direction,)))


@every
def test_vmap(name: str) -> None:
    function, inputs = find(name)
    others = tuple(map(torch.randn_like, inputs))
    stacked = tuple(map(torch.stack, zip(inputs, others, strict=True)))
    near(vmap(function)(*stacked), torch.stack([function(*inputs), function(*others)]))
    one = squares(function)
    found = vmap(grad(one), in_dims=(0, *(None,) * (len(inputs) - 1)))(stacked[0], *inputs[1:])
    near(found, torch.stack([grad(one)(v, *inputs[1:]) for v in stacked[0]]))


@every
def test_functionalize(name: str) -> None:
    function, inputs = find(name)
    near(functionalize(function)(*inputs), function(*inputs))


@pytest.mark.parametrize("compiled", ["jvp", "grad", "vmap", "inside"])
def test_transforms_and_compiling(compiled: str) -> None:
    function, inputs = find("dynamicconv_softmax")
    directions = tuple(map(torch.randn_like, inputs))
    changed: dict[str, Function] = {
        "jvp": lambda *v: jvp(function, v, directions)[1],
        "grad": grad(squares(function)),
        "vmap": lambda *v: vmap(function)(*(each[None] for each in v))[0],
    }
    if compiled == "inside":
        expected = slope(function, inputs, directions)
        near(jvp(torch.compile(function), inputs, directions)[1], expected)
    else:
        run = torch.compile(changed[compiled], fullgraph=True)
        near(run(*inputs), changed[compiled](*inputs))


@pytest.mark.parametrize("name", MIXERS)
def test_copies_of_modules(name: str) -> None:
    module, x = MIXERS[name], torch.randn(B, T, D)
    expected = module(x)
    shared = copy.deepcopy(module).share_memory()
    for copied in (copy.deepcopy(module), pickle.loads(pickle.dumps(module)), shared):
        assert torch.equal(copied(x), expected)
    stream = io.BytesIO()
    torch.save(module.state_dict(), stream)
    empty = copy.deepcopy(module).to("meta")
    assert empty(x.to("meta")).shape == expected.shape
    stream.seek(0)
    empty.load_state_dict(torch.load(stream), assign=True)
    assert torch.equal(empty(x), expected)
