"""Questions about a passage: kernels do half of the work, attention the other half.

    python examples/question.py
    python examples/question.py --seeds 1 --steps 2000

A passage is six random pairs of a key and a value; a question is one of the keys, its answer the
value after it. The model needs two abilities. A value has to be combined with the key before it: a
question of position, which a kernel knows and attention has to infer from position embeddings. And
a question has to find the value of its key: a search for a word, which attention can do and a
kernel, predicted from the word at its own position, cannot.

    reader      passage and questions are one text, for a language model
    translator  the passage is the source and the questions are the target; the decoder attends
                to the source, as in all of the paper's models
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

KEYS, VALUES, PAIRS, QUESTIONS, BATCH = 12, 12, 6, 6, 64
FIRST = 2  # lower ids are special tokens such as padding
VOCAB = FIRST + KEYS + VALUES

MIXERS: dict[str, tuple[MixerConfig, ...]] = {
    "attention": (AttentionConfig(heads=4), AttentionConfig(heads=4)),
    # 31 positions cover the whole text, so its failures are not due to a short reach.
    "dynamicconv": (DynamicConvConfig(kernel=3, heads=4), DynamicConvConfig(kernel=31, heads=4)),
    "dynamicconv, attention": (DynamicConvConfig(kernel=3, heads=4), AttentionConfig(heads=4)),
}


class Reader(nn.Module):
    """A language model over passage and questions; it predicts the answers at the questions."""

    def __init__(self, mixers: tuple[MixerConfig, ...]) -> None:
        super().__init__()
        self.model = LanguageModel(
            LanguageModelConfig(dim=64, ffn_dim=128, layers=mixers, vocab=VOCAB, final_norm=True)
        )

    def forward(self, passage: Tensor, questions: Tensor) -> Tensor:
        """Passage [B, P] and questions [B, Q] -> scores of the answers [B, Q, V]."""
        scores: Tensor = self.model(torch.cat([passage, questions], dim=1))
        return scores[:, passage.shape[1] :]


class Translator(nn.Module):
    """Sequence to sequence: the passage is the source, the questions are the target."""

    def __init__(self, mixers: tuple[MixerConfig, ...]) -> None:
        super().__init__()
        self.model = Seq2Seq(
            Seq2SeqConfig(
                dim=64,
                ffn_dim=128,
                source_heads=4,
                encoder=mixers,
                decoder=mixers[:1],
                source_vocab=VOCAB,
                target_vocab=VOCAB,
                share_embeddings="all",
                pre_norm=True,
            )
        )

    def forward(self, passage: Tensor, questions: Tensor) -> Tensor:
        """Passage [B, P] and questions [B, Q] -> scores of the answers [B, Q, V]."""
        scores: Tensor = self.model(passage, questions)
        return scores


MODELS: dict[str, Callable[[], nn.Module]] = {
    "reader: attention": lambda: Reader(MIXERS["attention"]),
    "reader: dynamicconv": lambda: Reader(MIXERS["dynamicconv"]),
    "reader: dynamicconv, attention": lambda: Reader(MIXERS["dynamicconv, attention"]),
    "translator: attention": lambda: Translator(MIXERS["attention"]),
    "translator: dynamicconv": lambda: Translator(MIXERS["dynamicconv"]),
}


def draw(generator: torch.Generator, batch: int = BATCH) -> tuple[Tensor, Tensor, Tensor]:
    """Passages [B, 2 * pairs], questions [B, Q] about them, and their answers [B, Q]."""
    keys = FIRST + torch.rand(batch, KEYS, generator=generator).argsort(1)[:, :PAIRS]
    values = FIRST + KEYS + torch.rand(batch, VALUES, generator=generator).argsort(1)[:, :PAIRS]
    asked = torch.rand(batch, PAIRS, generator=generator).argsort(1)[:, :QUESTIONS]
    passage = torch.stack([keys, values], dim=2).flatten(1)
    return passage, keys.gather(1, asked), values.gather(1, asked)


def train(model: nn.Module, steps: int, seed: int) -> None:
    """Training with a batch of new passages per step."""
    generator = torch.Generator().manual_seed(1000 + seed)
    optimizer = torch.optim.AdamW(model.parameters())
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=3e-3, total_steps=steps)
    for step in range(1, steps + 1):
        passage, questions, answers = draw(generator)
        scores = model(passage, questions)
        loss = F.cross_entropy(scores.flatten(0, 1), answers.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        if step % 200 == 0:
            print(f"  seed {seed}  step {step:4d}  loss {loss.item():.3f}", flush=True)


@torch.no_grad()
def accuracy(model: nn.Module) -> float:
    """The share of right answers about 500 new passages."""
    passage, questions, answers = draw(torch.Generator().manual_seed(2), batch=500)
    found = model(passage, questions).argmax(-1)
    return float((found == answers).float().mean())


def main(argv: Sequence[str] | None = None) -> dict[str, list[float]]:
    """Trains all five, once per seed, and returns their accuracies."""
    parser = argparse.ArgumentParser(description="Questions about a passage.")
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--seeds", type=int, default=3)
    args = parser.parse_args(argv)
    if args.steps < 1 or args.seeds < 1:
        parser.error("--steps and --seeds must be at least 1")

    found: dict[str, list[float]] = {}
    table = []
    for name, build in MODELS.items():
        print(name)
        began, found[name] = time.process_time(), []
        for seed in range(args.seeds):
            torch.manual_seed(seed)
            model = build()
            train(model, args.steps, seed)
            found[name].append(accuracy(model))
        seconds = (time.process_time() - began) / args.seeds
        count = sum(parameter.numel() for parameter in model.parameters())
        shares = " ".join(f"{share:>7.1%}" for share in found[name])
        table.append(f"{name:<30} {count:>10,} {seconds:>6.0f}   {shares}")
    print(
        f"\n{'':<30} {'parameters':>10} {'CPU s':>6}   answers right, seed by seed",
        *table,
        sep="\n",
    )
    print(f"{'any value of the passage':<30} {'-':>10} {'-':>6}   {1 / PAIRS:>7.1%}")
    return found


if __name__ == "__main__":
    main()
