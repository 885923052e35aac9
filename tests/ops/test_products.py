"""The library of fp32 products: measured once, exact, restored; refused if it rounds."""

import threading
from pathlib import Path

import pytest
import torch

from lightconv.ops import products
from lightconv.ops.products import ProductSpeeds, choose, choose_precision, probe, using


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LIGHTCONV_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("LIGHTCONV_PRODUCTS", raising=False)
    probe.cache_clear()


def setting() -> str:
    found: str = torch.backends.mkldnn.matmul.fp32_precision  # type: ignore[attr-defined]
    return found


@pytest.mark.parametrize(
    ("speeds", "library"),
    [
        (ProductSpeeds(200, 500, 900, 1e-6), "onednn"),
        (ProductSpeeds(200, 500, 900, 4e-3), "default"),
        (ProductSpeeds(200, 205, 900, 1e-6), "default"),
    ],
)
def test_the_faster_exact_library_is_chosen(
    speeds: ProductSpeeds, library: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(products, "probe", lambda *arguments: speeds)
    assert choose() == library
    monkeypatch.setenv("LIGHTCONV_PRODUCTS", "default")
    assert choose() == "default"
    monkeypatch.setenv("LIGHTCONV_PRODUCTS", "onednn")
    if speeds.error < 1e-4:
        assert choose("default") == "onednn"
    else:
        with pytest.raises(ValueError, match=r"error on this processor is 4\.0e-03"):
            choose()
    monkeypatch.setenv("LIGHTCONV_PRODUCTS", "mkl")
    with pytest.raises(ValueError, match="expected one of auto, default, onednn"):
        choose()


def test_precision_follows_the_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu = torch.device("cpu")
    found = {"now": ProductSpeeds(200, 500, 900, 1e-6)}
    monkeypatch.setattr(products, "probe", lambda *arguments: found["now"])
    assert choose_precision("auto", cpu) == "bf16"
    found["now"] = ProductSpeeds(200, 500, 600, 1e-6)
    assert choose_precision("auto", cpu) == "fp32"
    found["now"] = ProductSpeeds(200, 500, 600, 4e-3)  # oneDNN is not exact
    assert choose_precision("auto", cpu) == "bf16"
    assert choose_precision("fp32", cpu) == "fp32"
    assert choose_precision("auto", torch.device("meta")) == "fp32"


def test_a_measurement_is_kept_and_a_damaged_one_repeated(tmp_path: Path) -> None:
    path = tmp_path / "cache" / "products.json"
    first = probe((64, 64))
    probe.cache_clear()
    assert probe((64, 64)) == first
    assert probe((64, 32)) != first  # beside the other
    path.write_text("{")
    probe.cache_clear()
    before = torch.get_num_threads()
    assert probe((64, 64)).default > 0
    assert torch.get_num_threads() == before
    assert path.read_text().endswith("}")


def test_the_chosen_library_is_exact_in_every_product() -> None:
    torch.manual_seed(0)
    x, weight = torch.randn(300, 96), torch.randn(200, 96)
    leaves = [each.clone().requires_grad_() for each in (x, weight)]
    exact = [each.double().requires_grad_() for each in (x, weight)]
    with using(choose()):
        out = leaves[0] @ leaves[1].t()
        out.backward(out.detach())
    wanted = exact[0] @ exact[1].t()
    wanted.backward(wanted.detach())
    pairs = [(out, wanted), *((a.grad, b.grad) for a, b in zip(leaves, exact, strict=True))]
    for found, right in pairs:
        assert found is not None and right is not None
        assert float(((found - right).abs().max() / right.abs().max()).detach()) < 2e-5


def test_the_last_of_several_threads_restores_the_setting() -> None:
    before, inside, leave = setting(), threading.Event(), threading.Event()

    def other() -> None:
        with using("onednn"):
            inside.set()
            leave.wait(10)

    thread = threading.Thread(target=other)
    with pytest.raises(KeyError), using("onednn"):
        thread.start()
        inside.wait(10)
        raise KeyError
    assert setting() == "bf16"
    leave.set()
    thread.join()
    assert setting() == before
