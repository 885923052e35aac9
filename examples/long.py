"""Sequences of 16,384 positions and more, on two cores.

    python examples/long.py                # cost of a step, then training: a few minutes
    python examples/long.py --steps 300
    python examples/long.py --quick        # short sequences, seconds

The task: a long sequence of noise with occasional marks of four kinds. Every position has to name
the last mark. For three positions in five that mark is further back than the widest kernel reaches,
so layers have to pass it on to each other; for one in ten it is further back than all of them reach
together, unless their taps are spread out (dilation).

The cost of a step is measured for each length in a separate process, until a step takes too long:
nothing in the table is extrapolated.
"""

import argparse
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lightconv import Attention, DynamicConv

DIM, HEADS = 64, 4
KERNELS = (7, 15, 31, 31, 31, 31)
REACH = sum(KERNELS) - len(KERNELS)  # positions that the last layer reaches back: 140
DILATIONS = (1, 1, 1, 2, 4, 8)  # reach 470, with as many weights
NOISE, MARKS, RATE = 12, 4, 1 / 64
PATIENCE = 10.0  # seconds; a mixer with a slower step is not run at greater lengths

MIXERS: dict[str, Callable[[int, int], nn.Module]] = {
    "dynamicconv": lambda kernel, _: DynamicConv(DIM, kernel, HEADS, causal=True, glu=True),
    "dilated": lambda kernel, dilation: DynamicConv(
        DIM, kernel, HEADS, causal=True, glu=True, dilation=dilation
    ),
    "attention": lambda *_: Attention(DIM, HEADS, causal=True),
}


class Block(nn.Module):
    """A mixer and a feed-forward network: [B, T, D] -> [B, T, D]."""

    def __init__(self, mixer: nn.Module) -> None:
        super().__init__()
        self.mixer = mixer
        self.ffn = nn.Sequential(nn.Linear(DIM, 2 * DIM), nn.ReLU(), nn.Linear(2 * DIM, DIM))
        self.norm1, self.norm2 = nn.LayerNorm(DIM), nn.LayerNorm(DIM)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.mixer(self.norm1(x))
        out: Tensor = x + self.ffn(self.norm2(x))
        return out


def build(mixer: str) -> nn.Module:
    """Tokens [B, T] -> scores of the marks [B, T, 4]."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Embedding(NOISE + MARKS, DIM),
        *(Block(MIXERS[mixer](*each)) for each in zip(KERNELS, DILATIONS, strict=True)),
        nn.LayerNorm(DIM),
        nn.Linear(DIM, MARKS),
    )


def draw(length: int, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Tokens [1, T], the last mark at every position [1, T], the distance to it [1, T]."""
    tokens = torch.randint(NOISE, (1, length), generator=generator)
    marks = torch.randint(MARKS, (1, length), generator=generator)
    here = torch.rand(1, length, generator=generator) < RATE
    here[:, 0] = True
    times = torch.arange(length)
    last = torch.where(here, times, 0).cummax(1).values
    return torch.where(here, NOISE + marks, tokens), marks.gather(1, last), times - last


def loss(model: nn.Module, tokens: Tensor, target: Tensor) -> Tensor:
    """Mean cross-entropy over all positions: tokens and target [1, T] -> []."""
    return F.cross_entropy(model(tokens).flatten(0, 1), target.flatten())


def train(model: nn.Module, steps: int, length: int) -> None:
    """Training with one new sequence per step."""
    generator = torch.Generator().manual_seed(1)
    optimizer = torch.optim.AdamW(model.parameters())
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=6e-3, total_steps=steps)
    for step in range(1, steps + 1):
        tokens, target, _ = draw(length, generator)
        value = loss(model, tokens, target)
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        schedule.step()
        if step % 10 == 0:
            print(f"  step {step:4d}  loss {value.item():.3f}", flush=True)


@torch.no_grad()
def accuracy(model: nn.Module, length: int, sequences: int = 4) -> dict[str, float]:
    """Accuracy on new sequences, by the distance to the mark."""
    generator = torch.Generator().manual_seed(2)
    drawn = [draw(length, generator) for _ in range(sequences)]
    right = torch.cat([model(tokens).argmax(-1) == target for tokens, target, _ in drawn])
    ago = torch.cat([ago for _, _, ago in drawn])
    near, far = ago < KERNELS[-1], ago > REACH
    parts = {
        f"0 to {KERNELS[-1] - 1} back, within one kernel": near,
        f"{KERNELS[-1]} to {REACH} back, within reach of all layers": ~near & ~far,
        f"more than {REACH} back, where dilation reaches (chance: {1 / MARKS:.0%})": far,
    }
    return {name: right[part].float().mean().item() for name, part in parts.items()}


# --- cost of a step -----------------------------------------------------------------------------


def measure(mixer: str, length: int) -> None:
    """Prints CPU seconds of the faster of two forward and backward passes, and peak bytes."""
    model, generator = build(mixer), torch.Generator().manual_seed(0)
    tokens, target, _ = draw(length, generator)
    loss(model, tokens[:, :256], target[:, :256]).backward()
    before, seconds = resident("VmRSS"), []
    for _ in range(2):
        began = time.process_time()
        loss(model, tokens, target).backward()
        seconds.append(time.process_time() - began)
    print(min(seconds), resident("VmHWM") - before)


def resident(field: str) -> int:
    """Current (VmRSS) or peak (VmHWM) memory of this process in bytes; 0 if not on Linux."""
    status = Path("/proc/self/status")
    lines = status.read_text().splitlines() if status.exists() else []
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))


def print_costs(lengths: Sequence[int]) -> None:
    """Costs of each mixer at growing lengths, until a step takes too long."""
    print("one step on one sequence, forward and backward; the longest take half a minute")
    print(f"{'length':>8}" + "".join(f"{name:>14}: CPU s, MB" for name in MIXERS))
    too_long: set[str] = set()
    for length in lengths:
        print(f"{length:>8,}", end="", flush=True)
        for name in MIXERS:
            cell = "not run"
            if name not in too_long:
                command = [sys.executable, __file__, "--measure", name, str(length)]
                done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
                seconds, size = map(float, done.stdout.split())
                cell = f"{seconds:.2f} {size / 1e6:10,.0f}"
                if seconds > PATIENCE:
                    too_long.add(name)
            print(f"{cell:>25}", end="", flush=True)
        print()
    print(f"not run: the length before took more than {PATIENCE:.0f} s\n")


def main(argv: Sequence[str] | None = None) -> dict[str, float]:
    """Prints the costs, trains, and returns the accuracies on new sequences."""
    parser = argparse.ArgumentParser(description="Long sequences.")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--length", type=int, default=16_384)
    parser.add_argument("--quick", action="store_true", help="short sequences, few steps")
    parser.add_argument("--measure", nargs=2, metavar=("MIXER", "LENGTH"), help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.measure:
        measure(args.measure[0], int(args.measure[1]))
        return {}
    if args.steps < 1 or args.length < 1024:
        parser.error("--steps must be at least 1 and --length at least 1024")
    lengths = [args.length // 16, args.length // 4, args.length, args.length * 4]
    if args.quick:
        args.steps, args.length, lengths = 10, 1024, [1024]
    print_costs(lengths)

    found = {}
    for mixer in ("dynamicconv", "dilated"):
        model = build(mixer)
        print(f"{mixer}: training on sequences of {args.length:,}, {args.steps} steps")
        train(model, args.steps, args.length)
        for name, value in accuracy(model, args.length).items():
            print(f"{value:7.1%}  {name}")
            found[f"{mixer}, {name}"] = value
    return found


if __name__ == "__main__":
    main()
