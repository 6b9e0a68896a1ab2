"""Flip and crop on batches against torchvision, image by image."""

import pytest
import torch
from torchvision.transforms import v2

from src.config.schema import AugmentConfig
from src.data.augment import Draws, draw


@pytest.fixture
def images() -> torch.Tensor:
    return torch.randint(0, 256, (16, 3, 5, 7), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


def test_apply_equals_torchvision_image_by_image(images: torch.Tensor) -> None:
    draws = draw(40, config=AugmentConfig(flip=True, crop_padding=2), seed=0, epoch=0)
    assert draws.flip is not None
    assert draws.offset is not None
    found = draws.apply(images, start=20, stop=36)
    for row in range(16):
        top, left = draws.offset[20 + row].tolist()
        oracle = v2.functional.crop(v2.functional.pad(images[row], [2]), top, left, 5, 7)
        if draws.flip[20 + row]:
            oracle = v2.functional.horizontal_flip(oracle)
        assert found[row].equal(oracle)


def test_nothing_asked_changes_nothing(images: torch.Tensor) -> None:
    draws = draw(16, config=AugmentConfig(), seed=0, epoch=0)
    assert draws == Draws(None, None, 0)
    assert draws.apply(images, start=0, stop=16).equal(images)


def test_draws_cover_their_range_evenly() -> None:
    draws = draw(9000, config=AugmentConfig(flip=True, crop_padding=1), seed=0, epoch=0)
    assert draws.flip is not None
    assert draws.offset is not None
    assert abs(draws.flip.float().mean().item() - 0.5) < 0.03
    cells = torch.bincount(draws.offset[:, 0] * 3 + draws.offset[:, 1], minlength=9)
    assert len(cells) == 9
    assert ((cells - 1000).abs() < 150).all()


def test_draws_follow_seed_and_epoch() -> None:
    """F07: repeatable, different in every epoch; places in the order, not ranks, own the draws."""
    config = AugmentConfig(flip=True, crop_padding=4)
    keys = [(0, 0), (0, 1), (1, 0), (0, 0)]
    offsets = [draw(100, config=config, seed=seed, epoch=epoch).offset for seed, epoch in keys]
    flat = [tuple(offset.flatten().tolist()) for offset in offsets if offset is not None]
    assert flat[0] == flat[3]
    assert len(set(flat)) == 3


def test_flip_alone_does_not_move_crop_draws() -> None:
    both = draw(50, config=AugmentConfig(flip=True, crop_padding=2), seed=0, epoch=0)
    crop = draw(50, config=AugmentConfig(flip=False, crop_padding=2), seed=0, epoch=0)
    assert both.offset is not None
    assert crop.offset is not None
    assert both.offset.equal(crop.offset)
