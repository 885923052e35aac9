"""The language model: its parts in order, what it shares, how it starts."""

import dataclasses

import pytest
import torch
import torch.nn.functional as F

from lightconv.decode import beam_search
from lightconv.models.embedding import AdaptiveOutput, add_positions

from .examples import ADAPTIVE, EOS, PAD, VOCAB, language_model, tokens

either_output = pytest.mark.parametrize("adaptive", [None, ADAPTIVE], ids=["plain", "adaptive"])


@pytest.mark.parametrize("pre_norm", [False, True], ids=["post", "pre"])
@pytest.mark.parametrize("final_norm", [False, True], ids=["open", "closed"])
def test_the_model_is_its_parts_in_order(pre_norm: bool, final_norm: bool) -> None:
    model = language_model("mixed", pre_norm=pre_norm, final_norm=final_norm)
    batch = tokens(3, 9)
    batch[1, 6:] = PAD
    x = model.embedding.weight[batch] * 8**0.5
    x = add_positions(x, batch == PAD, PAD)
    for layer in model.layers:
        x = layer(x)
    if pre_norm and final_norm:
        x = F.layer_norm(x, (8,), model.norm.weight, model.norm.bias)
    else:
        assert not list(model.norm.parameters())
    real = batch != PAD
    torch.testing.assert_close(model.features(batch)[real], x[real])
    torch.testing.assert_close(model(batch)[real], (x @ model.output.weight.T)[real])


@either_output
def test_forward_is_the_output_of_features(adaptive: object) -> None:
    model = language_model("mixed", adaptive=adaptive)
    batch, target = tokens(3, 9), tokens(3, 9, seed=2)
    x = model.features(batch)
    assert x.shape == (3, 9, 8)
    scores = model(batch)
    assert torch.equal(model.output.scores(x), scores)
    torch.testing.assert_close(
        model.output.nll(x.flatten(0, 1), target.flatten()),
        F.cross_entropy(scores.flatten(0, 1), target.flatten(), reduction="none"),
    )


def test_the_output_is_tied_if_asked_for() -> None:
    tied = language_model("conv")
    assert tied.output.weight is tied.embedding.weight
    free = language_model("conv", tie_output=False)
    assert free.output.weight is not free.embedding.weight
    assert sum(p.shape == (VOCAB, 8) for p in free.parameters()) == 2


def test_an_adaptive_configuration_says_itself_what_is_tied() -> None:
    for tie_output in (True, False):
        model = language_model("conv", tie_output=tie_output, adaptive=ADAPTIVE)
        assert isinstance(model.output, AdaptiveOutput)
        assert model.output.words is model.embedding.words
    free = dataclasses.replace(ADAPTIVE, tie_words=False)
    model = language_model("conv", adaptive=free)
    assert model.output.words is not model.embedding.words


def test_start_takes_device_and_dtype() -> None:
    model = language_model("mixed", torch.float32)
    kinds = {tensor.dtype for layer in model.start(2, 5).layers for tensor in layer.tensors}
    assert kinds == {torch.float32}
    state = model.start(2, 5, device="meta", dtype=torch.float64)
    for layer in state.layers:
        for tensor in layer.tensors:
            assert tensor.device.type == "meta"
            assert tensor.dtype == torch.float64
            assert tensor.shape[0] == 2


@either_output
def test_beam_search(adaptive: object) -> None:
    model = language_model("mixed", adaptive=adaptive)
    first = torch.full((2,), EOS)
    state = model.start(2, 6)
    for found in beam_search(model.step, state, first, beam=3, max_len=6, eos=EOS, pad=PAD):
        for hypothesis in found:
            target = torch.tensor([hypothesis.tokens])
            read = torch.cat([first[:1, None], target[:, :-1]], dim=1)
            with torch.inference_mode():
                expected = model(read).log_softmax(-1).gather(2, target[..., None]).flatten()
            logprobs = torch.tensor(hypothesis.logprobs).double()
            torch.testing.assert_close(logprobs, expected, rtol=0, atol=1e-6)


def test_too_many_tokens_are_refused_by_a_full_cache() -> None:
    model = language_model("attention")
    with torch.inference_mode(), pytest.raises(ValueError, match="beyond max_len=4"):
        model.step(tokens(3, 5), model.start(3, 4))
