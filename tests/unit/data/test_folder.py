"""Class folders: layouts, class numbers and refusals."""

import os
from pathlib import Path

import pytest

from src.data.folder import FolderSource
from src.errors import ConfigError, DataError

from .conftest import MakeFolder


def test_class_numbers_come_from_train(make_folder: MakeFolder) -> None:
    """F10: a class missing from val shifts nothing."""
    source = FolderSource(str(make_folder({"train/a": 2, "train/b": 1, "train/c": 1, "val/b": 1, "val/c": 2})))
    assert source.class_names == ["a", "b", "c"]
    assert source.images("train").labels.tolist() == [0, 0, 1, 2]
    assert source.images("val").labels.tolist() == [1, 2, 2]


def test_unknown_class_in_val_is_refused(make_folder: MakeFolder) -> None:
    """F10."""
    source = FolderSource(str(make_folder({"train/a": 1, "train/b": 1, "val/b": 1, "val/z": 1})))
    with pytest.raises(DataError, match="val/z is a class that the training images don't have"):
        source.images("val")


def test_val_goes_before_test(make_folder: MakeFolder) -> None:
    root = make_folder({"train/a": 1, "train/b": 1, "test/a": 1})
    assert FolderSource(str(root)).val_split == "test"
    make_folder({"val/a": 1})
    assert FolderSource(str(root)).val_split == "val"


def test_flat_layout_has_no_validation_split(make_folder: MakeFolder) -> None:
    source = FolderSource(str(make_folder({"a": 2, "b": 3})))
    assert source.val_split is None
    assert source.images("train").labels.tolist() == [0, 0, 1, 1, 1]


def test_plain_sorted_order_nested_folders_and_ignored_files(make_folder: MakeFolder) -> None:
    root = make_folder({"10": 1, "9": 1, "9/deeper": 1, ".cache": 1})
    (root / "9" / ".hidden.png").write_bytes(b"")
    (root / "9" / "notes.txt").write_text("no image")
    (root / "loose.png").write_bytes(b"")
    (root / "9" / "000.png").rename(root / "9" / "000.PNG")
    source = FolderSource(str(root))
    assert source.class_names == ["10", "9"]
    assert source.images("train").names == ["10/000.png", "9/000.PNG", "9/deeper/000.png"]


def test_given_class_names_replace_train(make_folder: MakeFolder) -> None:
    """F10: the mapping stored in a checkpoint serves a folder that has only a test split."""
    source = FolderSource(str(make_folder({"test/b": 2})), class_names=["a", "b"])
    assert source.images("test").labels.tolist() == [1, 1]


@pytest.mark.parametrize(
    ("counts", "message"),
    [
        ({}, "holds no class folders"),
        ({"train/a": 1, "train/b": 0}, "train/b holds no image"),
        ({"train": 0, "val/a": 1}, "train holds no class folders"),
        ({"val/a": 1}, "has val/ but no train/"),
        ({"only": 3}, "one class folder, only"),
        ({"train/a": 1, "train/b": 1, "val/a": 0}, "val holds no image"),
    ],
)
def test_what_can_not_be_trained_on_is_refused(make_folder: MakeFolder, counts: dict[str, int], message: str) -> None:
    root = make_folder(counts)

    def read() -> None:
        source = FolderSource(str(root))
        source.images("train")
        source.images("val")

    with pytest.raises(DataError, match=message):
        read()


def test_missing_root(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"data\.root=.*gone does not exist"):
        FolderSource(str(tmp_path / "gone"))
    with pytest.raises(ConfigError, match=r"data\.root=null"):
        FolderSource(None)


def test_missing_split_is_named(make_folder: MakeFolder) -> None:
    with pytest.raises(DataError, match="has no test/ folder"):
        FolderSource(str(make_folder({"a": 1, "b": 1}))).images("test")


def test_folder_called_like_an_image_is_listed(make_folder: MakeFolder) -> None:
    """I12: reading it names it, instead of its images counting silently or not at all."""
    root = make_folder({"a": 1, "a/x.jpg": 1, "b": 1})
    assert FolderSource(str(root)).images("train").names == ["a/000.png", "a/x.jpg", "b/000.png"]


def test_class_folder_that_is_not_utf8_is_refused(make_folder: MakeFolder) -> None:
    """F10: class names go into JSON files and the store."""
    root = make_folder({"a": 1, "b": 1})
    os.mkdir(os.fsencode(root) + b"/caf\xe9")
    with pytest.raises(DataError, match=r"caf.*xe9' is a class folder whose name is not printable UTF-8; rename it") as caught:
        FolderSource(str(root))
    str(caught.value).encode()


def test_class_folder_with_letters_of_any_script(make_folder: MakeFolder) -> None:
    assert FolderSource(str(make_folder({"café": 1, "猫 1": 1}))).class_names == ["café", "猫 1"]


def test_root_that_no_folder_can_have_is_an_error_of_the_data() -> None:
    with pytest.raises(DataError, match="does not exist or is no folder"):
        FolderSource("x" * 300)
