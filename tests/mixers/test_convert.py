"""Attention of torch's own layers replaced by mixers."""

import pytest
import torch
from torch import nn

from lightconv import Attention, DynamicConv, LightConv, from_attention

D, H = 8, 2


@pytest.mark.parametrize("batch_first", [True, False])
def test_projections_and_padding_go_on(batch_first: bool) -> None:
    torch.manual_seed(0)
    old = nn.MultiheadAttention(D, H, batch_first=batch_first)
    new = from_attention(old, LightConv, 1, 1)  # a kernel of one weight, which softmax makes 1
    assert "of the values and of the output" in new.kept
    x = torch.randn(3, 5, D)
    weight, bias = old.in_proj_weight[2 * D :], old.in_proj_bias[2 * D :]
    expected = old.out_proj(x @ weight.T + bias)
    given = x if batch_first else x.transpose(0, 1)
    out, none = new(given, given, given)
    assert none is None
    torch.testing.assert_close(out if batch_first else out.transpose(0, 1), expected)


@pytest.mark.parametrize("training", [True, False])
def test_a_whole_encoder(training: bool) -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(D, H, 16, dropout=0.0, batch_first=True)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    found = from_attention(model, DynamicConv, 3, H).train(training)
    assert found is model
    x = torch.randn(2, 6, D)
    padding = torch.tensor([[False] * 6, [False] * 4 + [True] * 2])
    out = model(x, src_key_padding_mask=padding)
    torch.testing.assert_close(out[1, :4], model(x[1:, :4])[0])
    mask = nn.Transformer.generate_square_subsequent_mask(6)
    with pytest.raises(ValueError, match="DynamicConv with causal=False takes no attn_mask"):
        model(x, mask)
    causal = from_attention(nn.TransformerEncoder(layer, 1), DynamicConv, 3, H, causal=True)
    causal.train(training)
    late = x.clone()
    late[:, 4:] = 0.0
    torch.testing.assert_close(causal(late, mask)[:, :4], causal(x, mask)[:, :4])
    with pytest.raises(ValueError, match="takes no attn_mask but"):
        causal(x, torch.zeros(6, 6))


def test_kept_says_the_truth() -> None:
    old = nn.MultiheadAttention(D, H)
    assert "kept the projections of the output of" in from_attention(old, Attention, H).kept
    gated = from_attention(old, DynamicConv, 3, H, glu=True)
    assert "kept the projections of the output of" in gated.kept
    assert torch.equal(gated.mixer.out_proj.weight, old.out_proj.weight)
    decoder = nn.TransformerDecoderLayer(D, H, 16)
    from_attention(decoder, DynamicConv, 3, H, causal=True)
    assert isinstance(decoder.multihead_attn, nn.MultiheadAttention)
    with pytest.raises(ValueError, match=r"Linear has no nn\.MultiheadAttention"):
        from_attention(nn.Linear(2, 2), DynamicConv, 3, 1)
    with pytest.raises(ValueError, match="query, key and value must be one tensor"):
        gated(torch.zeros(2, 1, D), torch.zeros(2, 1, D), torch.zeros(2, 1, D))
