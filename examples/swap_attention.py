"""Replacing the attention of your own model by DynamicConv: three lines, the rest is unchanged.

    python examples/swap_attention.py
    python examples/swap_attention.py --steps 1000 --length 1024

The model below is plain PyTorch and does not use lightconv. It learns to predict the next character
of Python's standard library and is evaluated on unseen modules.
"""

import argparse
import ast
import time
from collections.abc import Sequence
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

DIM, HEADS, LAYERS, BATCH = 128, 4, 4, 4
HELD_OUT = ("heapq", "textwrap")


# --- the model ----------------------------------------------------------------------------------


class SelfAttention(nn.Module):
    """Causal self-attention: [B, T, D] -> [B, T, D]."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(DIM, 3 * DIM)
        self.out = nn.Linear(DIM, DIM)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (y.unflatten(2, (HEADS, -1)).transpose(1, 2) for y in self.qkv(x).chunk(3, -1))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        out: Tensor = self.out(y.transpose(1, 2).flatten(2))
        return out


class Block(nn.Module):
    """A pre-norm Transformer layer: [B, T, D] -> [B, T, D]."""

    def __init__(self) -> None:
        super().__init__()
        self.attention: nn.Module = SelfAttention()
        self.ffn = nn.Sequential(nn.Linear(DIM, 4 * DIM), nn.ReLU(), nn.Linear(4 * DIM, DIM))
        self.norm1, self.norm2 = nn.LayerNorm(DIM), nn.LayerNorm(DIM)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        out: Tensor = x + self.ffn(self.norm2(x))
        return out


class CharacterModel(nn.Module):
    """Bytes [B, T] -> logits of the next byte [B, T, 128]."""

    def __init__(self, length: int) -> None:
        super().__init__()
        self.bytes, self.places = nn.Embedding(128, DIM), nn.Embedding(length, DIM)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.norm, self.output = nn.LayerNorm(DIM), nn.Linear(DIM, 128)

    def forward(self, text: Tensor) -> Tensor:
        x = self.bytes(text) + self.places.weight[: text.shape[1]]
        out: Tensor = self.output(self.norm(self.blocks(x)))
        return out


# --- the swap -----------------------------------------------------------------------------------


def swap(model: CharacterModel) -> CharacterModel:
    """Replaces attention by dynamic convolutions."""
    from lightconv import DynamicConv

    for block in model.blocks:
        block.attention = DynamicConv(DIM, kernel=31, heads=HEADS, causal=True)
    return model


# --- training and measuring, the same for both --------------------------------------------------


def read_library() -> tuple[Tensor, Tensor]:
    """Source of Python's standard library as bytes: training text and held-out text."""
    folder = Path(ast.__file__).parent
    modules = {path.stem: path.read_bytes() for path in sorted(folder.glob("*.py"))}
    held_out = b"".join(modules.pop(name) for name in HELD_OUT)
    texts = (bytearray(b"".join(modules.values())), bytearray(held_out))
    train, test = (torch.frombuffer(text, dtype=torch.uint8).long() for text in texts)
    return train.clamp(max=127), test.clamp(max=127)


def loss(model: CharacterModel, text: Tensor) -> Tensor:
    """Nats per character: text [B, T + 1] -> []."""
    return F.cross_entropy(model(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten())


def train(model: CharacterModel, text: Tensor, steps: int, length: int) -> float:
    """Trains on random segments of the text; returns CPU seconds per step."""
    torch.manual_seed(1)  # the same segments for every model
    optimizer = torch.optim.AdamW(model.parameters())
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=2e-3, total_steps=steps)
    windows = text.unfold(0, length + 1, 1)
    began = time.process_time()  # excludes the time of other programs
    for step in range(1, steps + 1):
        value = loss(model, windows[torch.randint(len(windows), (BATCH,))])
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        schedule.step()
        if step % 50 == 0:
            print(f"  step {step:4d}  loss {value.item():.3f}", flush=True)
    return (time.process_time() - began) / steps


@torch.no_grad()
def held_out_loss(model: CharacterModel, text: Tensor, length: int) -> float:
    """Nats per character of the whole text, in segments of `length`."""
    stretches = text[: len(text) // (length + 1) * (length + 1)].view(-1, length + 1)
    return sum(len(rows) * loss(model, rows).item() for rows in stretches.split(16)) / len(
        stretches
    )


def main(argv: Sequence[str] | None = None) -> dict[str, float]:
    """Trains both models and returns their held-out losses."""
    parser = argparse.ArgumentParser(description="Swap attention for DynamicConv.")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--length", type=int, default=512)
    args = parser.parse_args(argv)
    if args.steps < 1 or not 1 <= args.length <= 4096:
        parser.error("--steps must be at least 1 and --length between 1 and 4096")

    text, held_out = read_library()
    losses, table = {}, [f"{'':<12} {'parameters':>10} {'held-out loss':>14} {'ms per step':>12}"]
    for name, swapped in (("attention", False), ("dynamicconv", True)):
        print(f"{name}:")
        torch.manual_seed(0)
        model = CharacterModel(args.length)
        if swapped:
            swap(model)
        seconds = train(model, text, args.steps, args.length)
        losses[name] = held_out_loss(model, held_out, args.length)
        count = sum(parameter.numel() for parameter in model.parameters())
        table.append(f"{name:<12} {count:>10,} {losses[name]:>14.3f} {1e3 * seconds:>12.0f}")
    print("", *table, sep="\n")
    return losses


if __name__ == "__main__":
    main()
