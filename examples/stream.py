"""Streaming through a causal model in chunks: the results of the whole sequence, constant memory.

    python examples/stream.py
    python examples/stream.py --tokens 1000000

A layer streams like this:

    state = layer.start(batch=1, max_len=0)   # a convolution ignores max_len
    y, state = layer.step(x, state)           # x [1, n, D]: the next n positions, any n

A language model streams in the same way, with tokens for x. Attention is shown for comparison: its
state contains all previous positions.
"""

import argparse
import itertools
import time
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from lightconv import Attention, DynamicConv
from lightconv.mixers import State
from lightconv.models import DynamicConvConfig, LanguageModel, LanguageModelConfig

DIM, VOCAB = 256, 1000
CHUNKS = (1, 7, 64, 500)  # used in turn; chunk lengths are independent of kernel widths


def build() -> LanguageModel:
    """A language model with random weights, which is enough to show streaming."""
    torch.manual_seed(0)
    kernels = (3, 7, 15, 31)
    layers = tuple(DynamicConvConfig(kernel=kernel, heads=8) for kernel in kernels)
    return LanguageModel(
        LanguageModelConfig(dim=DIM, ffn_dim=2 * DIM, layers=layers, vocab=VOCAB)
    ).eval()


def arriving(tokens: int) -> Iterator[Tensor]:
    """A stream of random tokens: chunks [1, n] of different lengths."""
    generator = torch.Generator().manual_seed(1)
    for chunk in itertools.cycle(CHUNKS):
        if tokens <= 0:
            return
        yield torch.randint(2, VOCAB, (1, min(chunk, tokens)), generator=generator)
        tokens -= chunk


def state_bytes(*states: State) -> int:
    """Bytes that are kept until the next chunk arrives."""
    return sum(tensor.nbytes for state in states for tensor in state.tensors)


def compare(model: LanguageModel, tokens: int) -> float:
    """Largest difference between the scores of a stream and those of the whole text at once."""
    text = torch.cat(list(arriving(tokens)), dim=1)
    whole = model(text)
    state = model.start(batch=1, max_len=tokens)
    parts = []
    for chunk in arriving(tokens):
        scores, state = model.step(chunk, state)
        parts.append(scores)
    return float((torch.cat(parts, dim=1) - whole).abs().max())


def run(model: LanguageModel, tokens: int) -> None:
    """Runs a long stream; only the state and the current chunk are in memory."""
    state = model.start(batch=1, max_len=tokens)
    attention = Attention(DIM, heads=8, causal=True)
    began, seen, report = time.process_time(), 0, 1000
    print(f"{'tokens seen':>12} {'state':>10} {'with attention':>15} {'CPU us/token':>13}")
    for chunk in arriving(tokens):
        _, state = model.step(chunk, state)
        seen += chunk.shape[1]
        if seen >= report or seen == tokens:
            kept = state_bytes(*state.layers)
            # State of the same number of attention layers after the same number of tokens.
            other = len(state.layers) * state_bytes(attention.start(1, seen, device="meta"))
            cost = 1e6 * (time.process_time() - began) / seen
            print(f"{seen:>12,} {kept / 1e3:>7.0f} kB {other / 1e3:>12,.0f} kB {cost:>13.0f}")
            report *= 10


def main(argv: Sequence[str] | None = None) -> float:
    """Compares, then streams; returns the largest difference found."""
    parser = argparse.ArgumentParser(description="Stream tokens through a causal model.")
    parser.add_argument("--tokens", type=int, default=100_000)
    args = parser.parse_args(argv)
    if args.tokens < 1:
        parser.error("--tokens must be at least 1")

    with torch.inference_mode():
        # First a single layer.
        layer = DynamicConv(DIM, kernel=31, heads=8, causal=True).eval()
        x, state, y = torch.randn(1, 100, DIM), layer.start(batch=1, max_len=0), []
        for part in x.split(9, dim=1):
            out, state = layer.step(part, state)
            y.append(out)
        print(
            f"one layer, chunks of 9: {(torch.cat(y, 1) - layer(x)).abs().max():.1e} from the whole"
        )

        model = build()
        difference = compare(model, min(args.tokens, 4096))
        print(f"a model, chunks of {CHUNKS}: {difference:.1e} from the whole\n")
        run(model, args.tokens)
    return difference


if __name__ == "__main__":
    main()
