"""Leaving out images that can't be read."""

import logging
import os
from pathlib import Path

import pytest
import torch

from src.config.schema import DigitsConfig, ImageFolderConfig, Loader, Split
from src.data import Data, EvalFeed, InputNeeds, build_data
from src.errors import DataError

from .conftest import MakeFolder, evaluation, placement

NEEDS = InputNeeds(None, min_image_size=1, default_image_size=8)
COUNTS = {"train/a": 9, "train/b": 9, "val/a": 4, "val/b": 4}


@pytest.fixture
def root(make_folder: MakeFolder) -> Path:
    """26 images and a folder that poses as one, five of them broken each in its own way."""
    root = make_folder(COUNTS)
    whole = (root / "train/a/001.png").read_bytes()
    (root / "train/a/001.png").write_bytes(whole[:60])
    (root / "train/a/004.png").write_bytes(b"")
    (root / "train/b/002.png").write_text("no image")
    (root / "val/a/003.png").unlink()
    (root / "val/a/003.png").symlink_to("nowhere.png")
    (root / "val/b/x.png").mkdir()
    return root


def build(root: Path, *, skip: int, rank: int = 0, world_size: int = 1, loader: Loader = Loader.auto) -> Data:
    config = ImageFolderConfig(root=str(root), skip_broken=skip, num_workers=0, loader=loader)
    return build_data(config, batch_size=2, accumulate=1, seed=0, placement=placement(rank, world_size), needs=NEEDS)


def evaluate(root: Path, data: Data, *, split: Split, skip: int = 5) -> EvalFeed:
    config = ImageFolderConfig(root=str(root), skip_broken=skip, num_workers=0)
    return evaluation(config, data, split=split)


def test_by_default_the_first_broken_image_ends_it(root: Path) -> None:
    """I12, fault 17."""
    with pytest.raises(DataError, match=r"can't be read as an image"):
        build(root, skip=0)


@pytest.mark.parametrize("loader", [Loader.resident, Loader.workers])
def test_broken_images_are_left_out_and_counted(root: Path, loader: Loader, caplog: pytest.LogCaptureFixture) -> None:
    """I12, fault 17: of both splits, each named."""
    caplog.set_level(logging.WARNING, logger="src")
    data = build(root, skip=5, loader=loader)
    assert (data.train_size, data.val_size, data.effective["broken_images"]) == (15, 7, 5)
    assert len(list(data.train.epoch(0))) == 7
    assert sum(len(batch.labels) for batch in data.val.batches()) == 7
    for name in ("train/a/001.png", "train/a/004.png", "train/b/002.png", "val/a/003.png", "val/b/x.png"):
        assert sum(name in message for message in caplog.messages) == 1


def test_the_images_that_stay_are_those_of_a_clean_folder(root: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    kept = build(root, skip=5)
    clean = tmp_path_factory.mktemp("clean")
    for path in root.glob("*/*/*.png"):
        if path.is_file() and path.stat().st_size > 60:
            (clean / path.relative_to(root)).parent.mkdir(parents=True, exist_ok=True)
            os.link(path, clean / path.relative_to(root))
    oracle = build(clean, skip=0)
    assert (kept.train_size, kept.val_size, kept.digest) == (oracle.train_size, oracle.val_size, oracle.digest)
    for one, two in zip(kept.train.epoch(0), oracle.train.epoch(0), strict=True):
        assert one.images.equal(two.images)
        assert one.labels.equal(two.labels)


def test_all_ranks_agree(root: Path) -> None:
    ranks = [build(root, skip=5, rank=rank, world_size=2) for rank in range(2)]
    assert ranks[0].digest == ranks[1].digest
    seen = torch.cat([batch.index for rank in ranks for batch in rank.val.batches()])
    assert sorted(seen.tolist()) == list(range(7))


def test_more_than_allowed_ends_it(root: Path) -> None:
    with pytest.raises(DataError, match=r"data\.skip_broken=4 but 5 images can't be read: .*train/a/001\.png.*val/b/x\.png") as caught:
        build(root, skip=4)
    assert "\n" not in str(caught.value)


def test_many_are_counted_after_five_names(make_folder: MakeFolder, caplog: pytest.LogCaptureFixture) -> None:
    root = make_folder({"a": 20, "b": 5})
    for path in sorted((root / "a").iterdir())[:7]:
        path.write_bytes(b"")
    caplog.set_level(logging.WARNING, logger="src")
    build(root, skip=7)
    assert len(caplog.messages) == 6
    assert caplog.messages[-1] == "left out 7 unreadable images in all"
    with pytest.raises(DataError, match=r"7 images can't be read.*004\.png.*; \.\.\.\."):
        build(root, skip=6)


def test_evaluation_leaves_out_the_same(root: Path) -> None:
    data = build(root, skip=5)
    val, train = evaluate(root, data, split=Split.val), evaluate(root, data, split=Split.train)
    assert (val.size, val.broken_images) == (data.val_size, 2)
    assert (train.size, train.broken_images) == (data.train_size, 3)
    assert data.val.broken_images == 5


def test_a_held_out_part_is_chosen_among_the_readable(make_folder: MakeFolder) -> None:
    root = make_folder({"a": 10, "b": 10})
    (root / "a/003.png").write_bytes(b"")
    data = build(root, skip=1)
    assert data.train_size + data.val_size == 19
    assert evaluate(root, data, split=Split.val, skip=1).size == data.val_size


def test_a_class_without_readable_images_is_refused(make_folder: MakeFolder) -> None:
    root = make_folder({"a": 2, "b": 3})
    for path in (root / "a").iterdir():
        path.write_bytes(b"")
    with pytest.raises(DataError, match="class a has no readable train image"):
        build(root, skip=9)


def test_images_in_memory_have_nothing_to_leave_out() -> None:
    data = build_data(DigitsConfig(skip_broken=3), batch_size=64, accumulate=1, seed=0, placement=placement(), needs=NEEDS)
    assert (data.train_size, data.effective["broken_images"]) == (1438, 0)
