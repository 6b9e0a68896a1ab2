"""What the files compute, against the same arithmetic in float64."""

import json

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from src.data.base import InputFormat
from src.serving.formats import PixelsToLogits, write_onnx, write_pt2, write_safetensors


def network(channels):
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(channels, 6, 3, stride=2), nn.BatchNorm2d(6), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(24, 5)
    )
    net[1].running_mean.normal_()
    net[1].running_var.uniform_(0.5, 2)
    return net.eval()


def pixels(count, *, channels, side):
    return torch.randint(256, (count, channels, side, side), dtype=torch.uint8, generator=torch.Generator().manual_seed(count))


def in_float64(net, images, *, channels, size):
    values = (images.double() / 255).expand(-1, channels, -1, -1)
    if images.shape[-1] != size:
        values = F.interpolate(values, size=(size, size), mode="bilinear", antialias=images.shape[-1] > size)
    mean, std = torch.tensor([0.2, 0.4, 0.6])[:channels], torch.tensor([0.3, 0.2, 0.1])[:channels]
    return net.double()((values - mean.double()[:, None, None]) / std.double()[:, None, None])


CASES = [
    pytest.param(1, 3, 20, 12, id="grey made smaller for a network of three channels"),
    pytest.param(3, 3, 8, 13, id="colour made larger"),
    pytest.param(1, 1, 10, 10, id="as it is"),
]


@pytest.mark.filterwarnings("ignore")  # the exporters' own deprecations, other ones in every release
@pytest.mark.parametrize("write", [write_onnx, write_pt2])
@pytest.mark.parametrize(("given", "channels", "side", "size"), CASES)
@torch.no_grad()
def test_a_file_computes_the_preprocessing_too_for_any_number_of_images(tmp_path, write, given, channels, side, size):
    if write is write_onnx:
        pytest.importorskip("onnxruntime")
    form = InputFormat(channels, size, [0.2, 0.4, 0.6][:channels], [0.3, 0.2, 0.1][:channels])
    path = tmp_path / "model.pt2"
    run = write(PixelsToLogits(network(channels), form).eval(), pixels(4, channels=given, side=side), path)
    for count in (4, 1, 7):
        batch = pixels(count, channels=given, side=side)
        expected = in_float64(network(channels), batch, channels=channels, size=size)
        np.testing.assert_allclose(run(batch).double(), expected, atol=1e-5)
    assert [found.name for found in tmp_path.iterdir()] == ["model.pt2"]


@torch.no_grad()
def test_safetensors_hold_weights_and_what_they_are(tmp_path):
    from safetensors import safe_open

    net, fresh = network(3), network(3)
    fresh[5] = nn.Linear(24, 5)
    form = InputFormat(3, 10, [0.2, 0.4, 0.6], [0.3, 0.2, 0.1])
    path = tmp_path / "model.safetensors"
    run = write_safetensors(PixelsToLogits(net, form).eval(), {"class_names": ["ü", 'q"']}, fresh, path)
    batch = pixels(3, channels=3, side=10)
    np.testing.assert_allclose(run(batch).double(), in_float64(network(3), batch, channels=3, size=10), atol=1e-5)
    with safe_open(path, framework="numpy") as file:
        assert json.loads(file.metadata()["class_names"]) == ["ü", 'q"']
        assert set(file.keys()) == set(net.state_dict())
        np.testing.assert_array_equal(file.get_tensor("0.weight"), net[0].weight)


def test_weights_used_twice_are_written_too(tmp_path):
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(12, 12), nn.Linear(12, 12)
            self.second.weight = self.first.weight

        def forward(self, images):
            return self.second(self.first(images.flatten(1)))

    form = InputFormat(3, 2, [0.5] * 3, [0.2] * 3)
    model = PixelsToLogits(Tied(), form).eval()
    batch = pixels(2, channels=3, side=2)
    run = write_safetensors(model, {}, Tied(), tmp_path / "model.safetensors")
    with torch.no_grad():
        torch.testing.assert_close(run(batch), model(batch))
