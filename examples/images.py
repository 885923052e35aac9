"""DynamicConv in an image model: the question that the paper leaves open, on scikit-learn's digits.

    pip install 'lightconv[examples]'      # scikit-learn, which carries the 1,797 images
    python examples/images.py
    python examples/images.py --seeds 1 --epochs 5
    python examples/images.py --quick

The layer knows one dimension, an image has two: `Axial` runs along the rows, then along the columns.
The same model with attention, along rows and columns or over all pixels at once, has the same number
of parameters within four per cent and is trained in the same way. Nothing is tuned for any of them.
"""

import argparse
import statistics
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
        image = self.rows(image.reshape(B * Y, X, D)).view(B, Y, X, D).transpose(1, 2)
        return self.columns(image.reshape(B * X, Y, D)).view(B, X, Y, D).transpose(1, 2)


class Flat(nn.Module):
    """Two mixers over all pixels as one sequence: [B, Y, X, D] -> [B, Y, X, D]."""

    def __init__(self, make: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.first, self.second = make(), make()

    def forward(self, image: Tensor) -> Tensor:
        return self.second(self.first(image.flatten(1, 2))).view(image.shape)


def dynamicconv() -> nn.Module:
    # 15 taps reach from every pixel of a row of eight to every other.
    return DynamicConv(DIM, kernel=2 * SIDE - 1, heads=HEADS)


def attention() -> nn.Module:
    return Attention(DIM, heads=HEADS)


MODELS: dict[str, Callable[[], nn.Module]] = {
    "dynamicconv, rows and columns": lambda: Axial(dynamicconv),
    "attention, rows and columns": lambda: Axial(attention),
    "attention, all pixels": lambda: Flat(attention),
}


class Block(nn.Module):
    """A mixer of the image and a feed-forward network: [B, Y, X, D] -> [B, Y, X, D]."""

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
    """Two thirds to train on, one third to test, in the file's order: other people wrote the rest."""
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        raise SystemExit("error: the images come with scikit-learn: pip install scikit-learn")
    found = load_digits()
    images = torch.tensor(found.images, dtype=torch.float32) / 16
    classes, cut = torch.tensor(found.target), len(images) * 2 // 3
    return Digits(images[:cut], classes[:cut]), Digits(images[cut:], classes[cut:])


def nearest(train: Digits, test: Digits) -> float:
    """The floor: every image gets the class of the training image nearest to it."""
    found = torch.cdist(test.images.flatten(1), train.images.flatten(1)).argmin(1)
    return (train.classes[found] == test.classes).float().mean().item()


def run(make: Callable[[], nn.Module], train: Digits, test: Digits, seed: int, epochs: int):
    torch.manual_seed(seed)
    model = Classifier(make)
    steps = epochs * (len(train.images) // BATCH)
    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=3e-3, total_steps=steps)
    began = time.process_time()
    for step in range(steps):
        if step % (steps // epochs) == 0:
            order = torch.randperm(len(train.images)).split(BATCH)
        rows = order[step % (steps // epochs)]
        loss = F.cross_entropy(model(train.images[rows]), train.classes[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    seconds = time.process_time() - began
    with torch.no_grad():
        right = model(test.images).argmax(1) == test.classes
    return right.float().mean().item(), seconds, sum(p.numel() for p in model.parameters())

if __name__ == "__main__":
    import sys
    a, b = load(); print(nearest(a, b))
    for name, m in MODELS.items():
        print(name, run(m, a, b, 0, int(sys.argv[1])), flush=True)
