"""The data sets by name: each gives its class names and the images of its splits."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch

from src.config.schema import DataConfig, DigitsConfig, ImageFolderConfig, SyntheticConfig
from src.data.folder import FolderSource
from src.data.images import ArrayImages, Images
from src.errors import DataError

_CHUNK_BYTES = 2**26


class Source(Protocol):
    """A data set."""

    @property
    def class_names(self) -> list[str]:
        """The classes in the order of their numbers."""
        ...

    @property
    def val_split(self) -> str | None:
        """The split used for validation; None: some training images are held out."""
        ...

    def images(self, split: str) -> Images:
        """The images of ``train``, ``val`` or ``test``. Raises DataError if the data set has no such split."""
        ...


@dataclass(frozen=True)
class ArraySource:
    """Splits in memory."""

    class_names: list[str]
    splits: dict[str, ArrayImages]
    val_split: str | None = None

    def images(self, split: str) -> ArrayImages:
        """The images of a split."""
        if split not in self.splits:
            raise DataError(f"split={split}: this data set has no {split} images of its own; use train or val")
        return self.splits[split]


def load_source(config: DataConfig, *, class_names: list[str] | None = None) -> Source:
    """The data set that ``config.name`` names. ``class_names``: the order of the classes where folders define it."""
    return SOURCES[config.name](config, class_names)


def _digits(config: DigitsConfig, class_names: list[str] | None) -> Source:
    from sklearn.datasets import load_digits  # Costs half a second; other data sets don't need it.

    bunch = load_digits()
    pixels = torch.from_numpy((bunch.images * 15).astype(np.uint8)).unsqueeze(1)
    return ArraySource([str(name) for name in bunch.target_names], {"train": ArrayImages(pixels, torch.from_numpy(bunch.target).long())})


def _image_folder(config: ImageFolderConfig, class_names: list[str] | None) -> Source:
    return FolderSource(config.root, class_names=class_names)


def _synthetic(config: SyntheticConfig, class_names: list[str] | None) -> Source:
    generator = np.random.default_rng(config.seed)
    # 4x4 coarse cells a class: visible to a small network, and it survives resizing.
    cells = generator.integers(0, 128, (config.classes, config.channels, 4, 4), dtype=np.uint8)
    near = np.arange(config.pixels) * 4 // config.pixels
    patterns = cells[:, :, near[:, None], near[None, :]]
    return ArraySource(
        [f"class{number}" for number in range(config.classes)],
        {"train": _noisy(patterns, config.size, generator), "val": _noisy(patterns, config.val_size, generator)},
        val_split="val",
    )


def _noisy(patterns: np.ndarray, size: int, generator: np.random.Generator) -> ArrayImages:
    """``size`` images with classes in turn: the class pattern (0..127) plus uniform noise (0..127)."""
    labels = np.arange(size) % len(patterns)
    pixels = np.empty((size, *patterns.shape[1:]), dtype=np.uint8)
    chunk = max(1, _CHUNK_BYTES // patterns[0].nbytes)
    for start in range(0, size, chunk):
        part = pixels[start : start + chunk]
        # Whole bytes halved: numpy draws them several times faster than numbers below 128.
        np.right_shift(generator.integers(0, 256, part.shape, dtype=np.uint8), 1, out=part)
        part += patterns[labels[start : start + chunk]]
    return ArrayImages(torch.from_numpy(pixels), torch.from_numpy(labels))


SOURCES: dict[str, Callable[[Any, list[str] | None], Source]] = {
    "digits": _digits,
    "image_folder": _image_folder,
    "synthetic": _synthetic,
}
