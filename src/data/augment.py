"""Random changes of training images, on the device.

The draws belong to places in the epoch's order, not to a rank or a worker: no two images share one, a resumed epoch
continues with the same ones, and the world size changes nothing.
"""

import math
from dataclasses import dataclass
from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor

from src.config.schema import AugmentConfig
from src.data.sampler import epoch_generator

_LOG_ASPECT = math.log(4 / 3)
_ATTEMPTS = 10


@dataclass(frozen=True)
class Draws:
    """``flip`` bool [n], ``offset`` int64 [n, 2] (down, right; 0 to twice the padding), ``box`` int64 [n, 4] (top, left, height, width).

    None: that change is off.
    """

    flip: Tensor | None
    offset: Tensor | None
    padding: int
    box: Tensor | None

    def to(self, device: torch.device) -> Self:
        """The draws on the device, sent without a wait."""
        return type(self)(_maybe(self.flip, device), _maybe(self.offset, device), self.padding, _maybe(self.box, device))

    def apply(self, images: Tensor, *, start: int, stop: int) -> Tensor:
        """``images`` uint8 [stop - start, C, S, S], changed by the draws of these places; float32 if boxes were cut out."""
        if self.offset is not None:
            images = _crop(images, self.offset[start:stop], padding=self.padding)
        if self.flip is not None:
            images = torch.where(self.flip[start:stop, None, None, None], images.flip(-1), images)
        if self.box is not None:
            images = resized_crop(images, self.box[start:stop])
        return images


def draw(size: int, *, config: AugmentConfig, seed: int, epoch: int, side: int) -> Draws:
    """The draws of an epoch of ``size`` square images of ``side`` pixels, on the CPU."""
    generator = epoch_generator(seed, epoch=epoch, purpose=1)
    flip = torch.rand(size, generator=generator) < 0.5  # Also where it is off: the offsets come after it.
    offset = torch.randint(2 * config.crop_padding + 1, (size, 2), generator=generator) if config.crop_padding else None
    box = None
    if config.random_resized_crop is not None:
        generator = epoch_generator(seed, epoch=epoch, purpose=3)
        box = _boxes(size, least=config.random_resized_crop, side=side, generator=generator)
    return Draws(flip if config.flip else None, offset, config.crop_padding, box)


def send(tensor: Tensor, device: torch.device) -> Tensor:
    """``tensor`` on the device; on a GPU by way of page-locked memory, so that the host does not wait."""
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)


def resized_crop(images: Tensor, box: Tensor) -> Tensor:
    """float32 [B, C, S, S]: each image's ``box`` (top, left, height, width) enlarged to the whole, bilinear, in one gather."""
    side = images.shape[-1]
    top, left, height, width = box.unbind(dim=1)
    rows, columns = _samples(top, height, side=side), _samples(left, width, side=side)
    grid = torch.stack((columns[:, None, :].expand(-1, side, -1), rows[:, :, None].expand(-1, -1, side)), dim=-1)
    return F.grid_sample(images.float(), grid, mode="bilinear", align_corners=False)


def _samples(start: Tensor, length: Tensor, *, side: int) -> Tensor:
    """Where the ``side`` samples of each box lie, float32 [B, side], in grid_sample's -1 to 1; never beyond the box's own pixels."""
    steps = torch.arange(side, device=start.device) + 0.5
    within = (steps * (length[:, None] / side) - 0.5).clamp(min=0).minimum(length[:, None] - 1.0)
    return (2 * (start[:, None] + within) + 1) / side - 1


def _boxes(size: int, *, least: float, side: int, generator: torch.Generator) -> Tensor:
    """Boxes int64 [size, 4] as torchvision's RandomResizedCrop draws them (Szegedy et al., 2015).

    The share of the area is uniform from ``least`` to 1 and the logarithm of the aspect ratio uniform from that of 3/4 to
    that of 4/3; a box that doesn't fit is drawn again, and the tenth time becomes the whole image.
    """
    extent = torch.full((size, 2), side)
    pending = torch.arange(size)
    for _ in range(_ATTEMPTS):
        share, aspect = torch.rand(2, len(pending), generator=generator, dtype=torch.float64)
        area = side**2 * (least + (1 - least) * share)
        aspect = torch.exp(_LOG_ASPECT * (2 * aspect - 1))
        drawn = torch.stack((area / aspect, area * aspect), dim=1).sqrt().round().long()
        fits = ((drawn > 0) & (drawn <= side)).all(dim=1)
        extent[pending[fits]] = drawn[fits]
        pending = pending[~fits]
    corner = (torch.rand(size, 2, generator=generator, dtype=torch.float64) * (side - extent + 1)).long()
    return torch.cat((corner, extent), dim=1)


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
