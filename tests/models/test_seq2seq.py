"""The encoder-decoder model: its source, what it shares, and what its output reads."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from lightconv.decode import beam_search
from lightconv.models import Seq2Seq
from lightconv.models.embedding import add_positions

from .examples import ADAPTIVE, EOS, PAD, every_kind, seq2seq, source_batch, tokens

either_output = pytest.mark.parametrize("adaptive", [None, ADAPTIVE], ids=["plain", "adaptive"])


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


@pytest.mark.parametrize("pre_norm", [False, True], ids=["post", "pre"])
@pytest.mark.parametrize("final_norm", [False, True], ids=["open", "closed"])
def test_the_model_is_its_parts_in_order(pre_norm: bool, final_norm: bool) -> None:
    model = seq2seq("mixed", pre_norm=pre_norm, final_norm=final_norm)
    source, target_in = source_batch(), tokens(3, 4)
    padding = source == PAD

    def norm(which: torch.nn.Module, x: Tensor) -> Tensor:
        if not (pre_norm and final_norm):
            assert not list(which.parameters())
            return x
        return F.layer_norm(x, (8,), which.weight, which.bias)

    x = model.source_embedding.weight[source] * 8**0.5
    x = add_positions(x, padding, PAD)
    for layer in model.encoder:
        x = layer(x, padding)
    memory = norm(model.encoder_norm, x)
    x = model.target_embedding.weight[target_in] * 8**0.5
    x = add_positions(x, target_in == PAD, PAD)
    for layer in model.decoder:
        x = layer(x, memory, padding)
    x = norm(model.decoder_norm, x)
    real = ~padding
    torch.testing.assert_close(model.encode(source).output[real], memory[real])
    torch.testing.assert_close(model.features(source, target_in), x)
    torch.testing.assert_close(model(source, target_in), x @ model.output.weight.T)


@either_output
def test_forward_is_the_output_of_features(adaptive: object) -> None:
    model = seq2seq("mixed", adaptive=adaptive)
    source, target_in, target = source_batch(), tokens(3, 4), tokens(3, 4, seed=2)
    x = model.features(source, target_in)
    assert x.shape == (3, 4, 8)
    scores = model(source, target_in)
    assert torch.equal(model.output.scores(x), scores)
    torch.testing.assert_close(
        model.output.nll(x.flatten(0, 1), target.flatten()),
        F.cross_entropy(scores.flatten(0, 1), target.flatten(), reduction="none"),
    )


@pytest.mark.parametrize("share, matrices", [("none", 3), ("decoder", 2), ("all", 1)])
def test_shared_embeddings_are_one_matrix(share: str, matrices: int) -> None:
    model = seq2seq("conv", source_vocab=17, share_embeddings=share)
    places = (model.source_embedding, model.target_embedding, model.output)
    assert len({id(place.weight) for place in places}) == matrices
    assert sum(p.shape == (17, 8) for p in model.parameters()) == matrices


@pytest.mark.parametrize("share, sets", [("none", 3), ("decoder", 2), ("all", 1)])
def test_shared_bands_are_one_set(share: str, sets: int) -> None:
    model = seq2seq("conv", source_vocab=17, share_embeddings=share, adaptive=ADAPTIVE)
    places = (model.source_embedding, model.target_embedding, model.output)
    for place in range(3):
        assert len({id(each.words[place].weight) for each in places}) == sets
    assert len({id(each.projections) for each in places}) == (2 if share == "all" else 3)


@either_output
def test_beam_search(adaptive: object) -> None:
    model = seq2seq("mixed", adaptive=adaptive)
    source, first = source_batch(), torch.full((3,), EOS)
    with torch.inference_mode():
        state = model.start(model.encode(source), 6)
        found = beam_search(model.step, state, first, beam=3, max_len=6, eos=EOS, pad=PAD)
        for b, (best, *_) in enumerate(found):
            target = torch.tensor([best.tokens])
            target_in = torch.cat([first[:1, None], target[:, :-1]], dim=1)
            logprobs = model(source[b : b + 1], target_in).log_softmax(-1)
            expected = logprobs.gather(2, target[..., None]).flatten()
            torch.testing.assert_close(
                torch.tensor(best.logprobs).double(), expected, atol=1e-6, rtol=0
            )


def test_tied_matrices_stay_tied_on_another_device() -> None:
    config = seq2seq("conv", source_vocab=17, share_embeddings="all").config
    with torch.device("meta"):
        model = Seq2Seq(config)
    model.to_empty(device="cpu")
    assert model.output.weight is model.source_embedding.weight
