"""Questions about a passage: where dynamic convolutions need a little attention, and where not.

    python examples/question.py
    python examples/question.py --steps 3000

A passage is twelve pairs of a key and a value, all drawn anew each time; a question is one of the
keys, its answer the value beside it. A kernel is predicted from the word at its own place, so it
can look at places but not for a word. What finds a word is attention, and the paper keeps one:
the decoder's attention to the source. So there are two ways to read,

    reader      passage and questions are one text; every layer is the mixer
    translator  the passage is the source, the questions the target, as in the paper

each with self-attention and with DynamicConv as the mixer.
"""

import argparse
import time
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lightconv.models import (
    AttentionConfig,
    DynamicConvConfig,
    LanguageModel,
    LanguageModelConfig,
    MixerConfig,
    Seq2Seq,
    Seq2SeqConfig,
)

KEYS, VALUES, PAIRS, QUESTIONS, BATCH = 24, 24, 12, 6, 64
FIRST = 2  # ids below it are padding and its like
VOCAB = FIRST + KEYS + VALUES

MIXERS: dict[str, tuple[MixerConfig, ...]] = {
    "attention": (AttentionConfig(heads=4), AttentionConfig(heads=4)),
    # The two together reach 36 places, as far as the whole text.
    "dynamicconv": (DynamicConvConfig(kernel=7, heads=4), DynamicConvConfig(kernel=31, heads=4)),
}


class Reader(nn.Module):
    """A language model over the passage, then question, answer, question, answer, ..."""

    def __init__(self, mixers: tuple[MixerConfig, ...]) -> None:
        super().__init__()
        self.model = LanguageModel(
            LanguageModelConfig(dim=64, ffn_dim=128, layers=mixers, vocab=VOCAB, final_norm=True)
        )

    def forward(self, passage: Tensor, questions: Tensor, answers: Tensor) -> Tensor:
        asked = torch.stack([questions, answers], dim=2).flatten(1)
        # The scores at a question are those of what follows it: the answer is not seen.
        scores: Tensor = self.model(torch.cat([passage, asked], dim=1))
        return scores[:, passage.shape[1] :: 2]


class Translator(nn.Module):
    """Sequence to sequence: from the passage, and the questions, to the answers."""

    def __init__(self, mixers: tuple[MixerConfig, ...]) -> None:
        super().__init__()
        self.model = Seq2Seq(
            Seq2SeqConfig(
                dim=64,
                ffn_dim=128,
                source_heads=4,
                encoder=mixers[:1],
                decoder=mixers[:1],
                source_vocab=VOCAB,
                target_vocab=VOCAB,
                share_embeddings="all",
                pre_norm=True,
            )
        )

    def forward(self, passage: Tensor, questions: Tensor, answers: Tensor) -> Tensor:
        scores: Tensor = self.model(passage, questions)
        return scores


MODELS: dict[str, Callable[[tuple[MixerConfig, ...]], nn.Module]] = {
    "reader": Reader,
    "translator": Translator,
}


def draw(generator: torch.Generator, batch: int = BATCH) -> tuple[Tensor, Tensor, Tensor]:
    """Passages [B, 2 * pairs], questions [B, Q] about them, and their answers [B, Q]."""
    keys = FIRST + torch.rand(batch, KEYS, generator=generator).argsort(1)[:, :PAIRS]
    values = FIRST + KEYS + torch.rand(batch, VALUES, generator=generator).argsort(1)[:, :PAIRS]
    asked = torch.rand(batch, PAIRS, generator=generator).argsort(1)[:, :QUESTIONS]
    passage = torch.stack([keys, values], dim=2).flatten(1)
    return passage, keys.gather(1, asked), values.gather(1, asked)


def train(model: nn.Module, steps: int) -> None:
    """Every step is a batch of new passages."""
    generator = torch.Generator().manual_seed(1)
    optimizer = torch.optim.AdamW(model.parameters())
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=3e-3, total_steps=steps)
    for step in range(1, steps + 1):
        passage, questions, answers = draw(generator)
        scores = model(passage, questions, answers)
        loss = F.cross_entropy(scores.flatten(0, 1), answers.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        if step % 200 == 0:
            print(f"  step {step:4d}  loss {loss.item():.3f}", flush=True)


@torch.no_grad()
def accuracy(model: nn.Module) -> float:
    """The share of right answers about 500 new passages."""
    passage, questions, answers = draw(torch.Generator().manual_seed(2), batch=500)
    found = model(passage, questions, answers).argmax(-1)
    return float((found == answers).float().mean())


def main(argv: Sequence[str] | None = None) -> dict[str, float]:
    """Trains all four and returns their accuracies."""
    parser = argparse.ArgumentParser(description="Questions about a passage.")
    parser.add_argument("--steps", type=int, default=1000)
    args = parser.parse_args(argv)
    if args.steps < 1:
        parser.error("--steps must be at least 1")

    found, table = {}, []
    for kind, build in MODELS.items():
        for mixer, layers in MIXERS.items():
            name = f"{kind}, {mixer}"
            print(f"{name}:")
            torch.manual_seed(0)
            model, began = build(layers), time.process_time()
            train(model, args.steps)
            seconds = time.process_time() - began
            found[name] = accuracy(model)
            count = sum(parameter.numel() for parameter in model.parameters())
            table.append(f"{name:<25} {count:>10,} {found[name]:>12.1%} {seconds:>6.0f}")
    print(f"\n{'':<25} {'parameters':>10} {'answers right':>12} {'CPU s':>6}", *table, sep="\n")
    print(f"{'any value of the passage':<25} {'-':>10} {1 / PAIRS:>12.1%}")
    return found


if __name__ == "__main__":
    main()
