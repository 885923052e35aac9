"""Checks of an installed wheel, run from the unpacked sdist without a compiler on the path."""

import os
import shutil
from pathlib import Path

os.environ["LIGHTCONV_REQUIRE_NATIVE"] = "1"

import torch

import lightconv
from lightconv import ops
from lightconv.ops.library import native

ROOT = Path(__file__).parents[1]
MODEL = ROOT / "tests" / "golden" / "end" / "pairs" / "model"


def main() -> None:
    assert (ROOT / "docs").is_dir() and (ROOT / "examples").is_dir(), f"{ROOT} lacks folders"
    assert not list(ROOT.rglob("*.so")), f"{ROOT} holds libraries"
    place = Path(lightconv.__file__).parent
    assert "site-packages" in place.parts, f"{place} is not an installed wheel"
    assert not any(map(shutil.which, ("c++", "g++", "clang++"))), "there is a compiler"
    assert str(place) in native().reason, native().reason
    torch.manual_seed(0)
    for op, shape in (("dynamicconv_softmax", (2, 40, 4, 7)), ("lightconv", (4, 7))):
        x, weight = torch.randn(2, 40, 64), torch.randn(shape)
        results = []
        for backend in ("auto", "reference"):
            leaves = [v.clone().requires_grad_() for v in (x, weight)]
            options = {"bias": x[0, 0], "activation": "silu", "residual": True}
            out = getattr(ops, op)(*leaves, 6, backend=backend, **options)
            results.append([out, *torch.autograd.grad(out.square().sum(), leaves)])
        torch.testing.assert_close(*results, atol=1e-4, rtol=1e-4)
    model = lightconv.load(MODEL)
    texts = ["A red river finds the tree."]
    found = model.translate(texts)
    assert found == model.translate(texts, engine="torch") and found[0], found
    print(f"{native().isa} kernels of {place}; {texts[0]} -> {found[0]}")


main()
