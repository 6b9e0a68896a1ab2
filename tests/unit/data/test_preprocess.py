"""Pixels to network input against torchvision."""

import numpy as np
import pytest
import torch
from torchvision.transforms import v2

from src.data import InputFormat
from src.data.preprocess import Preprocess, pixel_statistics

from .conftest import placement

MEAN, STD = [0.5, 0.4, 0.3], [0.2, 0.25, 0.3]


def pixels(channels: int, side: int) -> torch.Tensor:
    return torch.randint(0, 256, (4, channels, side, side), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))


def oracle(images: torch.Tensor, *, size: int) -> torch.Tensor:
    images = v2.functional.to_dtype(images, torch.float64, scale=True)
    images = v2.functional.resize(images, [size, size], antialias=True)
    normalised: torch.Tensor = v2.functional.normalize(images, MEAN, STD)
    return normalised


@pytest.mark.parametrize("size", [8, 16, 63, 13])
def test_colour_equals_torchvision(size: int) -> None:
    """Same size, enlarged, and (13 from 16) made smaller with antialiasing."""
    found = Preprocess(InputFormat(3, size, MEAN, STD), placement=placement())(pixels(3, 16))
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.double(), oracle(pixels(3, 16), size=size), rtol=0, atol=2e-5)


def test_grey_serves_three_channels() -> None:
    found = Preprocess(InputFormat(3, 16, MEAN, STD), placement=placement())(pixels(1, 8))
    torch.testing.assert_close(found.double(), oracle(pixels(1, 8).expand(-1, 3, -1, -1), size=16), rtol=0, atol=2e-5)


@pytest.mark.parametrize("size", [8, 16])
def test_memory_format(size: int) -> None:
    form = InputFormat(3, size, MEAN, STD)
    nhwc = Preprocess(form, placement=placement(channels_last=True))(pixels(3, 8))
    nchw = Preprocess(form, placement=placement())(pixels(3, 8))
    assert nhwc.is_contiguous(memory_format=torch.channels_last)
    assert nchw.is_contiguous()
    torch.testing.assert_close(nhwc, nchw, rtol=0, atol=1e-6)


def test_statistics_equal_numpy() -> None:
    images = pixels(3, 9)
    mean, std = pixel_statistics(images)
    values = images.numpy() / 255
    np.testing.assert_allclose(mean, values.mean(axis=(0, 2, 3)), rtol=1e-12)
    np.testing.assert_allclose(std, values.std(axis=(0, 2, 3)), rtol=1e-12)


def test_constant_channel_has_a_deviation() -> None:
    mean, std = pixel_statistics(torch.full((3, 1, 4, 4), 51, dtype=torch.uint8))
    assert mean == pytest.approx([0.2])
    assert std == pytest.approx([1 / 255])
