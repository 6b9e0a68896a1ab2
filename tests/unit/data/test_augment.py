"""Flip and crop on batches against torchvision, image by image."""

import pytest
import torch
from hypothesis import given, settings, strategies as st
from scipy.stats import ks_2samp
from torchvision.transforms import v2

from src.config.schema import AugmentConfig
from src.data.augment import Draws, draw, resized_crop


@pytest.fixture
def images() -> torch.Tensor:
    return torch.randint(0, 256, (16, 3, 5, 7), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


def test_apply_equals_torchvision_image_by_image(images: torch.Tensor) -> None:
    draws = draw(40, config=AugmentConfig(flip=True, crop_padding=2), seed=0, epoch=0, side=7)
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
    draws = draw(16, config=AugmentConfig(), seed=0, epoch=0, side=7)
    assert draws == Draws(None, None, 0, None)
    assert draws.apply(images, start=0, stop=16).equal(images)


def test_draws_cover_their_range_evenly() -> None:
    draws = draw(9000, config=AugmentConfig(flip=True, crop_padding=1), seed=0, epoch=0, side=7)
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
    offsets = [draw(100, config=config, seed=seed, epoch=epoch, side=7).offset for seed, epoch in keys]
    flat = [tuple(offset.flatten().tolist()) for offset in offsets if offset is not None]
    assert flat[0] == flat[3]
    assert len(set(flat)) == 3


def test_flip_alone_does_not_move_crop_draws() -> None:
    both = draw(50, config=AugmentConfig(flip=True, crop_padding=2), seed=0, epoch=0, side=7)
    crop = draw(50, config=AugmentConfig(flip=False, crop_padding=2), seed=0, epoch=0, side=7)
    assert both.offset is not None
    assert crop.offset is not None
    assert both.offset.equal(crop.offset)


@settings(max_examples=40, deadline=None)
@given(side=st.integers(1, 24), data=st.data())
def test_resized_crop_equals_torchvision(side: int, data: st.DataObject) -> None:
    """Any box inside the image, its edges included."""
    height, width = (data.draw(st.integers(1, side)) for _ in range(2))
    top, left = data.draw(st.integers(0, side - height)), data.draw(st.integers(0, side - width))
    images = torch.randint(0, 256, (2, 3, side, side), dtype=torch.uint8, generator=torch.Generator().manual_seed(side))
    found = resized_crop(images, torch.tensor([[0, 0, side, side], [top, left, height, width]]))
    torch.testing.assert_close(found[0], images[0].float(), rtol=0, atol=1e-2)
    oracle = v2.functional.resized_crop(images[1].double(), top, left, height, width, [side, side], antialias=True)
    torch.testing.assert_close(found[1].double(), oracle, rtol=0, atol=1e-2)


@pytest.mark.parametrize("least", [0.08, 0.6, 1.0])
def test_boxes_are_drawn_like_torchvisions(least: float) -> None:
    side, count = 64, 3000
    box = draw(count, config=AugmentConfig(random_resized_crop=least), seed=0, epoch=0, side=side).box
    assert box is not None
    assert (box[:, :2] >= 0).all()
    assert (box[:, :2] + box[:, 2:] <= side).all()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        oracle_crop = v2.RandomResizedCrop(side, scale=(least, 1.0))
        drawn = [oracle_crop.make_params([torch.empty(3, side, side)]) for _ in range(count)]
    oracle = torch.tensor([[params[name] for name in ("top", "left", "height", "width")] for params in drawn])
    for feature in (lambda b: b[:, 2] * b[:, 3], lambda b: b[:, 2] / b[:, 3], lambda b: b[:, 0], lambda b: b[:, 1]):
        assert ks_2samp(feature(box), feature(oracle)).pvalue > 1e-3


def test_boxes_do_not_move_the_draws_of_flip_and_crop() -> None:
    """Runs of before reproduce: what is switched on later has a stream of its own."""
    plain = draw(50, config=AugmentConfig(flip=True, crop_padding=2), seed=0, epoch=0, side=8)
    boxed = draw(50, config=AugmentConfig(flip=True, crop_padding=2, random_resized_crop=0.5), seed=0, epoch=0, side=8)
    assert plain.flip is not None
    assert plain.offset is not None
    assert boxed.flip is not None
    assert boxed.offset is not None
    assert plain.flip.equal(boxed.flip)
    assert plain.offset.equal(boxed.offset)


def test_all_changes_follow_each_other() -> None:
    images = torch.randint(0, 256, (4, 3, 7, 7), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    draws = draw(4, config=AugmentConfig(flip=True, crop_padding=2, random_resized_crop=0.3), seed=1, epoch=0, side=7)
    assert draws.box is not None
    first = Draws(draws.flip, draws.offset, draws.padding, None).apply(images, start=0, stop=4)
    assert draws.apply(images, start=0, stop=4).equal(resized_crop(first, draws.box))
