"""Self-attention (Vaswani et al., 2017), over everything or inside a window."""

import torch
import torch.nn.functional as F
from torch import Tensor

from lightconv.mixers.attend import attend, attend_band, causal_mask, key_mask
from lightconv.mixers.base import Mixer, linear, records_gradients
from lightconv.mixers.check import check_count, check_heads, check_input, check_probability


class Attention(Mixer):
    """softmax(Q K^T / sqrt(R)) V per head, with projections: [B, T, D] -> [B, T, D].

    With `window`, a position sees that many: the last ones including itself when causal,
    otherwise window // 2 back and the rest ahead, like a kernel of that width.
    """

    settings = ("heads", "causal", "window", "dropout")

    def __init__(
        self,
        dim: int,
        *,
        heads: int,
        causal: bool = False,
        window: int | None = None,
        dropout: float = 0.0,
    ) -> None:
        super().__init__(dim, causal)
        check_heads(dim, heads)
        if window is not None:
            check_count("window", window)
        check_probability("dropout", dropout)
        self.heads = heads
        self.window = window
        self.dropout = dropout
        self.in_proj = linear(dim, 3 * dim)
        self.out_proj = linear(dim, dim)

    def forward(self, x: Tensor, padding: Tensor | None = None) -> Tensor:
        check_input(self.dim, x, padding)
        if padding is not None:
            # A weight of zero does not silence NaN (0 * NaN), so nothing of it may come in.
            x = x.masked_fill(padding.unsqueeze(-1), 0.0)
        q, k, v = self.in_proj(x).chunk(3, dim=-1)
        dropout = self.dropout if self.training else 0.0
        if self.window is not None:
            left = self.window - 1 if self.causal else self.window // 2
            sides = (left, self.window - 1 - left)
            if padding is None:
                padding = x.new_zeros(1, x.shape[1], dtype=torch.bool)
            real = F.pad(~padding, sides)
            k, v = (F.pad(each, (0, 0, *sides)) for each in (k, v))
            out = attend_band(q, k, v, real, self.heads, left=left, dropout=dropout)
        elif padding is None:
            out = attend(q, k, v, self.heads, causal=self.causal, dropout=dropout)
        else:
            mask = causal_mask(padding) if self.causal else key_mask(padding)
            out = attend(q, k, v, self.heads, mask=mask, dropout=dropout)
        result: Tensor = self.out_proj(out)
        return result

    def allocate(
        self, batch: int, max_len: int, device: torch.device, dtype: torch.dtype
    ) -> tuple[Tensor, ...]:
        """Keys and values of the past: [B, max_len, D] each; with a window, rings [B, window, D].

        Time t lives in slot t, or t % window.
        """
        slots = max_len if self.window is None else self.window
        keys = torch.zeros(batch, slots, self.dim, device=device, dtype=dtype)
        return keys, torch.zeros_like(keys)

    def advance(
        self, x: Tensor, tensors: tuple[Tensor, ...], position: int
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        past_k, past_v = tensors
        q, k, v = (each.to(past_k.dtype) for each in self.in_proj(x).chunk(3, dim=-1))
        if records_gradients(k, past_k):
            past_k, past_v = past_k.clone(), past_v.clone()
        advance = self._advance_all if self.window is None else self._advance_window
        return self.out_proj(advance(q, k, v, past_k, past_v, position=position)), (past_k, past_v)

    def _advance_all(
        self, q: Tensor, k: Tensor, v: Tensor, past_k: Tensor, past_v: Tensor, *, position: int
    ) -> Tensor:
        n, slots = q.shape[1], past_k.shape[1]
        end = position + n
        if end > slots:
            raise ValueError(
                f"position {end - 1} is beyond max_len={slots}; start with a larger max_len"
            )
        if torch.compiler.is_compiling():
            # One graph for every position, the first included: no shape may depend on it.
            times = torch.arange(n, device=q.device) + position
            past_k.index_copy_(1, times, k)
            past_v.index_copy_(1, times, v)
            seen = torch.arange(slots, device=q.device) <= times[:, None]
            return attend(q, past_k, past_v, self.heads, mask=seen)
        past_k[:, position:end] = k
        past_v[:, position:end] = v
        mask = None
        if n != 1:
            mask = torch.ones(n, end, dtype=torch.bool, device=q.device).tril(position)
        return attend(q, past_k[:, :end], past_v[:, :end], self.heads, mask=mask)

    def _advance_window(
        self, q: Tensor, k: Tensor, v: Tensor, past_k: Tensor, past_v: Tensor, *, position: int
    ) -> Tensor:
        n, slots = q.shape[1], past_k.shape[1]
        if n == 1:
            # The order of the keys means nothing to attention: the ring is read as it lies.
            slot = position % slots
            past_k[:, slot : slot + 1] = k
            past_v[:, slot : slot + 1] = v
            mask = torch.arange(slots, device=q.device) <= position
            return attend(q, past_k, past_v, self.heads, mask=mask.view(1, slots))
        oldest = position % slots
        recent_k = torch.cat([past_k.roll(-oldest, dims=1), k], dim=1)
        recent_v = torch.cat([past_v.roll(-oldest, dims=1), v], dim=1)
        newest = (position + n) % slots
        past_k.copy_(recent_k[:, n:].roll(newest, dims=1))
        past_v.copy_(recent_v[:, n:].roll(newest, dims=1))
        # recent begins at time position - slots, one before the first query's window.
        times = torch.arange(n + slots - 1, device=q.device) + (position - slots + 1)
        real = (times >= 0).unsqueeze(0)
        return attend_band(q, recent_k[:, 1:], recent_v[:, 1:], real, self.heads, left=slots - 1)
