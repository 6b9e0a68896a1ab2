"""Class folders on disk: ROOT/train/CLASS/* with ROOT/val or ROOT/test, or ROOT/CLASS/*.

Class numbers follow the plain sorted order of the training class folders, for every split. Hidden files, files without
an image extension and loose files beside the class folders are ignored; folders inside a class belong to it.
"""

import os
from pathlib import Path
from typing import NoReturn

import torch

from src.data.decode import printable
from src.data.images import FileImages
from src.errors import ConfigError, DataError

EXTENSIONS = (".jpg", ".jpeg", ".png", ".bmp", ".webp", ".gif", ".tif", ".tiff", ".ppm")
_SPLITS = ("train", "val", "test")


class FolderSource:
    """The splits of a folder. ``class_names`` given (a checkpoint's): their order counts, and train/ may be missing.

    Raises ConfigError without a root, DataError if the folder is missing or does not hold class folders.
    """

    def __init__(self, root: str | None, *, class_names: list[str] | None = None) -> None:
        if root is None:
            raise ConfigError("data.root=null is no folder; give a folder that holds class folders, as in data.root=PATH")
        self._root = Path(root).expanduser()
        if not os.path.isdir(self._root):  # false also for a name that is too long
            raise DataError(f"data.root={root} does not exist or is no folder; give a folder that holds class folders")
        present = [name for name in _SPLITS if (self._root / name).is_dir()]
        if not present:
            self._folders = {"train": self._root}
        elif class_names is None and "train" not in present:
            raise DataError(f"data.root={root} has {present[0]}/ but no train/; put the training images into train/CLASS/")
        else:
            self._folders = {name: self._root / name for name in present}
        self.class_names = _class_folders(self._folders["train"]) if class_names is None else class_names
        if len(self.class_names) < 2:
            raise DataError(f"{self._folders['train']} holds one class folder, {self.class_names[0]}; at least two classes are needed")
        self.origin = printable(self._root)
        self._read: dict[str, FileImages] = {}
        self.val_split: str | None = next((name for name in ("val", "test") if name in self._folders), None)

    def images(self, split: str) -> FileImages:
        """The images of ``train``, ``val`` or ``test``. Raises DataError if there are none or their class is unknown."""
        if split not in self._folders:
            raise DataError(f"data.root={self._root} has no {split}/ folder; add {split}/CLASS/ or evaluate another split")
        if split not in self._read:
            self._read[split] = self._list(split)
        return self._read[split]

    def _list(self, split: str) -> FileImages:
        folder = self._folders[split]
        found = _class_folders(folder)
        unknown = sorted(set(found) - set(self.class_names))
        if unknown:
            raise DataError(
                f"{folder / unknown[0]} is a class that the training images don't have ({', '.join(self.class_names[:10])});"
                " remove the folder or train on its class"
            )
        names: list[str] = []
        labels: list[int] = []
        for class_name in found:
            files = _image_files(folder / class_name)
            if split == "train" and not files:
                raise DataError(f"{folder / class_name} holds no image ({' '.join(EXTENSIONS)}); fill the class folder or remove it")
            names += [os.path.relpath(path, self._root) for path in files]
            labels += [self.class_names.index(class_name)] * len(files)
        if not names:
            raise DataError(f"{folder} holds no image ({' '.join(EXTENSIONS)}) in its class folders; add some or remove the folder")
        return FileImages(self._root, names, torch.tensor(labels))


def _class_folders(folder: Path) -> list[str]:
    names = sorted(entry.name for entry in folder.iterdir() if entry.is_dir() and not entry.name.startswith("."))
    if not names:
        raise DataError(f"{folder} holds no class folders; put the images of each class into a folder named after it")
    for name in names:
        if not name.isprintable():
            raise DataError(
                f"{printable(folder / name)!r} is a class folder whose name is not printable UTF-8; rename it, since its class is called so"
            )
    return names


def _image_files(folder: Path) -> list[str]:
    found: list[str] = []
    for parent, folders, names in os.walk(folder, onerror=_refuse):
        # A folder that is called like an image is listed as one, for reading it to name it.
        posing = [name for name in folders if name.lower().endswith(EXTENSIONS)]
        folders[:] = [name for name in folders if name not in posing]
        found += [os.path.join(parent, name) for name in (*names, *posing) if name.lower().endswith(EXTENSIONS) and name[0] != "."]
    return sorted(found)


def _refuse(error: OSError) -> NoReturn:
    raise DataError(f"{error.filename} can't be listed ({error.strerror}); make the folder readable") from error
