"""Batches of whole feeds, resident and decoded by workers (in this process: num_workers=0)."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from src.config.schema import AugmentConfig, ImageFolderConfig, Loader, SyntheticConfig
from src.data import Batch, Data, InputNeeds, build_data
from src.errors import DataError

from .conftest import MakeFolder, placement

NEEDS = InputNeeds(None, min_image_size=1, default_image_size=8)
AUGMENT = AugmentConfig(flip=True, crop_padding=1)


@pytest.fixture(params=["resident", "workers"])
def loader(request: pytest.FixtureRequest) -> Loader:
    return Loader[request.param]


def synthetic(loader: Loader, *, rank: int = 0, world_size: int = 1, accumulate: int = 1, batch_size: int = 24, seed: int = 0) -> Data:
    config = SyntheticConfig(size=107, val_size=101, pixels=6, loader=loader, num_workers=0, augment=AUGMENT)
    return build_data(config, batch_size=batch_size, accumulate=accumulate, seed=seed, placement=placement(rank, world_size), needs=NEEDS)


def steps(batches: Iterator[Batch]) -> list[dict[int, torch.Tensor]]:
    """Image by position, for each optimizer step."""
    found: list[dict[int, torch.Tensor]] = [{}]
    for batch in batches:
        found[-1] |= dict(zip(batch.index.tolist(), batch.images, strict=True))
        if batch.last:
            found.append({})
    return found[:-1]


def same(one: dict[int, torch.Tensor], other: dict[int, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(one[key].equal(other[key]) for key in one)


@pytest.mark.parametrize(("world_size", "accumulate"), [(2, 1), (3, 1), (4, 2), (8, 3)])
def test_steps_do_not_depend_on_the_world_size(loader: Loader, world_size: int, accumulate: int) -> None:
    """F07, F13: the same images, augmented in the same way, in each step of any number of ranks."""
    alone = synthetic(loader)
    ranks = [synthetic(loader, rank=rank, world_size=world_size, accumulate=accumulate) for rank in range(world_size)]
    expected = steps(alone.train.epoch(1))
    by_rank = [steps(rank.train.epoch(1)) for rank in ranks]
    for step in range(107 // 24):
        merged: dict[int, torch.Tensor] = {}
        for rank in by_rank:
            assert merged.keys().isdisjoint(rank[step])
            merged |= rank[step]
        assert same(merged, expected[step])


def test_epochs_differ_and_repeat(loader: Loader) -> None:
    """F05: three orders in three epochs; a second run and a late start give the same again."""
    feed, again = synthetic(loader).train, synthetic(loader).train
    orders = [tuple(position for batch in feed.epoch(epoch) for position in batch.index.tolist()) for epoch in range(3)]
    assert len(set(orders)) == 3
    expected = steps(feed.epoch(2))
    assert all(same(*pair) for pair in zip(expected, steps(again.epoch(2)), strict=True))
    assert all(same(*pair) for pair in zip(expected[2:], steps(again.epoch(2, start_step=2)), strict=True))
    assert not same(expected[0], steps(synthetic(loader, seed=1).train.epoch(2))[0])


def test_an_epoch_can_be_left_early(loader: Loader) -> None:
    feed = synthetic(loader).train
    next(feed.epoch(0))
    assert len(steps(feed.epoch(1))) == feed.steps_per_epoch


def test_batches_are_what_they_say(loader: Loader) -> None:
    data = synthetic(loader, accumulate=2)
    batches = list(data.train.epoch(0))
    assert (data.train.steps_per_epoch, data.train.images_per_epoch) == (4, 96)
    assert [(batch.window, batch.last) for batch in batches[:2]] == [(2, False), (2, True)]
    assert sum(len(batch.labels) for batch in batches) == 96
    assert batches[0].images.shape == (12, 3, 6, 6)
    assert batches[0].images.dtype == torch.float32
    # Classes come in turn in synthetic data.
    assert all(batch.labels.equal(batch.index % 10) for batch in batches)


@pytest.mark.parametrize("world_size", [1, 2, 3, 8])
def test_evaluation_is_exact_and_unaugmented(loader: Loader, world_size: int) -> None:
    """F01, F02: every image once, bit for bit the same for any number of ranks."""
    ranks = [synthetic(loader, rank=rank, world_size=world_size, batch_size=24).val for rank in range(world_size)]
    images: dict[int, torch.Tensor] = {}
    for rank in ranks:
        for batch in rank.batches():
            assert images.keys().isdisjoint(batch.index.tolist())
            assert (batch.window, batch.last) == (1, True)
            images |= dict(zip(batch.index.tolist(), batch.images, strict=True))
    assert sorted(images) == list(range(101))
    assert ranks[0].size == 101
    reference = steps(synthetic(Loader.resident).val.batches())
    assert all(image.equal(images[position]) for part in reference for position, image in part.items())


def test_normalised_over_the_training_images(loader: Loader) -> None:
    config = SyntheticConfig(size=200, pixels=6, loader=loader, num_workers=0)
    data = build_data(config, batch_size=200, accumulate=1, seed=0, placement=placement(), needs=NEEDS)
    (batch,) = data.train.epoch(0)
    assert batch.images.mean(dim=(0, 2, 3)).abs().max() < 1e-5
    assert (batch.images.std(dim=(0, 2, 3), correction=0) - 1).abs().max() < 1e-5


def test_both_loaders_give_the_same_pixels_of_files(make_folder: MakeFolder) -> None:
    root: Path = make_folder({"train/a": 6, "train/b": 5, "val/a": 2, "val/b": 2}, side=10)

    def build(loader: Loader) -> Data:
        config = ImageFolderConfig(root=str(root), loader=loader, num_workers=0, image_size=7, augment=AUGMENT)
        return build_data(config, batch_size=4, accumulate=1, seed=0, placement=placement(), needs=NEEDS)

    resident, workers = build(Loader.resident), build(Loader.workers)
    assert all(same(*pair) for pair in zip(steps(resident.train.epoch(0)), steps(workers.train.epoch(0)), strict=True))
    assert all(same(*pair) for pair in zip(steps(resident.val.batches()), steps(workers.val.batches()), strict=True))


def test_feeds_leave_the_global_generator_alone(loader: Loader) -> None:
    data = synthetic(loader)
    before = torch.get_rng_state()
    list(data.train.epoch(0))
    list(data.val.batches())
    assert torch.get_rng_state().equal(before)


def test_broken_file_ends_the_epoch_with_its_name(make_folder: MakeFolder) -> None:
    """I12."""
    root = make_folder({"a": 6, "b": 6})
    config = ImageFolderConfig(root=str(root), loader=Loader.workers, num_workers=0, mean=[0.5], std=[0.5])
    data = build_data(config, batch_size=2, accumulate=1, seed=0, placement=placement(), needs=NEEDS)
    for path in root.glob("*/*.png"):
        path.write_bytes(path.read_bytes()[:60])
    with pytest.raises(DataError, match=r"\.png can't be read as an image"):
        list(data.train.epoch(0))
