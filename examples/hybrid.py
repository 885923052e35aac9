"""Language models of equal size: attention, dynamic convolutions, and a hybrid of both.

    python examples/hybrid.py --text FOLDER   # WikiText-2: wiki.train.tokens, wiki.valid.tokens
    python examples/hybrid.py --steps 100     # words of Python's standard library

A hybrid is a configuration: attention in every third layer, gated short convolutions, dynamic
convolutions or anything else of `MIXERS` in the others. The feed-forward networks are widened until
all models have as many parameters as the one of attention.
"""

import argparse
import ast
import math
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from lightconv.models import (
    AttentionConfig,
    DynamicConvConfig,
    LanguageModel,
    LanguageModelConfig,
    MixerConfig,
    ShortConvConfig,
)

DIM, FFN, HEADS, LENGTH, BATCH, UNKNOWN = 128, 512, 4, 64, 8, 2
ATTENTION, DYNAMIC = (
    AttentionConfig(heads=HEADS),
    DynamicConvConfig(kernel=15, heads=HEADS, glu=True),
)
STACKS: dict[str, tuple[MixerConfig, ...]] = {
    "attention": (ATTENTION,) * 6,
    "dynamicconv": (DYNAMIC,) * 6,
    "hybrid: dynamicconv, attention": (DYNAMIC, DYNAMIC, ATTENTION) * 2,
    "hybrid: shortconv, attention": (ShortConvConfig(), ShortConvConfig(), ATTENTION) * 2,
}


def read(folder: Path | None, most: int = 10_000) -> tuple[Tensor, Tensor, int]:
    """Ids of the training text and of the validation text, and the size of the vocabulary."""
    if folder is None:
        paths = sorted(Path(ast.__file__).parent.glob("*.py"))
        texts = [
            "".join(p.read_text("utf-8", "replace") for p in part)
            for part in (paths[10:], paths[:10])
        ]
    else:
        texts = [(folder / f"wiki.{part}.tokens").read_text("utf-8") for part in ("train", "valid")]
    words = [text.replace("\n", " <eos> ").split() for text in texts]
    known = {
        word: i for i, (word, _) in enumerate(Counter(words[0]).most_common(most), UNKNOWN + 1)
    }
    train, valid = (torch.tensor([known.get(word, UNKNOWN) for word in part]) for part in words)
    return train, valid, len(known) + UNKNOWN + 1


def count(model: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def build(layers: tuple[MixerConfig, ...], vocab: int, size: int | None = None) -> LanguageModel:
    """A model of those layers, with about `size` parameters if given."""
    torch.manual_seed(0)
    config = LanguageModelConfig(
        dim=DIM, ffn_dim=FFN, layers=layers, vocab=vocab, final_norm=True, dropout=0.1
    )
    model = LanguageModel(config)
    if size is None or count(model) == size:
        return model
    missing = (size - count(model)) / (len(layers) * (2 * DIM + 1))
    return LanguageModel(LanguageModelConfig(**{**vars(config), "ffn_dim": FFN + round(missing)}))


def loss(model: LanguageModel, rows: Tensor) -> Tensor:
    """Nats per word: rows [B, T + 1] -> []."""
    return F.cross_entropy(model(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten())


def train(model: LanguageModel, text: Tensor, steps: int) -> float:
    """Trains on random segments, the same for every model; returns CPU seconds per step."""
    torch.manual_seed(1)
    optimizer = torch.optim.AdamW(model.parameters())
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=3e-3, total_steps=steps)
    windows, began = text.unfold(0, LENGTH + 1, 1), time.process_time()
    for step in range(1, steps + 1):
        value = loss(model, windows[torch.randint(len(windows), (BATCH,))])
        optimizer.zero_grad()
        value.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 100 == 0:
            print(f"  step {step:4d}  loss {value.item():.3f}", flush=True)
    return (time.process_time() - began) / steps


@torch.no_grad()
def perplexity(model: LanguageModel, text: Tensor) -> float:
    """Perplexity of the text in segments of LENGTH words, each alone."""
    model.eval()
    rows = text[: len(text) // (LENGTH + 1) * (LENGTH + 1)].view(-1, LENGTH + 1)[:400]
    return math.exp(sum(len(r) * loss(model, r).item() for r in rows.split(16)) / len(rows))


def main(argv: Sequence[str] | None = None) -> dict[str, float]:
    """Trains all of them and returns their perplexities."""
    parser = argparse.ArgumentParser(description="Attention, convolutions and hybrids of one size.")
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--text", type=Path, help="folder of WikiText-2 as it is distributed")
    args = parser.parse_args(argv)
    if args.steps < 2:
        parser.error("--steps must be at least 2")
    text, valid, vocab = read(args.text)
    size, found = count(build(STACKS["attention"], vocab)), {}
    table = [f"{'':<32} {'parameters':>10} {'CPU ms per step':>16} {'perplexity':>11}"]
    for name, layers in STACKS.items():
        print(name)
        model = build(layers, vocab, size)
        seconds = train(model, text, args.steps)
        found[name] = perplexity(model, valid)
        table.append(f"{name:<32} {count(model):>10,} {1e3 * seconds:>16.0f} {found[name]:>11.1f}")
    print("", *table, sep="\n")
    return found


if __name__ == "__main__":
    main()
