"""DynamicConv in an image model, which the paper leaves to future work, on scikit-learn's digits.

    pip install 'lightconv[examples]'      # scikit-learn, which includes the 1,797 images
    python examples/images.py
    python examples/images.py --seeds 1 --epochs 5
    python examples/images.py --quick

The layer has one dimension, an image has two: `Axial` runs along the rows, then the columns. The
same model with attention, along rows and columns or over all pixels at once, has about the same
number of parameters (3 % more) and is trained in the same way. None of them is tuned.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lightconv import Attention, DynamicConv

SIDE, CLASSES = 8, 10
DIM, HEADS, LAYERS, BATCH = 32, 4, 2, 32


class Axial(nn.Module):
    """One mixer along the rows, another along the columns: [B, Y, X, D] -> [B, Y, X, D]."""

    def __init__(self, make: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.rows, self.columns = make(), make()

    def forward(self, image: Tensor) -> Tensor:
        B, Y, X, D = image.shape
        x: Tensor = self.rows(image.reshape(B * Y, X, D)).view(B, Y, X, D)
        x = self.columns(x.transpose(1, 2).reshape(B * X, Y, D)).view(B, X, Y, D)
        return x.transpose(1, 2)


class Flat(nn.Module):
    """Two mixers over all pixels as one sequence: [B, Y, X, D] -> [B, Y, X, D]."""

    def __init__(self, make: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.first, self.second = make(), make()

    def forward(self, image: Tensor) -> Tensor:
        x: Tensor = self.second(self.first(image.flatten(1, 2)))
        return x.view(image.shape)


def dynamicconv() -> nn.Module:
    # 15 taps connect any two pixels of a row of eight.
    return DynamicConv(DIM, kernel=2 * SIDE - 1, heads=HEADS)


def attention() -> nn.Module:
    return Attention(DIM, heads=HEADS)


MODELS: dict[str, Callable[[], nn.Module]] = {
    "dynamicconv, rows and columns": lambda: Axial(dynamicconv),
    "attention, rows and columns": lambda: Axial(attention),
    "attention, all pixels": lambda: Flat(attention),
}


class Block(nn.Module):
    """An image mixer and a feed-forward network: [B, Y, X, D] -> [B, Y, X, D]."""

    def __init__(self, mixer: nn.Module) -> None:
        super().__init__()
        self.mixer = mixer
        self.ffn = nn.Sequential(nn.Linear(DIM, 2 * DIM), nn.ReLU(), nn.Linear(2 * DIM, DIM))
        self.norm1, self.norm2 = nn.LayerNorm(DIM), nn.LayerNorm(DIM)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.mixer(self.norm1(x))
        out: Tensor = x + self.ffn(self.norm2(x))
        return out


class Classifier(nn.Module):
    """Grey values [B, Y, X] -> scores of the classes [B, 10]."""

    def __init__(self, make: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.pixel = nn.Linear(1, DIM)
        self.place = nn.Parameter(0.1 * torch.randn(SIDE, SIDE, DIM))
        self.blocks = nn.Sequential(*(Block(make()) for _ in range(LAYERS)))
        self.norm, self.output = nn.LayerNorm(DIM), nn.Linear(DIM, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        x = self.blocks(self.pixel(images[..., None]) + self.place)
        out: Tensor = self.output(self.norm(x).mean((1, 2)))
        return out


class Digits(NamedTuple):
    """Grey values [N, 8, 8] in [0, 1] and classes [N]."""

    images: Tensor
    classes: Tensor


def load() -> tuple[Digits, Digits]:
    """The first two thirds for training, the last for testing: harder than a random split."""
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        sys.exit(
            "error: the images come with scikit-learn, which is not installed. "
            "Run: pip install scikit-learn"
        )
    found = load_digits()
    images = torch.tensor(found.images, dtype=torch.float32) / 16
    classes, cut = torch.tensor(found.target), len(images) * 2 // 3
    return Digits(images[:cut], classes[:cut]), Digits(images[cut:], classes[cut:])


def nearest(train: Digits, test: Digits) -> float:
    """Baseline: the accuracy of the class of the nearest training image."""
    found = torch.cdist(test.images.flatten(1), train.images.flatten(1)).argmin(1)
    return (train.classes[found] == test.classes).float().mean().item()


def train(model: nn.Module, digits: Digits, epochs: int) -> None:
    """Training with AdamW; the last, smaller batch of an epoch is dropped."""
    batches = len(digits.images) // BATCH
    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr=3e-3, total_steps=epochs * batches
    )
    for _ in range(epochs):
        for rows in torch.randperm(len(digits.images)).split(BATCH)[:batches]:
            loss = F.cross_entropy(model(digits.images[rows]), digits.classes[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()


def main(argv: Sequence[str] | None = None) -> dict[str, float]:
    """Trains every model once per seed and returns their mean accuracies on the test images."""
    parser = argparse.ArgumentParser(description="DynamicConv in an image model.")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=25)
    parser.add_argument("--quick", action="store_true", help="one seed, one epoch")
    args = parser.parse_args(argv)
    if args.seeds < 1 or args.epochs < 1:
        parser.error("--seeds and --epochs must be at least 1")
    if args.quick:
        args.seeds, args.epochs = 1, 1

    digits, test = load()
    means, table = {}, []
    for name, make in MODELS.items():
        found, began = [], time.process_time()
        for seed in range(args.seeds):
            torch.manual_seed(seed)
            model = Classifier(make)
            train(model, digits, args.epochs)
            with torch.no_grad():
                right = model(test.images).argmax(1) == test.classes
            found.append(100 * right.float().mean().item())
            print(f"  {name}, seed {seed}: {found[-1]:.1f} %", flush=True)
        seconds = (time.process_time() - began) / args.seeds
        means[name] = statistics.mean(found)
        spread = f"{statistics.stdev(found):.1f}" if len(found) > 1 else "-"
        count = sum(parameter.numel() for parameter in model.parameters())
        table.append(f"{name:<30} {count:>10,} {means[name]:>10.1f} {spread:>10} {seconds:>6.0f}")
    floor = 100 * nearest(digits, test)
    print(f"\n{'':<30} {'parameters':>10} {'accuracy %':>10} {'deviation':>10} {'CPU s':>6}")
    print(*table, f"{'nearest training image':<30} {'-':>10} {floor:>10.1f}", sep="\n")
    return means


if __name__ == "__main__":
    main()
