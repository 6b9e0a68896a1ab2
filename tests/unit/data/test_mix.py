"""Mixup and cutmix against plain loops, their shares against scipy and torchvision."""

import numpy as np
import pytest
import torch
from scipy.stats import beta, ks_2samp, kstest
from torchvision.transforms import v2

from src.config.schema import AugmentConfig, Loader, SyntheticConfig
from src.data import Data, InputNeeds, build_data
from src.data.mix import MixDraws, draw_mix

from .conftest import placement


def drawn(size: int = 4000, *, mixup: float = 0.0, cutmix: float = 0.0, epoch: int = 0, side: int = 32) -> MixDraws:
    draws = draw_mix(size, config=AugmentConfig(mixup=mixup, cutmix=cutmix), seed=0, epoch=epoch, side=side)
    assert draws is not None
    return draws


def mixed_by_hand(images: np.ndarray, draws: MixDraws, *, start: int, cut: bool) -> np.ndarray:
    """One pixel after the other, as the papers say; the partner of an image is the one before it, of the first the last."""
    out = images.copy()
    for number in range(len(images)):
        top, bottom, left, right = draws.box[start + number].tolist()
        for row in range(images.shape[2]):
            for column in range(images.shape[3]):
                if cut and not (top <= row < bottom and left <= column < right):
                    continue
                share = 1.0 if cut else float(draws.share[start + number])
                out[number, :, row, column] = (1 - share) * images[number, :, row, column] + share * images[number - 1, :, row, column]
    return out


@pytest.mark.parametrize("cut", [False, True])
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_images_and_labels(cut: bool, memory_format: torch.memory_format) -> None:
    """In either memory format, which stays."""
    images = torch.randn(5, 3, 6, 6, generator=torch.Generator().manual_seed(0)).contiguous(memory_format=memory_format)
    labels = torch.tensor([4, 3, 2, 1, 0])
    draws = drawn(20, mixup=0.0 if cut else 1.0, cutmix=1.0 if cut else 0.0, side=6)
    found, mixed = draws.apply(images, labels, start=10, stop=15)
    np.testing.assert_allclose(found, mixed_by_hand(images.numpy(), draws, start=10, cut=cut), atol=1e-6)
    assert found.is_contiguous(memory_format=memory_format)
    assert mixed.labels.tolist() == [0, 4, 3, 2, 1]
    assert mixed.share.equal(draws.share[10:15])


def test_a_cut_is_exact_and_its_share_is_the_area_replaced() -> None:
    side = 9
    own, other = torch.zeros(2, 1, side, side), torch.ones(2, 1, side, side)
    draws = drawn(500, cutmix=1.0, side=side)
    for start in range(0, 500, 2):
        found, mixed = draws.apply(torch.cat((own[:1], other[:1])), torch.tensor([0, 1]), start=start, stop=start + 2)
        assert set(found.unique().tolist()) <= {0.0, 1.0}
        replaced = torch.stack((found[0].mean(), 1 - found[1].mean()))
        torch.testing.assert_close(replaced, mixed.share, rtol=0, atol=1e-6)


@pytest.mark.parametrize("alpha", [0.2, 1.0, 4.0])
def test_mixup_shares_are_beta(alpha: float) -> None:
    draws = drawn(mixup=alpha)
    assert kstest(draws.share.double(), beta(alpha, alpha).cdf).pvalue > 1e-3
    assert draws.weight.equal(draws.share)
    assert draws.box.unique(dim=0).tolist() == [[0, 32, 0, 32]]


@pytest.mark.parametrize("alpha", [0.2, 1.0])
def test_cutmix_shares_are_torchvisions(alpha: float) -> None:
    draws = drawn(3000, cutmix=alpha, side=512)
    oracle = v2.CutMix(num_classes=2, alpha=alpha)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        inputs = [torch.empty(1, 3, 512, 512)]
        shares = [1 - oracle.make_params(inputs)["lam_adjusted"] for _ in range(3000)]
    assert abs(float(draws.share.mean()) - np.mean(shares)) < 0.02
    # Torchvision's rectangles have even sides; away from the two ends the difference is below what this test sees.
    inner = [share for share in shares if 0.001 < share < 0.999]
    own = draws.share[(draws.share > 0.001) & (draws.share < 0.999)]
    assert ks_2samp(own, inner).pvalue > 1e-3


def test_both_take_turns() -> None:
    draws = drawn(mixup=1.0, cutmix=1.0)
    cut = draws.weight == 1
    assert abs(float(cut.float().mean()) - 0.5) < 0.04
    assert (draws.box[~cut] == torch.tensor([0, 32, 0, 32])).all()
    area = (draws.box[:, 1] - draws.box[:, 0]) * (draws.box[:, 3] - draws.box[:, 2]) / 32**2
    torch.testing.assert_close(draws.share[cut], area[cut])


def test_draws_follow_the_epoch() -> None:
    """F07."""
    assert drawn(mixup=1.0).share.equal(drawn(mixup=1.0).share)
    assert not drawn(mixup=1.0).share.equal(drawn(mixup=1.0, epoch=1).share)
    assert draw_mix(5, config=AugmentConfig(), seed=0, epoch=0, side=8) is None


def feed(augment: AugmentConfig, *, batch_size: int = 8) -> Data:
    config = SyntheticConfig(size=32, val_size=8, pixels=6, loader=Loader.resident, augment=augment)
    needs = InputNeeds(None, min_image_size=1, default_image_size=8)
    return build_data(config, batch_size=batch_size, accumulate=1, seed=0, placement=placement(), needs=needs)


def test_batches_carry_what_was_mixed() -> None:
    plain, mixing = feed(AugmentConfig()), feed(AugmentConfig(mixup=1.0, cutmix=1.0))
    for own, batch in zip(plain.train.epoch(0), mixing.train.epoch(0), strict=True):
        assert own.mixed is None
        assert batch.mixed is not None
        assert batch.labels.equal(own.labels)
        assert batch.index.equal(own.index)
        assert batch.mixed.labels.equal(own.labels.roll(1))
        assert not batch.images.equal(own.images)
    assert all(batch.mixed is None for batch in mixing.val.batches())
    assert all(one.images.equal(two.images) for one, two in zip(plain.val.batches(), mixing.val.batches(), strict=True))


def test_an_image_alone_is_its_own_partner() -> None:
    plain, mixing = feed(AugmentConfig(), batch_size=1), feed(AugmentConfig(mixup=1.0), batch_size=1)
    one, two = next(plain.train.epoch(0)), next(mixing.train.epoch(0))
    torch.testing.assert_close(one.images, two.images)
    assert two.mixed is not None
    assert two.mixed.labels.equal(one.labels)
