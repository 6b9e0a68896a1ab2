"""The table of networks."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torchvision import models as zoo

from src.models import MODELS, build_model
from src.models.digits_cnn import _grid


@pytest.mark.parametrize("name", MODELS)
def test_least_image_size_trains(name: str) -> None:
    spec = MODELS[name]
    model = build_model(name, num_classes=5, channels=spec.channels or 1)
    logits = model(torch.randn(2, spec.channels or 1, spec.min_image_size, spec.min_image_size))
    assert logits.shape == (2, 5)
    F.cross_entropy(logits, torch.tensor([0, 4])).backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


@pytest.mark.parametrize("name", ["digits_cnn", "alexnet"])
def test_smaller_images_do_not_run(name: str) -> None:
    spec = MODELS[name]
    model = build_model(name, num_classes=5, channels=spec.channels or 1)
    side = spec.min_image_size - 1
    with pytest.raises(RuntimeError):
        model(torch.randn(2, spec.channels or 1, side, side))


@pytest.mark.parametrize(("name", "side"), [("alexnet", 100), ("alexnet", 227), ("resnet18", 32)])
def test_torchvision_networks_are_torchvisions(name: str, side: int) -> None:
    torch.manual_seed(0)
    ours = build_model(name, num_classes=7, channels=3).eval()
    torch.manual_seed(0)
    theirs = zoo.get_model(name, weights=None, num_classes=7).eval()
    assert ours.state_dict().keys() == theirs.state_dict().keys()
    images = torch.randn(1, 3, side, side)
    with torch.no_grad():
        assert ours(images).equal(theirs(images))


@pytest.mark.parametrize("side", [8, 11, 28, 32])
@pytest.mark.parametrize("channels", [1, 3])
def test_digits_cnn_takes_small_images(side: int, channels: int) -> None:
    assert build_model("digits_cnn", num_classes=10, channels=channels)(torch.randn(2, channels, side, side)).shape == (2, 10)


@pytest.mark.parametrize("side", [4, 8, 12, 16])
def test_grid_equals_adaptive_pooling(side: int) -> None:
    maps = torch.randn(2, 3, side, side)
    torch.testing.assert_close(_grid(maps), F.adaptive_avg_pool2d(maps, 4))


def test_digits_cnn_treats_images_one_by_one() -> None:
    """The loss of a batch is the mean over any way to share it: no batch norm, no dropout, widths that are multiples of 8."""
    model = build_model("digits_cnn", num_classes=10, channels=1).train()
    images = torch.randn(6, 1, 8, 8)
    torch.testing.assert_close(model(images), torch.cat([model(part) for part in images.split(2)]))
    widths = [layer.weight.shape[0] for layer in model.children() if isinstance(layer, nn.Conv2d | nn.Linear)]
    assert all(width % 8 == 0 for width in widths[:-1])
