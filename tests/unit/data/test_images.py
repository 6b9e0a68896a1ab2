"""Images in files: sizes, choice and fingerprint."""

import os

import pytest
import torch
from PIL import Image

from src.data.decoder import decode_all, resolve_workers
from src.data.folder import FolderSource
from src.errors import DataError

from .conftest import MakeFolder


def test_common_size(make_folder: MakeFolder) -> None:
    root = make_folder({"a": 3, "b": 3}, side=8)
    assert FolderSource(str(root)).images("train").common_size == 8
    Image.new("RGB", (8, 9)).save(root / "b" / "002.png")
    images = FolderSource(str(root)).images("train")
    assert images.common_size is None
    assert images.select([0, 1, 4]).common_size == 8


def test_one_shape_that_is_not_square_is_no_common_size(make_folder: MakeFolder) -> None:
    root = make_folder({"a": 0, "b": 0})
    for name in ("a", "b"):
        Image.new("RGB", (8, 6)).save(root / name / "0.png")
    assert FolderSource(str(root)).images("train").common_size is None


def test_stored_size_never_exceeds_what_is_needed(make_folder: MakeFolder) -> None:
    images = FolderSource(str(make_folder({"a": 1, "b": 1}, side=16))).images("train")
    assert (images.stored_size(227), images.stored_size(16), images.stored_size(8)) == (16, 16, 8)


def test_fingerprint_notices_content_name_and_label(make_folder: MakeFolder) -> None:
    root = make_folder({"a": 2, "b": 2})
    images = FolderSource(str(root)).images("train")
    assert images.fingerprint() == FolderSource(str(root)).images("train").fingerprint()
    prints = {images.fingerprint(), images.select([0, 1, 2]).fingerprint()}
    os.truncate(root / "a" / "000.png", 10)
    prints.add(FolderSource(str(root)).images("train").fingerprint())
    (root / "a" / "001.png").rename(root / "b" / "009.png")
    prints.add(FolderSource(str(root)).images("train").fingerprint())
    assert len(prints) == 4


def test_file_that_went_away_is_named(make_folder: MakeFolder) -> None:
    root = make_folder({"a": 2, "b": 1})
    images = FolderSource(str(root)).images("train")
    (root / "a" / "001.png").unlink()
    with pytest.raises(DataError, match=r"a/001\.png .*gone"):
        images.fingerprint()
    with pytest.raises(DataError, match=r"a/001\.png .*gone"):
        decode_all(images, size=8, num_workers=0)


def test_decode_all_is_in_order(make_folder: MakeFolder) -> None:
    root = make_folder({"a": 5, "b": 4}, side=200)  # More than one chunk.
    images = FolderSource(str(root)).images("train")
    found = decode_all(images, size=200, num_workers=0)
    for row, name in enumerate(images.names):
        with Image.open(root / name) as image:
            assert found[row].permute(1, 2, 0).numpy().tobytes() == image.tobytes()
    assert found.dtype == torch.uint8


def test_workers_are_shared_among_local_ranks() -> None:
    assert resolve_workers(3, in_memory=True, local_world_size=8) == 3
    assert resolve_workers("auto", in_memory=True, local_world_size=1) == 0
    assert resolve_workers("auto", in_memory=False, local_world_size=10**6) == 1
