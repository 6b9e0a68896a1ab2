"""The images of a split before they are batched: an array, or files on disk."""

import hashlib
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Protocol, Self

import numpy as np
import torch
from torch import Tensor

from src.data.decode import decode, read_size, unreadable

_MAX_PROBES = 2048


@dataclass(frozen=True)
class Turn:
    """What the own randomness of images is seeded from: ``entropy`` (seed, epoch, purpose) and the place of the first row read."""

    entropy: tuple[int, int, int]
    place: int


FIXED = (0, 0, 5)
"""The entropy of every read that is not of a training epoch, so that evaluation is the same at any time."""
FIRST = Turn(FIXED, 0)
TRAINING = 4
"""The purpose of reads for a training epoch."""


class Images(Protocol):
    """Labelled images. ``decode`` gives uint8 [len(rows), channels, size, size]."""

    @property
    def labels(self) -> Tensor:
        """int64 [N], on the CPU."""
        ...

    @property
    def channels(self) -> int:
        """Colour channels that ``decode`` gives."""
        ...

    @property
    def in_memory(self) -> bool:
        """Whether nothing needs decoding."""
        ...

    @property
    def fixed(self) -> bool:
        """Whether an image is the same each time it is read."""
        ...

    @property
    def common_size(self) -> int | None:
        """The side in pixels if all images are squares of one size."""
        ...

    def stored_size(self, image_size: int) -> int:
        """The side in pixels that images keep until they are on the device, for a network fed with ``image_size``."""
        ...

    def select(self, rows: Sequence[int]) -> Self:
        """The images at these positions."""
        ...

    def decode(self, rows: Sequence[int], *, size: int, turn: Turn = FIRST) -> Tensor:
        """Pixels at these positions; ``size`` is what ``stored_size`` gave, ``turn`` counts where images are not ``fixed``."""
        ...

    def fingerprint(self) -> bytes:
        """SHA-256 over what the images and labels are."""
        ...


@dataclass(frozen=True)
class ArrayImages:
    """Square images in memory: ``pixels`` uint8 [N, C, S, S], ``labels`` int64 [N]."""

    pixels: Tensor
    labels: Tensor
    in_memory = True
    fixed = True

    @property
    def channels(self) -> int:
        """Colour channels."""
        return self.pixels.shape[1]

    @property
    def common_size(self) -> int:
        """The side in pixels."""
        return self.pixels.shape[-1]

    def stored_size(self, image_size: int) -> int:
        """The side in pixels; resizing is left to the device."""
        return self.common_size

    def select(self, rows: Sequence[int]) -> "ArrayImages":
        """The images at these positions."""
        index = torch.as_tensor(rows)
        return ArrayImages(self.pixels[index], self.labels[index])

    def decode(self, rows: Sequence[int], *, size: int, turn: Turn = FIRST) -> Tensor:
        """Pixels at these positions, uint8 [len(rows), C, S, S]."""
        return self.pixels[torch.as_tensor(rows)]

    def fingerprint(self) -> bytes:
        """SHA-256 over pixels and labels."""
        digest = hashlib.sha256(repr(tuple(self.pixels.shape)).encode())
        digest.update(self.pixels.contiguous().numpy().data)
        digest.update(self.labels.numpy().data)
        return digest.digest()


@dataclass(frozen=True)
class FileImages:
    """Image files: ``names`` relative to ``root``, ``labels`` int64 [N]; always decoded to 3 channels."""

    root: Path
    names: list[str]
    labels: Tensor
    channels = 3
    in_memory = False
    fixed = True

    @cached_property
    def common_size(self) -> int | None:
        """The side in pixels if all images, of many some 2,000 spread evenly, are squares of one size; reads headers only."""
        return one_side(read_size(self.root / self.names[row]) for row in spread(len(self.names), _MAX_PROBES))

    def stored_size(self, image_size: int) -> int:
        """Never larger than the network's input, and smaller if all images are: small ones are cheaper to move and augment."""
        return side_kept(self.common_size, image_size)

    def select(self, rows: Sequence[int]) -> "FileImages":
        """The images at these positions."""
        return FileImages(self.root, [self.names[row] for row in rows], self.labels[torch.as_tensor(rows)])

    def decode(self, rows: Sequence[int], *, size: int, turn: Turn = FIRST) -> Tensor:
        """Pixels of these files, uint8 [len(rows), 3, size, size]. Raises DataError naming the first broken one."""
        pixels = torch.empty(len(rows), 3, size, size, dtype=torch.uint8)
        target = pixels.numpy()
        for position, row in enumerate(rows):
            target[position] = decode(self.root / self.names[row], size=size)
        return pixels

    def fingerprint(self) -> bytes:
        """SHA-256 over names, file sizes and labels; contents are not read."""
        digest = hashlib.sha256()
        for name, label in zip(self.names, self.labels.tolist(), strict=True):
            try:
                size = os.stat(os.path.join(self.root, name)).st_size
            except OSError as error:
                raise unreadable(self.root / name, error) from error
            digest.update(f"{name}\0{size}\0{label}\n".encode("utf-8", "surrogateescape"))
        return digest.digest()


def spread(count: int, most: int) -> list[int]:
    """At most ``most`` positions of ``count``, evenly spread from the first to the last."""
    rows: list[int] = np.unique(np.linspace(0, count - 1, most).round().astype(int)).tolist()
    return rows


def one_side(sizes: Iterable[tuple[int, int]]) -> int | None:
    """The side in pixels if all of these widths and heights are of squares of one size."""
    (width, height), *others = set(sizes)
    return width if width == height and not others else None


def side_kept(common_size: int | None, image_size: int) -> int:
    """The side for images that are decoded: never larger than the network's input."""
    return image_size if common_size is None else min(common_size, image_size)
