"""Blending images of a batch in pairs, on the device: mixup (Zhang et al., 2018) and cutmix (Yun et al., 2019).

Both put a rectangle of another image over each image: mixup the whole of it, thinly, and cutmix a part of it, opaquely.
The partner is the image before in the same micro-batch. Like all draws they belong to places in the epoch's order.
"""

from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from torch import Tensor

from src.config.schema import AugmentConfig
from src.data.augment import send
from src.data.base import Mixed


@dataclass(frozen=True)
class MixDraws:
    """``box`` int64 [n, 4] (top, bottom, left, right), ``weight`` of the partner in it and its ``share`` of the image, float32 [n]."""

    box: Tensor
    weight: Tensor
    share: Tensor

    def to(self, device: torch.device) -> Self:
        """The draws on the device, sent without a wait."""
        return type(self)(send(self.box, device), send(self.weight, device), send(self.share, device))

    def apply(self, images: Tensor, labels: Tensor, *, start: int, stop: int) -> tuple[Tensor, Mixed]:
        """``images`` float32 [stop - start, C, S, S] with their partners blended in, and the partners' labels and shares."""
        top, bottom, left, right = self.box[start:stop, :, None].unbind(dim=1)
        place = torch.arange(images.shape[-1], device=images.device)
        rows = ((place >= top) & (place < bottom)) * self.weight[start:stop, None]
        columns = (place >= left) & (place < right)
        weight = (rows[:, :, None] * columns[:, None, :])[:, None]
        return images.lerp(images.roll(1, 0), weight), Mixed(labels.roll(1), self.share[start:stop])


def draw_mix(size: int, *, config: AugmentConfig, seed: int, epoch: int, side: int) -> MixDraws | None:
    """The draws of an epoch of ``size`` images that the network sees with ``side`` pixels, on the CPU; None where both are off.

    Where both are on, each image gets one of them by the toss of a coin.
    """
    if not config.mixup and not config.cutmix:
        return None
    generator = np.random.default_rng([seed, epoch, 2])
    cut = generator.random(size) < 0.5 if config.mixup and config.cutmix else np.full(size, config.cutmix > 0)
    box = np.tile(np.array([0, side, 0, side]), (size, 1))
    share = np.empty(size)
    if config.mixup:
        share[~cut] = generator.beta(config.mixup, config.mixup, size)[~cut]
    if config.cutmix:
        box[cut] = _cut_boxes(generator.beta(config.cutmix, config.cutmix, size), side=side, generator=generator)[cut]
        share[cut] = ((box[:, 1] - box[:, 0]) * (box[:, 3] - box[:, 2]) / side**2)[cut]
    weight = np.where(cut, 1, share)
    return MixDraws(torch.from_numpy(box), torch.from_numpy(weight).float(), torch.from_numpy(share).float())


def _cut_boxes(share: np.ndarray, *, side: int, generator: np.random.Generator) -> np.ndarray:
    """Squares of these shares of the area around places drawn evenly, cut off at the border, int64 [n, 4]."""
    extent = (side * np.sqrt(share)).astype(np.int64)[:, None]
    centre = generator.integers(side, size=(len(share), 2))
    first = np.clip(centre - extent // 2, 0, side)
    last = np.clip(centre - extent // 2 + extent, 0, side)
    return np.stack((first, last), axis=2).reshape(-1, 4)
