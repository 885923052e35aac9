"""Mixers as modules: sizes, errors, copies, dtypes, gradients."""

import copy
import inspect
import pickle
from typing import Any

import pytest
import torch
from torch.func import functional_call

from lightconv.mixers import MIXERS, Attention, Average, Conv, DynamicConv, LightConv, Mixer

from .examples import DIM, EXAMPLES, FEW, Example, both_directions, few_examples, noise, stream

CHUNKS = [1, 3, 5]


def parameters(mixer: Mixer) -> int:
    return sum(parameter.numel() for parameter in mixer.parameters())


@both_directions
def test_parameter_counts(causal: bool) -> None:
    with torch.device("meta"):
        for d, f, H, K in ((1024, 4096, 16, 31), (512, 1024, 4, 3), (8, 3, 2, 6)):
            ffn = 2 * d * f + f + d
            projections = 2 * (d * d + d)
            gated = 3 * (d * d + d)
            shape: dict[str, Any] = {"kernel": K, "heads": H, "causal": causal}
            counts = {
                Attention(d, heads=H, causal=causal): 4 * d * d + 4 * d,
                Attention(d, heads=H, causal=causal, window=K): 4 * d * d + 4 * d,
                Conv(d, kernel=K, causal=causal): K * d * d,
                LightConv(d, **shape): projections + H * K,
                LightConv(d, glu=True, **shape): gated + H * K,
                LightConv(d, kernel=K, heads=d, causal=causal): projections + d * K,
                DynamicConv(d, **shape): projections + H * K * d,
                DynamicConv(d, glu=True, **shape): gated + H * K * d,
                Average(d, ffn_dim=f, causal=causal): ffn + (2 * d) ** 2 + 2 * d,
            }
            for mixer, count in counts.items():
                assert parameters(mixer) == count, mixer


@few_examples
def test_linears_start_xavier_uniform_without_bias(example: Example) -> None:
    torch.manual_seed(0)
    mixer = MIXERS[example.name](DIM, causal=True, **example.options)
    for name, linear in mixer.named_modules():
        if isinstance(linear, torch.nn.Linear) and not name.startswith("kernel_proj"):
            bound = (6 / (linear.in_features + linear.out_features)) ** 0.5
            assert 0.8 * bound < linear.weight.abs().max() <= bound
            assert linear.bias is None or not linear.bias.any()


CONVOLUTION = {"kernel": 3, "heads": 2}
BAD_ARGUMENTS: list[tuple[str, dict[str, Any], str]] = [
    ("attention", {"heads": 3}, r"heads=3 does not divide dim=8"),
    ("attention", {"heads": 0}, r"heads=0 must be an integer"),
    ("attention", {"heads": 2.0}, r"heads=2.0 must be an integer"),
    ("attention", {"heads": 2, "window": 0}, r"window=0 must be an integer"),
    ("attention", {"heads": 2, "dropout": 1.0}, r"dropout=1.0 must be in \[0, 1\)"),
    ("conv", {"kernel": 0}, r"kernel=0 must be an integer of at least 1"),
    ("conv", {"kernel": 3, "dim": 0}, r"dim=0 must be an integer of at least 1"),
    ("average", {"ffn_dim": 0}, r"ffn_dim=0 must be an integer"),
    ("average", {"ffn_dim": 4, "dropout": -0.1}, r"dropout=-0.1 must be in"),
    *(
        (name, CONVOLUTION | options, message)
        for name in ("lightconv", "dynamicconv")
        for options, message in (
            ({"heads": 5}, r"heads=5 does not divide dim=8"),
            ({"heads": 16}, r"heads=16 does not divide dim=8"),
            ({"kernel": -1}, r"kernel=-1 must be an integer"),
            ({"dropconnect": 1.5}, r"dropconnect=1.5 must be in"),
            ({"dropconnect": torch.nan}, r"dropconnect=nan must be in"),
            ({"normalize": "sofmax"}, r"normalize='sofmax'; did you mean 'softmax'\?"),
            ({"normalize": "zz"}, r"normalize='zz'; known: none, softmax, .*, abs_l2$"),
        )
    ),
]


@pytest.mark.parametrize(("name", "options", "message"), BAD_ARGUMENTS)
def test_bad_arguments(name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{MIXERS[name].__name__}: .*{message}"):
        MIXERS[name](**{"dim": DIM, **options})


@pytest.mark.parametrize("name", MIXERS)
def test_errors_name_the_class_that_was_called(name: str) -> None:
    public = MIXERS[name].__name__
    with pytest.raises(TypeError, match=rf"^{public}\.__init__\(\)"):
        MIXERS[name](DIM, kernal=3)
    assert inspect.getdoc(MIXERS[name]).count(">>> ") > 0  # help() has an example


@few_examples
def test_reset_parameters_initialises_a_layer_built_on_meta(example: Example) -> None:
    options = {"causal": True, **example.options}
    layer = MIXERS[example.name](DIM, device="meta", dtype=torch.float64, **options)
    assert {(p.device.type, p.dtype) for p in layer.parameters()} == {("meta", torch.float64)}
    layer = layer.to_empty(device="cpu")
    for parameter in layer.parameters():
        parameter.data.fill_(torch.nan)
    layer.reset_parameters()
    like = MIXERS[example.name](DIM, dtype=torch.float64, **options)
    for (label, mine), theirs in zip(layer.named_parameters(), like.parameters(), strict=True):
        assert mine.isfinite().all()
        assert bool(mine.any()) == bool(theirs.any()), label
        if mine.any():
            assert 0.3 < mine.abs().max() / theirs.abs().max() < 3.0


@few_examples
@both_directions
def test_packed_and_nested_equal_each_sequence(example: Example, causal: bool) -> None:
    mixer = example.build(causal)
    lengths = [3, 0, 1, 7]
    parts = [noise(1, n, DIM, seed=n) for n in lengths]
    expected = torch.cat([mixer(part) for part in parts if part.shape[1]], dim=1)
    x, cu = torch.cat(parts, dim=1), torch.tensor([0, 3, 3, 4, 11])
    torch.testing.assert_close(mixer(x, cu_seqlens=cu), expected)
    leaf = x.squeeze(0).clone().requires_grad_()
    nested = torch.nested.nested_tensor_from_jagged(leaf, cu)
    out = mixer(nested)
    assert out.is_nested
    torch.testing.assert_close(out.values().unsqueeze(0), expected)
    out.values().square().sum().backward()
    other = x.clone().requires_grad_()
    mixer(other, cu_seqlens=cu).square().sum().backward()
    torch.testing.assert_close(leaf.grad, other.grad.squeeze(0))
    empty = mixer(x[:, :0], cu_seqlens=torch.tensor([0, 0]))
    assert empty.shape == (1, 0, DIM)
    padding = torch.zeros(1, 11, dtype=torch.bool)
    for call, message in (
        (lambda: mixer(x, padding, cu), "padding with cu_seqlens"),
        (lambda: mixer(x, padding, key_padding_mask=padding), "are one argument"),
        (lambda: mixer(nested, cu_seqlens=cu), "a NestedTensor takes neither"),
        (lambda: mixer(torch.cat([x, x]), cu_seqlens=cu), "batch must be 1"),
        (lambda: mixer(x, cu_seqlens=cu[:-1]), "cu_seqlens must run from 0 to"),
    ):
        with pytest.raises(ValueError, match=message):
            call()
    padding[:, 9:] = True
    by_name = mixer(x, key_padding_mask=padding)
    assert torch.equal(by_name[:, :9], mixer(x, padding)[:, :9])


@pytest.mark.parametrize("rank", [None, 3])
def test_kernels_from_another_tensor(rank: int | None) -> None:
    torch.manual_seed(0)
    layer = DynamicConv(DIM, 3, 2, causal=True, kernel_dim=5, rank=rank).double().eval()
    x, context = noise(2, 6, DIM), noise(2, 6, 5, seed=2)
    whole = layer(x, context=context)
    assert not torch.equal(whole, layer(x, context=2 * context)) or rank  # rank begins static
    state, parts = layer.start(2, 6), []
    with torch.no_grad():
        for a, b in ((0, 1), (1, 4), (4, 6)):
            part, state = layer.step(x[:, a:b], state, context=context[:, a:b])
            parts.append(part)
    torch.testing.assert_close(torch.cat(parts, 1), whole)
    for other in (None, context[:, :3]):
        with pytest.raises(ValueError, match="DynamicConv: context "):
            layer(x, context=other)
    with pytest.raises(ValueError, match="LightConv: its kernels are parameters"):
        LightConv(DIM, 3, 2)(x.float(), context=context.float())


@pytest.mark.parametrize(
    "mixer", [Attention(DIM, heads=2, dropout=0.5), Average(DIM, ffn_dim=64, dropout=0.5)], ids=str
)
def test_dropout_acts_in_training_only(mixer: Mixer) -> None:
    x = noise(2, 6, DIM, dtype=torch.float32)
    assert not torch.equal(mixer(x), mixer(x))
    mixer.eval()
    assert torch.equal(mixer(x), mixer(x))


@few_examples
def test_bad_inputs(example: Example) -> None:
    mixer = example.build(causal=True)
    x = noise(2, 3, DIM)
    state = mixer.start(2, 9)
    for bad in (noise(2, 3, DIM + 1), noise(3, DIM), noise(2, 3, DIM, 1)):
        for call in (mixer, lambda x: mixer.step(x, state)):
            with pytest.raises(ValueError, match=r"x must have shape \[B, T, D\] with D=8, got \["):
                call(bad)
    with pytest.raises(ValueError, match=r"padding must be bool, .* got torch.float32"):
        mixer(x, torch.zeros(2, 3))
    with pytest.raises(ValueError, match=r"padding must have shape \[B, T\] = \[2, 3\], got"):
        mixer(x, torch.zeros(2, 4, dtype=torch.bool))
    with pytest.raises(ValueError, match="x has 1 rows but the state has 2"):
        mixer.step(x[:1], state)


@few_examples
def test_a_centred_layer_cannot_be_streamed(example: Example) -> None:
    state = example.build(causal=True).start(1, 5)
    mixer = example.build(causal=False)
    for call in (lambda: mixer.start(1, 5), lambda: mixer.step(noise(1, 1, DIM), state)):
        with pytest.raises(ValueError, match=r"centred layer: .* cannot be streamed"):
            call()


@pytest.mark.parametrize("name", MIXERS)
def test_print_shows_every_keyword(name: str) -> None:
    example = next(example for example in FEW if example.name == name)
    mixer = example.build(causal=True)
    text = mixer.extra_repr()
    keywords = set(list(inspect.signature(type(mixer)).parameters)[1:]) - {"device", "dtype"}
    for keyword in keywords:
        assert f"{keyword}={getattr(mixer, keyword)!r}" in text
    # What is printed builds the layer again.
    again = eval(f"{type(mixer).__name__}({text})", {type(mixer).__name__: type(mixer)})
    assert again.extra_repr() == text
    assert text in repr(mixer)


@few_examples
def test_copies_and_state_dict(example: Example) -> None:
    mixer = example.build(causal=True)
    x = noise(2, 6, DIM)
    expected = mixer(x)
    for twin in (copy.deepcopy(mixer), pickle.loads(pickle.dumps(mixer))):
        assert torch.equal(twin(x), expected)
    assert set(mixer.state_dict()) == {name for name, _ in mixer.named_parameters()}
    other = MIXERS[example.name](DIM, causal=True, **example.options).double().eval()
    assert not torch.equal(other(x), expected)
    other.load_state_dict(mixer.state_dict())
    assert torch.equal(other(x), expected)


@few_examples
def test_meta_device(example: Example) -> None:
    with torch.device("meta"):
        mixer = MIXERS[example.name](DIM, causal=True, **example.options)
    assert {parameter.device.type for parameter in mixer.parameters()} == {"meta"}
    assert mixer.start(2, 5).tensors[0].device.type == "meta"
    real = mixer.to_empty(device="cpu")
    real.load_state_dict(example.build(causal=True, dtype=torch.float32).state_dict())
    assert real(noise(2, 6, DIM, dtype=torch.float32)).isfinite().all()


@few_examples
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_half_precision(example: Example, dtype: torch.dtype) -> None:
    mixer = example.build(causal=True).to(dtype)
    wide = copy.deepcopy(mixer).double()
    x = noise(2, 9, DIM, dtype=dtype)
    padding = torch.zeros(2, 9, dtype=torch.bool)
    padding[1, 7:] = True
    with torch.no_grad():
        stepped = stream(mixer.step, x, CHUNKS, mixer.start(2, 9))
        for out, expected in (
            (mixer(x), wide(x.double())),
            (mixer(x, padding), wide(x.double(), padding)),
            (stepped, wide(x.double())),
        ):
            assert out.dtype == dtype
            torch.testing.assert_close(out.double(), expected, atol=0.1, rtol=0.05)


@few_examples
@pytest.mark.parametrize("state_dtype", [None, torch.bfloat16], ids=str)
def test_autocast(example: Example, state_dtype: torch.dtype | None) -> None:
    mixer = example.build(causal=True, dtype=torch.float32)
    x = noise(2, 9, DIM, dtype=torch.float32)
    expected = mixer(x)
    with torch.autocast("cpu", torch.bfloat16):
        out = mixer(x)
        out.float().sum().backward()
        with torch.no_grad():
            stepped = stream(mixer.step, x, CHUNKS, mixer.start(2, 9, dtype=state_dtype))
    assert all(parameter.grad.dtype == torch.float32 for parameter in mixer.parameters())
    torch.testing.assert_close(out.float(), expected, atol=0.1, rtol=0.05)
    torch.testing.assert_close(stepped.float(), expected, atol=0.1, rtol=0.05)


SMOOTH = [example for example in EXAMPLES if example.width <= 5]


@pytest.mark.parametrize("example", SMOOTH, ids=str)
@both_directions
def test_gradients(example: Example, causal: bool) -> None:
    mixer = example.build(causal)
    names, values = zip(*mixer.named_parameters(), strict=True)
    padding = torch.tensor([[False] * 4, [False, False, False, True]])

    def run(x: torch.Tensor, *values: torch.Tensor) -> torch.Tensor:
        return functional_call(mixer, dict(zip(names, values, strict=True)), (x, padding))

    x = noise(2, 4, DIM).requires_grad_()
    inputs = (x, *(value.detach().clone().requires_grad_() for value in values))
    # fast_mode: one random direction in place of every single number.
    assert torch.autograd.gradcheck(run, inputs, fast_mode=True)
