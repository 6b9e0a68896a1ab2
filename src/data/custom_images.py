"""The items of a dataset of the user's own; its own random changes stay alive and repeatable."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from src.data.decode import to_square
from src.data.images import FIRST, FIXED, Turn, one_side, side_kept, spread
from src.data.item import own_generators, read_item, seed_generators, to_pixels
from src.errors import DataError

_MAX_PROBES = 32


@dataclass(frozen=True)
class CustomImages:
    """Items ``rows`` of a dataset, which are pairs of an image and its number in ``labels`` int64 [N].

    Random numbers that the dataset takes from torch, numpy or random are seeded for each item from seed, epoch and the
    item's place in the epoch's order; generators that it keeps itself are not.
    """

    factory: str
    dataset: Any
    rows: Sequence[int]
    labels: Tensor
    channels: int
    in_memory = False
    fixed = False

    @cached_property
    def common_size(self) -> int | None:
        """The side in pixels if some 32 images spread evenly are squares of one size."""
        positions = spread(len(self.rows), _MAX_PROBES)
        with own_generators():
            return one_side(self._pixels(position, FIXED, position).shape[1::-1] for position in positions)

    def stored_size(self, image_size: int) -> int:
        """Never larger than the network's input, and smaller if all images are."""
        return side_kept(self.common_size, image_size)

    def select(self, rows: Sequence[int]) -> "CustomImages":
        """The images at these positions."""
        chosen = [self.rows[row] for row in rows]
        return CustomImages(self.factory, self.dataset, chosen, self.labels[torch.as_tensor(rows)], self.channels)

    def decode(self, rows: Sequence[int], *, size: int, turn: Turn = FIRST) -> Tensor:
        """Pixels of these items, uint8 [len(rows), C, size, size]; what the dataset itself raises passes through.

        Raises DataError for an image that isn't 8-bit grey or RGB, or has another label than ``labels``.
        """
        pixels = torch.empty(len(rows), self.channels, size, size, dtype=torch.uint8)
        target = pixels.numpy()
        with own_generators():
            for number, row in enumerate(rows):
                image = self._pixels(row, turn.entropy, turn.place + number)
                if image.shape[:2] != (size, size):
                    shown = Image.fromarray(image[:, :, 0] if self.channels == 1 else image)
                    image = np.asarray(to_square(shown, size=size)).reshape(size, size, self.channels)
                target[number] = image.transpose(2, 0, 1)
        return pixels

    def fingerprint(self) -> bytes:
        """SHA-256 over the labels; the images themselves would have to be read for that."""
        return hashlib.sha256(self.labels.numpy().data).digest()

    def _pixels(self, row: int, entropy: tuple[int, int, int], place: int) -> np.ndarray:
        """One image as uint8 [H, W, channels]."""
        seed_generators((*entropy, place))
        image, label = read_item(self.dataset, self.rows[row], factory=self.factory)
        where = f"item {self.rows[row]} of data.factory={self.factory}"
        pixels = to_pixels(image, where=where)
        if pixels.shape[2] not in (1, self.channels):
            raise DataError(f"{where} has {pixels.shape[2]} channels and the first item has {self.channels}; give all images the same")
        if label != int(self.labels[row]):
            raise DataError(
                f"{where} has the label {label} but the dataset's .targets say {int(self.labels[row])}; make them equal or drop .targets"
            )
        return np.broadcast_to(pixels, (*pixels.shape[:2], self.channels))
