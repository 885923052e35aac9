"""Learning to reverse sequences: a model trained and decoded end to end, in less than a minute.

    python examples/reverse.py
    python examples/reverse.py --mixer lightconv --steps 400

The code below `MIXERS` does not depend on the mixer.
"""

import argparse
import time
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from lightconv.data import EOS, PAD, SPECIALS, Batch
from lightconv.decode import beam_search
from lightconv.models import (
    AttentionConfig,
    AverageConfig,
    ConvConfig,
    DynamicConvConfig,
    HyenaConfig,
    LightConvConfig,
    LowRankConvConfig,
    MixerConfig,
    Seq2Seq,
    Seq2SeqConfig,
    ShortConvConfig,
)
from lightconv.train import CosineConfig, Record, TrainConfig, Trainer

# One mixer per layer, the same for encoder and decoder.
MIXERS: dict[str, tuple[MixerConfig, ...]] = {
    "attention": (AttentionConfig(heads=4), AttentionConfig(heads=4)),
    "conv": (ConvConfig(kernel=3), ConvConfig(kernel=3)),
    "lightconv": (LightConvConfig(kernel=3, heads=4), LightConvConfig(kernel=15, heads=4)),
    "dynamicconv": (DynamicConvConfig(kernel=3, heads=4), DynamicConvConfig(kernel=15, heads=4)),
    "average": (AverageConfig(ffn_dim=128), AverageConfig(ffn_dim=128)),
    "lowrankconv": (LowRankConvConfig(kernel=3), LowRankConvConfig(kernel=15)),
    "shortconv": (ShortConvConfig(kernel=3), ShortConvConfig(kernel=15)),
    "hyena": (HyenaConfig(kernel=15, heads=4), HyenaConfig(kernel=15, heads=4)),
}

VOCAB = SPECIALS + 16
WARMUP = 100


def make_batch(sentences: int, seed: int) -> Batch:
    """Random sequences of 5 to 12 symbols, and the same reversed."""
    random = torch.Generator().manual_seed(seed)
    lengths = torch.randint(5, 13, (sentences,), generator=random).tolist()
    sources = [torch.randint(SPECIALS, VOCAB, (n,), generator=random) for n in lengths]
    end, targets = torch.tensor([EOS]), [source.flip(0) for source in sources]
    return Batch(
        (pad(torch.cat([s, end]) for s in sources), pad(torch.cat([end, t]) for t in targets)),
        pad(torch.cat([t, end]) for t in targets),
    )


def pad(rows: Iterable[Tensor]) -> Tensor:
    return torch.nn.utils.rnn.pad_sequence(list(rows), batch_first=True, padding_value=PAD)


def build(mixer: str) -> Seq2Seq:
    """A tiny model, 2 + 2 layers of width 64."""
    return Seq2Seq(
        Seq2SeqConfig(
            dim=64,
            ffn_dim=128,
            source_heads=4,
            encoder=MIXERS[mixer],
            decoder=MIXERS[mixer],
            source_vocab=VOCAB,
            target_vocab=VOCAB,
            share_embeddings="all",
        )
    )


def exact_match(model: Seq2Seq, batch: Batch, beam: int = 4) -> float:
    """Share of sentences whose best hypothesis equals the target."""
    # One token more than any target needs, so that a model that does not stop fails.
    max_len = batch.target.shape[1] + 1
    source, _ = batch.inputs
    with torch.inference_mode():
        state = model.start(model.encode(source), max_len)
    first = torch.full((len(source),), EOS)
    found = beam_search(model.step, state, first, beam=beam, max_len=max_len, eos=EOS, pad=PAD)
    wanted = [[token for token in row if token != PAD] for row in batch.target.tolist()]
    right = [best.tokens == target for (best, *_), target in zip(found, wanted, strict=True)]
    return sum(right) / len(right)


def report(record: Record) -> None:
    """Prints every 50th update."""
    if record.step % 50 == 0:
        print(f"step {record.step:4d}  loss {record.loss:.3f}  rate {record.lr:.1e}", flush=True)


def main(argv: Sequence[str] | None = None) -> float:
    """Trains, decodes held-out sequences, and returns the exact-match accuracy."""
    parser = argparse.ArgumentParser(description="Learn to reverse sequences.")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--mixer", choices=MIXERS, default="dynamicconv")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args(argv)

    torch.manual_seed(args.seed)
    model = build(args.mixer)
    began = time.perf_counter()
    config = TrainConfig(
        max_steps=args.steps,
        tokens_per_update=1,
        # Ends near zero, so that no single late update can spoil a sequence.
        schedule=CosineConfig(peak=2e-3, warmup=WARMUP, period=max(1, args.steps - WARMUP)),
        label_smoothing=0.1,
    )
    trainer = Trainer(model, config)
    for step in range(1, args.steps + 1):  # one batch per update
        report(trainer.update([make_batch(32, seed=step)]))
    accuracy = exact_match(model.eval(), make_batch(200, seed=0))
    seconds = time.perf_counter() - began
    print(f"{args.mixer}: {accuracy:.1%} of held-out sequences reversed exactly, {seconds:.0f} s")
    return accuracy


if __name__ == "__main__":
    main()
