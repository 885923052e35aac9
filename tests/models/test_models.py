"""Whole models: their parts in order, what they share, what their outputs read."""

import dataclasses

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lightconv.models.embedding import AdaptiveOutput, add_positions

from .examples import (
    ADAPTIVE,
    FAMILIES,
    PAD,
    VOCAB,
    either_output,
    every_family,
    every_kind,
    language_model,
    seq2seq,
    source_batch,
    tokens,
)


def read(words: Tensor, batch: Tensor) -> Tensor:
    """Words and positions: the input of the first layer."""
    return add_positions(words[batch] * 8**0.5, batch == PAD, PAD)


@pytest.mark.parametrize("pre_norm", [False, True], ids=["post", "pre"])
@pytest.mark.parametrize("final_norm", [False, True], ids=["open", "closed"])
def test_a_model_is_its_parts_in_order(pre_norm: bool, final_norm: bool) -> None:
    def norm(which: nn.Module, x: Tensor) -> Tensor:
        if not (pre_norm and final_norm):
            assert not list(which.parameters())
            return x
        return F.layer_norm(x, (8,), which.weight, which.bias)

    text = language_model("mixed", pre_norm=pre_norm, final_norm=final_norm)
    batch = tokens(3, 9)
    batch[1, 6:] = PAD
    real = batch != PAD
    x = read(text.embedding.weight, batch)
    for layer in text.layers:
        x = layer(x)
    x = norm(text.norm, x)
    torch.testing.assert_close(text.features(batch)[real], x[real])
    torch.testing.assert_close(text(batch)[real], (x @ text.output.weight.T)[real])

    pair = seq2seq("mixed", pre_norm=pre_norm, final_norm=final_norm)
    source, target_in = source_batch(), tokens(3, 4)
    padding = source == PAD
    x = read(pair.source_embedding.weight, source)
    for layer in pair.encoder:
        x = layer(x, padding)
    memory = norm(pair.encoder_norm, x)
    x = read(pair.target_embedding.weight, target_in)
    for layer in pair.decoder:
        x = layer(x, memory, padding)
    x = norm(pair.decoder_norm, x)
    torch.testing.assert_close(pair.encode(source).output[~padding], memory[~padding])
    torch.testing.assert_close(pair.features(source, target_in), x)
    torch.testing.assert_close(pair(source, target_in), x @ pair.output.weight.T)


@every_family
@either_output
def test_forward_is_the_output_of_features(family: str, adaptive: object) -> None:
    run = FAMILIES[family]("mixed", adaptive=adaptive)
    batch, target = tokens(3, 9), tokens(3, 9, seed=2)
    x = run.features(batch)
    assert x.shape == (3, 9, 8)
    scores = run.whole(batch)
    assert torch.equal(run.model.output.scores(x), scores)
    torch.testing.assert_close(
        run.model.output.nll(x.flatten(0, 1), target.flatten()),
        F.cross_entropy(scores.flatten(0, 1), target.flatten(), reduction="none"),
    )


@every_kind
@either_output
def test_source_padding_changes_nothing(kind: str, adaptive: object) -> None:
    model = seq2seq(kind, adaptive=adaptive)
    source, target_in = source_batch(), tokens(3, 4)
    together = model(source, target_in)
    for b in range(3):
        alone = source[b : b + 1, source[b] != PAD]
        torch.testing.assert_close(
            model(alone, target_in[b : b + 1])[0], together[b], rtol=0, atol=1e-10
        )


@pytest.mark.parametrize("share, matrices", [("none", 3), ("decoder", 2), ("all", 1)])
def test_shared_embeddings_are_one_matrix(share: str, matrices: int) -> None:
    model = seq2seq("conv", source_vocab=17, share_embeddings=share)
    places = (model.source_embedding, model.target_embedding, model.output)
    assert len({id(place.weight) for place in places}) == matrices
    assert sum(p.shape == (17, 8) for p in model.parameters()) == matrices
    model = seq2seq("conv", source_vocab=17, share_embeddings=share, adaptive=ADAPTIVE)
    places = (model.source_embedding, model.target_embedding, model.output)
    for place in range(3):
        assert len({id(each.words[place].weight) for each in places}) == matrices
    assert len({id(each.projections) for each in places}) == (2 if share == "all" else 3)


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


def test_too_many_tokens_are_refused_by_a_full_cache() -> None:
    model = language_model("attention")
    with torch.inference_mode(), pytest.raises(ValueError, match="beyond max_len=4"):
        model.step(tokens(3, 5), model.start(3, 4))
