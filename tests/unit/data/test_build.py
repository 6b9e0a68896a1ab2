"""Choices made for a run: sizes, channels, loader, statistics, splits."""

import numpy as np
import psutil
import pytest
from PIL import Image

from src.config.schema import DataConfig, DigitsConfig, ImageFolderConfig, Loader, Split, SyntheticConfig
from src.data import Data, InputNeeds, build_data
from src.errors import ConfigError, DataError

from .conftest import MakeFolder, evaluation, placement

ANY = InputNeeds(None, min_image_size=8, default_image_size=32)
COLOUR = InputNeeds(3, min_image_size=63, default_image_size=227)


def build(config: DataConfig, *, needs: InputNeeds = ANY, batch_size: int = 2) -> Data:
    return build_data(config, batch_size=batch_size, accumulate=1, seed=0, placement=placement(), needs=needs)


def test_digits() -> None:
    data = build(DigitsConfig(), batch_size=64)
    assert (data.channels, data.image_size, data.train_size, data.val_size) == (1, 8, 1438, 359)
    assert data.val_source == "held out"
    assert data.effective["loader"] == "resident"


def test_grey_images_and_small_ones_fit_a_network_for_large_colour_images() -> None:
    data = build(DigitsConfig(subset=4), needs=COLOUR)
    batch = next(data.train.epoch(0))
    assert batch.images.shape == (2, 3, 227, 227)
    assert (batch.images[:, 0] == batch.images[:, 2]).all()
    assert len(data.mean) == len(data.std) == 3


def test_colour_images_do_not_fit_a_grey_network() -> None:
    with pytest.raises(ConfigError, match="takes 1 channels but the images have 3"):
        build(SyntheticConfig(size=4), needs=InputNeeds(1, min_image_size=1, default_image_size=8))


def test_image_size_below_the_networks_least_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"data\.image_size=32 is less than the 63 pixels"):
        build(SyntheticConfig(size=4, image_size=32), needs=COLOUR)


def test_image_size_auto(make_folder: MakeFolder) -> None:
    root = make_folder({"train/a": 2, "train/b": 2, "val/a": 1}, side=16)
    config = ImageFolderConfig(root=str(root), num_workers=0)
    assert build(config).image_size == 16
    assert build(config).effective["loader"] == "resident"
    assert build(config, needs=COLOUR).image_size == 227
    assert build(config, needs=COLOUR).effective["stored_size"] == 16
    Image.new("RGB", (16, 20)).save(root / "train" / "a" / "odd.png")
    assert build(config).image_size == 32
    assert build(config).effective["loader"] == "workers"


def test_loader_auto_leaves_memory_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    config = SyntheticConfig(size=8, val_size=8, pixels=8)
    needed = 16 * 3 * 8 * 8

    def with_available(memory: int) -> object:
        monkeypatch.setattr(psutil, "virtual_memory", lambda: type("Memory", (), {"available": memory}))
        return build(config).effective["loader"]

    assert with_available(4 * needed) == "resident"
    assert with_available(4 * needed - 4) == "workers"


def test_mixed_sizes_can_be_resident(make_folder: MakeFolder) -> None:
    root = make_folder({"a": 4, "b": 4}, side=8)
    Image.new("RGB", (30, 20)).save(root / "a" / "odd.png")
    data = build(ImageFolderConfig(root=str(root), num_workers=0, loader=Loader.resident, image_size=10))
    assert next(data.train.epoch(0)).images.shape == (2, 3, 10, 10)


def test_measured_statistics_are_those_of_the_training_images(make_folder: MakeFolder) -> None:
    root = make_folder({"train/a": 3, "train/b": 3, "val/a": 3})
    values = np.stack([np.asarray(Image.open(path)) for path in sorted((root / "train").rglob("*.png"))]) / 255
    for loader in (Loader.resident, Loader.workers):
        data = build(ImageFolderConfig(root=str(root), num_workers=0, loader=loader))
        np.testing.assert_allclose(data.mean, values.mean(axis=(0, 1, 2)), rtol=1e-9)
        np.testing.assert_allclose(data.std, values.std(axis=(0, 1, 2)), rtol=1e-9)


def test_given_statistics_count() -> None:
    data = build(SyntheticConfig(size=4, mean=[0.5], std=[0.1, 0.2, 0.3]))
    assert (data.mean, data.std) == ([0.5] * 3, [0.1, 0.2, 0.3])


@pytest.mark.parametrize(
    ("mean", "std", "message"), [([0.1, 0.2], [0.5], r"data\.mean=.* 2 values"), ([0.5], [0.0], r"data\.std=.*above 0")]
)
def test_wrong_statistics_are_refused(mean: list[float], std: list[float], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build(SyntheticConfig(size=4, mean=mean, std=std))


def test_subset_limits_both_splits() -> None:
    data = build(DigitsConfig(subset=50))
    assert (data.train_size, data.val_size) == (50, 50)
    assert build(SyntheticConfig(size=40, val_size=10, subset=20)).val_size == 10


def test_digest_follows_the_data_and_not_the_choice_from_it() -> None:
    one, cut, other = (build(config).digest for config in (SyntheticConfig(), SyntheticConfig(subset=20), SyntheticConfig(seed=1)))
    assert one == cut != other


def test_validation_again_is_bit_for_bit_the_runs_own(make_folder: MakeFolder) -> None:
    """F01: evaluating a checkpoint sees the very batches that training validated on."""
    config = ImageFolderConfig(root=str(make_folder({"a": 9, "b": 9}, side=9)), num_workers=0, val_fraction=0.4, image_size=12)
    data = build(config)
    pairs = list(zip(data.val.batches(), evaluation(config, data).batches(), strict=True))
    assert sum(len(one.labels) for one, _ in pairs) == data.val_size == 8
    assert all(one.images.equal(two.images) and one.labels.equal(two.labels) for one, two in pairs)
    assert evaluation(config, data, split=Split.train).size == data.train_size


def test_evaluation_of_a_test_split_needs_no_training_images(make_folder: MakeFolder) -> None:
    root = make_folder({"train/a": 2, "train/b": 2, "val/a": 1})
    data = build(ImageFolderConfig(root=str(root), num_workers=0))
    make_folder({"other/test/b": 3})
    feed = evaluation(ImageFolderConfig(root=str(root / "other"), num_workers=0), data, split=Split.test)
    assert [batch.labels.tolist() for batch in feed.batches()] == [[1, 1, 1]]


def test_missing_test_split_is_refused() -> None:
    with pytest.raises(DataError, match="split=test"):
        evaluation(DigitsConfig(), build(DigitsConfig()), split=Split.test)


def test_evaluation_on_other_classes_is_refused() -> None:
    with pytest.raises(ConfigError, match="has the classes class0, class1 but the model was trained on 0, 1"):
        evaluation(SyntheticConfig(classes=2), build(DigitsConfig()))


def test_every_split_keeps_the_size_of_the_training_images(make_folder: MakeFolder) -> None:
    """Where an image is made smaller decides about its pixels, and predictions have no other size to go by."""
    make_folder({"train/a": 3, "train/b": 3}, side=16)
    config = ImageFolderConfig(root=str(make_folder({"val/a": 2, "val/b": 2}, side=40)), image_size=32)
    data = build(config)
    assert data.pixel_size == 16
    own, again = (next(iter(feed.batches())).images for feed in (data.val, evaluation(config, data)))
    assert own.equal(again)
