"""Random changes of training images, on the device.

The draws belong to places in the epoch's order, not to a rank or a worker: no two images share one, a resumed epoch
continues with the same ones, and the world size changes nothing.
"""

from dataclasses import dataclass
from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor

from src.config.schema import AugmentConfig
from src.data.sampler import epoch_generator


@dataclass(frozen=True)
class Draws:
    """``flip`` bool [n] and ``offset`` int64 [n, 2] (down, right; 0 to twice the padding); None: that change is off."""

    flip: Tensor | None
    offset: Tensor | None
    padding: int

    def to(self, device: torch.device) -> Self:
        """The draws on the device, sent without a wait."""
        return type(self)(_maybe(self.flip, device), _maybe(self.offset, device), self.padding)

    def apply(self, images: Tensor, *, start: int, stop: int) -> Tensor:
        """``images`` uint8 [stop - start, C, H, W], changed by the draws of these places."""
        if self.offset is not None:
            images = _crop(images, self.offset[start:stop], padding=self.padding)
        if self.flip is not None:
            images = torch.where(self.flip[start:stop, None, None, None], images.flip(-1), images)
        return images


def draw(size: int, *, config: AugmentConfig, seed: int, epoch: int) -> Draws:
    """The draws of an epoch of ``size`` images, on the CPU."""
    generator = epoch_generator(seed, epoch=epoch, purpose=1)
    flip = torch.rand(size, generator=generator) < 0.5
    offset = torch.randint(2 * config.crop_padding + 1, (size, 2), generator=generator)
    return Draws(flip if config.flip else None, offset if config.crop_padding else None, config.crop_padding)


def send(tensor: Tensor, device: torch.device) -> Tensor:
    """``tensor`` on the device; on a GPU by way of page-locked memory, so that the host does not wait."""
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)


def _maybe(tensor: Tensor | None, device: torch.device) -> Tensor | None:
    return None if tensor is None else send(tensor, device)


def _crop(images: Tensor, offset: Tensor, *, padding: int) -> Tensor:
    """Pad with black and cut out the original size at each image's own offset, in one gather."""
    batch, channels, height, width = images.shape
    padded = F.pad(images, (padding,) * 4)
    index = torch.arange(max(batch, channels, height, width), device=images.device)
    rows = offset[:, 0, None] + index[:height]
    columns = offset[:, 1, None] + index[:width]
    return padded[index[:batch, None, None, None], index[:channels, None, None], rows[:, None, :, None], columns[:, None, None, :]]
