"""One item of a user's dataset: seeded, and its image as 8-bit pixels."""

import operator
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from src.data.decode import to_rgb
from src.errors import DataError

_GREY_MODES = ("1", "L", "LA", "La", "I")


@contextmanager
def own_generators() -> Iterator[None]:
    """The global generators of torch (on the CPU), numpy and random are afterwards what they were before."""
    before = torch.get_rng_state(), random.getstate(), np.random.get_state()
    try:
        yield
    finally:
        torch.set_rng_state(before[0])
        random.setstate(before[1])
        np.random.set_state(before[2])


def seed_generators(entropy: Sequence[int]) -> None:
    """Seed these generators; torch's on the GPU, which dropout uses, is left alone."""
    words = np.random.SeedSequence(entropy).generate_state(4)
    torch.default_generator.manual_seed(int(words[0]) << 32 | int(words[1]))
    random.seed(int(words[2]))
    np.random.seed(words[3])


def read_item(dataset: Any, row: int, *, factory: str) -> tuple[Any, int]:
    """Image and label of an item. Raises DataError for anything else, and what the dataset raises with a note of the item."""
    where = f"item {row} of data.factory={factory}"
    try:
        item = dataset[row]
    except Exception as error:
        error.add_note(f"raised by {where}")
        raise
    if not isinstance(item, tuple | list) or len(item) != 2:
        raise DataError(f"{where} is a {type(item).__name__}; return a pair (image, label)")
    try:
        return item[0], operator.index(item[1])
    except TypeError as error:
        raise DataError(f"{where} has a label of type {type(item[1]).__name__}; give the number of its class as an integer") from error


def to_pixels(image: Any, *, where: str) -> np.ndarray:
    """uint8 [H, W, 1 or 3] of a PIL image, a uint8 tensor [C, H, W] or a uint8 array [H, W] or [H, W, C].

    Raises DataError, which begins with ``where``, for anything else.
    """
    if isinstance(image, Image.Image):
        try:
            rgb = np.asarray(to_rgb(image))
        except (ValueError, OSError) as error:
            raise DataError(f"{where} can't be read as an image ({error})") from error
        return rgb[:, :, :1] if image.mode in _GREY_MODES or image.mode.startswith("I;16") else rgb
    if not isinstance(image, Tensor | np.ndarray):
        raise DataError(
            f"{where} is a {type(image).__name__}; give a PIL image, a uint8 tensor [C, H, W] or a uint8 array [H, W] or [H, W, C]"
        )
    dtype = str(image.dtype).removeprefix("torch.")
    if dtype != "uint8":
        raise DataError(
            f"{where} has {dtype} pixels; give uint8 from 0 to 255 (leave out ToTensor and Normalize:"
            " scaling and normalisation happen on the device, see data.mean and data.std)"
        )
    if isinstance(image, Tensor):
        array, layout = image.cpu().numpy(), "[C, H, W]"
        array = array.transpose(1, 2, 0) if array.ndim == 3 else array
    else:
        array, layout = (image[:, :, None] if image.ndim == 2 else image), "[H, W] or [H, W, C]"
    if array.ndim != 3 or array.shape[2] not in (1, 3) or array.size == 0:
        raise DataError(f"{where} has the shape {list(image.shape)}; give {layout} with 1 or 3 channels")
    return array
