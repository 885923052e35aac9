"""Attention of an existing PyTorch model replaced by another mixer, with the weights that fit."""

from typing import Any

import torch
from torch import Tensor, nn

from lightconv.mixers.base import Mixer


class SelfMixer(nn.Module):
    """A mixer that is called like nn.MultiheadAttention: (x, x, x, ...) -> (out, None)."""

    batch_first = False  # keeps nn.TransformerEncoderLayer off its fused path, which reads weights

    def __init__(self, mixer: Mixer, time_first: bool, kept: str) -> None:
        super().__init__()
        self.mixer, self.time_first, self.kept = mixer, time_first, kept

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = False,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, None]:
        """query, key and value one [B, T, D], or [T, B, D] without batch_first -> like it."""
        name = type(self.mixer).__name__
        if query is not key or key is not value:
            raise ValueError(f"{name} mixes one sequence: query, key and value must be one tensor")
        if attn_mask is not None and not (self.mixer.causal and _is_causal_mask(attn_mask)):
            raise ValueError(
                f"{name} with causal={self.mixer.causal} takes no attn_mask but, with causal=True, "
                "that of all later positions; use from_attention(..., causal=True)"
            )
        if key_padding_mask is not None and key_padding_mask.dtype != torch.bool:
            key_padding_mask = key_padding_mask < 0  # torch's layers turn it into 0 and -inf
        x = query.transpose(0, 1) if self.time_first else query
        out: Tensor = self.mixer(x, key_padding_mask)
        return out.transpose(0, 1) if self.time_first else out, None


def _is_causal_mask(mask: Tensor) -> bool:
    hidden = mask if mask.dtype == torch.bool else mask < 0
    return torch.equal(hidden, torch.ones_like(hidden).triu(1))


def from_attention(
    model: nn.Module, mixer: type[Mixer], *arguments: Any, causal: bool = False, **options: Any
) -> nn.Module:
    """Replaces the self-attention of a model by mixers and says what it kept.

    model     nn.MultiheadAttention, whose replacement is returned, or any module that has some
              (nn.TransformerEncoderLayer, nn.TransformerEncoder, your own), which is changed in
              place; attention of a decoder to its source (`multihead_attn`) stays
    mixer     a class, and its arguments after `dim`
    returns   the model; `kept` of every `SelfMixer` in it is a sentence

    Projections of the values and of the output go on as those of the mixer where shapes are equal;
    its kernels are new, so the model needs training.

    >>> layer = nn.TransformerEncoderLayer(512, 8, batch_first=True)
    >>> layer = from_attention(layer, DynamicConv, 31, 8)
    >>> layer.self_attn.kept
    'DynamicConv kept the projections of the values and of the output of MultiheadAttention'
    """
    if isinstance(model, nn.MultiheadAttention):
        converted: nn.Module = _convert(model, mixer, *arguments, causal=causal, **options)
        return converted
    found = [
        (part, name, child)
        for part in model.modules()
        for name, child in part.named_children()
        if isinstance(child, nn.MultiheadAttention) and name != "multihead_attn"
    ]
    if not found:
        raise ValueError(f"{type(model).__name__} has no nn.MultiheadAttention of its own sequence")
    for part, name, child in found:
        setattr(part, name, _convert(child, mixer, *arguments, causal=causal, **options))
    return model


def _convert(old: nn.MultiheadAttention, mixer: Any, *arguments: Any, **options: Any) -> Any:
    like, values = old.out_proj.weight, slice(2 * old.embed_dim, None)
    new = mixer(old.embed_dim, *arguments, device=like.device, dtype=like.dtype, **options)
    packed = old.in_proj_weight is not None
    sources = {
        "in_proj": (old.in_proj_weight[values] if packed else old.v_proj_weight, old.in_proj_bias),
        "out_proj": (old.out_proj.weight, old.out_proj.bias),
    }
    kept = []
    with torch.no_grad():
        for name, (weight, bias) in sources.items():
            to = getattr(new, name, None)
            if to is None or to.weight.shape != weight.shape:
                continue
            to.weight.copy_(weight)
            if to.bias is not None and bias is not None:
                to.bias.copy_(bias[-len(to.bias) :])
            kept.append({"in_proj": "of the values", "out_proj": "of the output"}[name])
    said = f"kept the projections {' and '.join(kept)}" if kept else "kept nothing"
    new.train(old.training)
    return SelfMixer(new, not old.batch_first, f"{mixer.__name__} {said} of MultiheadAttention")
