"""Token vectors and positions."""

import math

import pytest
import torch

from lightconv.models import ConvConfig, LanguageModelConfig
from lightconv.models.embedding import TokenEmbedding, Words, add_positions, embed, sinusoids

PAD = 1


def test_embedding_starts_with_variance_one_over_dim_and_a_zero_pad_row() -> None:
    torch.manual_seed(0)
    weight = TokenEmbedding(500, 64, PAD).weight.detach()
    assert torch.all(weight[PAD] == 0.0)
    rest = torch.cat([weight[:PAD], weight[PAD + 1 :]])
    assert rest.mean().abs() < 0.005
    assert rest.std().item() == pytest.approx(64**-0.5, rel=0.02)
    words = Words(50, 16, None)  # a band without padding
    assert words.weight.abs().sum(1).min() > 0.0
    assert torch.equal(words(torch.tensor([3, 3])), words.weight[[3, 3]])


def test_embedding_is_scaled_and_padding_learns_nothing() -> None:
    embedding = TokenEmbedding(5, 16, PAD)
    x = embedding(torch.tensor([[2, PAD, 4]]))
    torch.testing.assert_close(x[0, 0], embedding.weight[2] * 4.0)
    x.sum().backward()
    assert torch.all(embedding.weight.grad[PAD] == 0.0)
    assert torch.all(embedding.weight.grad[2] == 4.0)


@pytest.mark.parametrize("dim", [1, 2, 3, 7, 8])
def test_sinusoids(dim: int) -> None:
    half = dim // 2
    table = sinusoids(torch.tensor([0, 2, 500]), dim, torch.float64)
    assert table.shape == (3, dim)
    for row, position in enumerate([0, 2, 500]):
        for i in range(half):
            angle = position * 10000.0 ** (-i / max(half - 1, 1))
            assert table[row, i].item() == pytest.approx(math.sin(angle), abs=1e-12)
            assert table[row, half + i].item() == pytest.approx(math.cos(angle), abs=1e-12)
    if dim % 2 == 1:
        assert torch.all(table[:, -1] == 0.0)
    # Half precision is rounded from float32.
    exact = sinusoids(torch.arange(2000), dim, torch.float32)
    assert torch.equal(sinusoids(torch.arange(2000), dim, torch.bfloat16), exact.bfloat16())


def test_positions_begin_behind_pad_and_count_no_padding() -> None:
    x = torch.zeros(2, 5, 6, dtype=torch.float64)
    padding = torch.tensor([[True, True, False, False, False], [False, False, False, True, True]])
    out = add_positions(x, padding, PAD)
    for real in (out[0, 2:], out[1, :3]):
        torch.testing.assert_close(real, sinusoids(torch.tensor([2, 3, 4]), 6, torch.float64))
    assert torch.all(out[padding] == 0.0)
    x, none = torch.randn(2, 9, 8, dtype=torch.float64), torch.zeros(2, 9, dtype=torch.bool)
    whole = add_positions(x, none, PAD)
    for at in range(10):
        before = add_positions(x[:, :at], none[:, :at], PAD)
        after = add_positions(x[:, at:], none[:, at:], PAD, position=at)
        torch.testing.assert_close(torch.cat([before, after], dim=1), whole, rtol=0, atol=1e-12)


def test_scores_and_nll_of_one_matrix() -> None:
    torch.manual_seed(0)
    words = TokenEmbedding(9, 4, PAD).double()
    x, target = torch.randn(6, 4, dtype=torch.float64), torch.tensor([0, 8, 3, 3, PAD, 2])
    logits = x @ words.weight.T
    torch.testing.assert_close(words.scores(x), logits)
    torch.testing.assert_close(words.scores(x.view(2, 3, 4)), logits.view(2, 3, 9))
    expected = logits.exp().sum(1).log() - logits[torch.arange(6), target]
    torch.testing.assert_close(words.nll(x, target), expected)
    with torch.autocast("cpu", torch.bfloat16):
        assert words.float().nll(x.float(), target).dtype == torch.float32
    narrow = words.bfloat16().nll(x.bfloat16(), target)
    assert narrow.dtype == torch.float32
    torch.testing.assert_close(narrow, expected.float(), atol=0.05, rtol=0)


def test_what_the_first_layer_reads() -> None:
    config = LanguageModelConfig(
        dim=16, ffn_dim=8, layers=(ConvConfig(kernel=1),), vocab=5, dropout=0.25
    )
    torch.manual_seed(0)
    embedding = TokenEmbedding(5, 16, PAD)
    tokens = torch.tensor([[2, 4, 3, PAD]]).repeat(50, 1)
    quiet = embed(embedding.eval(), tokens, config, position=7)
    positions = sinusoids(torch.tensor([9, 10, 11, 12]), 16, torch.float32)
    words = embedding.weight[[2, 4, 3]] * 4.0
    torch.testing.assert_close(quiet[0, :3], words + positions[:3])
    assert torch.all(quiet[:, 3] == 0.0)
    loud = embed(embedding.train(), tokens, config, position=7)[:, :3]
    kept = loud != 0.0
    assert kept.float().mean().item() == pytest.approx(0.75, abs=0.05)
    torch.testing.assert_close(loud[kept], quiet[:, :3][kept] / 0.75)
