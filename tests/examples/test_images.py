"""Rows, then columns; and the image models run and learn."""

from types import ModuleType

import pytest
import torch
from torch import Tensor, nn

from lightconv import DynamicConv

pytest.importorskip("sklearn", reason="scikit-learn carries the images")


class Cumulative(nn.Module):
    """A mixer whose result is known: running sums along time."""

    def forward(self, x: Tensor) -> Tensor:
        return x.cumsum(1)


def test_axial_runs_along_rows_then_columns_and_flat_over_all(example: ModuleType) -> None:
    image = torch.randn(2, 3, 5, 4, dtype=torch.float64)
    torch.testing.assert_close(example.Axial(Cumulative)(image), image.cumsum(2).cumsum(1))
    flat = image.view(2, 15, 4).cumsum(1).cumsum(1).view(image.shape)
    torch.testing.assert_close(example.Flat(Cumulative)(image), flat)


def test_axial_with_dynamicconv(example: ModuleType) -> None:
    """One row and one column at a time, image by image."""
    torch.manual_seed(0)
    layer = example.Axial(lambda: DynamicConv(8, kernel=5, heads=2)).double()
    images = torch.randn(2, 3, 6, 8, dtype=torch.float64)
    for image, found in zip(images, layer(images), strict=True):
        rows = torch.cat([layer.rows(image[y, None]) for y in range(3)])
        want = torch.cat([layer.columns(rows[None, :, x]) for x in range(6)]).transpose(0, 1)
        torch.testing.assert_close(found, want)


def test_nothing_tested_was_trained_on(example: ModuleType) -> None:
    train, test = example.load()
    assert (len(train.images), len(test.images)) == (1198, 599)
    assert train.images.shape[1:] == (8, 8)
    assert 0.9 <= train.images.max() <= 1
    seen = {tuple(image.flatten().tolist()) for image in train.images}
    assert not seen & {tuple(image.flatten().tolist()) for image in test.images}


def test_the_floor_is_the_nearest_neighbour(example: ModuleType) -> None:
    from sklearn.neighbors import KNeighborsClassifier

    train, test = example.load()
    model = KNeighborsClassifier(1, algorithm="brute")
    model.fit(train.images.flatten(1).numpy(), train.classes.numpy())
    want = model.score(test.images.flatten(1).numpy(), test.classes.numpy())
    assert example.nearest(train, test) == pytest.approx(want, abs=2 / 599)


def test_models_have_about_the_same_number_of_parameters(example: ModuleType) -> None:
    counts = [
        sum(parameter.numel() for parameter in example.Classifier(make).parameters())
        for make in example.MODELS.values()
    ]
    assert max(counts) / min(counts) < 1.03


def test_it_runs(example: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    found = example.main(["--quick"])
    assert found.keys() == example.MODELS.keys()
    printed = capsys.readouterr().out
    for name in (*example.MODELS, "nearest training image"):
        assert f"\n{name} " in printed


@pytest.mark.slow
def test_dynamicconv_learns_digits(example: ModuleType) -> None:
    train, test = example.load()
    torch.manual_seed(0)
    model = example.Classifier(example.MODELS["dynamicconv, rows and columns"])
    example.train(model, train, 15)
    assert (model(test.images).argmax(1) == test.classes).float().mean() > 0.88
