"""What the data family gives to the engine: batches, feeds and what is known about the data."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor


@dataclass(frozen=True)
class Placement:
    """Which rank asks, among how many, and where its batches go."""

    rank: int
    world_size: int
    local_world_size: int
    device: torch.device
    channels_last: bool


@dataclass(frozen=True)
class InputNeeds:
    """What the network asks of its images: channels (None: any), smallest side and usual side in pixels."""

    channels: int | None
    min_image_size: int
    default_image_size: int


@dataclass(frozen=True)
class InputFormat:
    """How pixels become network input; with it a checkpoint can be evaluated on other images.

    ``mean`` and ``std`` hold one value a channel, for pixels scaled to [0, 1].
    """

    channels: int
    image_size: int
    mean: list[float]
    std: list[float]


@dataclass(frozen=True)
class Mixed:
    """What was blended into a batch: the other images' ``labels`` int64 [B] and their ``share`` float32 [B] of each image."""

    labels: Tensor
    share: Tensor


@dataclass
class Batch:
    """One micro-batch of one rank.

    ``images`` float32 [B, C, H, W] normalised, ``labels`` int64 [B], ``index`` int64 [B] (positions in the split), all on
    the device. ``window`` is the number of micro-batches in this accumulation window; ``last`` marks its last one.
    ``labels`` are the images' own; ``mixed`` is None unless mixup or cutmix blended other images in.
    """

    images: Tensor
    labels: Tensor
    index: Tensor
    window: int
    last: bool
    mixed: Mixed | None = None


class TrainFeed(Protocol):
    """Shuffled, augmented training batches of one rank."""

    steps_per_epoch: int
    """Optimizer steps, that is accumulation windows, of an epoch."""
    images_per_epoch: int
    """Images of an epoch over all ranks."""

    def epoch(self, epoch: int, *, start_step: int = 0) -> Iterator[Batch]:
        """This rank's batches of an epoch; the first ``start_step`` windows are skipped without decoding them."""
        ...


class EvalFeed(Protocol):
    """All images of a split, each on exactly one rank."""

    size: int
    """Images of the split over all ranks."""
    broken_images: int
    """Images that ``data.skip_broken`` left out of what was read for this feed."""

    def batches(self) -> Iterator[Batch]:
        """This rank's batches in a fixed order, unaugmented."""
        ...


@dataclass
class Data:
    """Everything a run needs to know about its data.

    ``digest`` is a SHA-256 over what the data is; ``effective`` holds what was chosen for every ``auto``.
    """

    name: str
    origin: str
    train: TrainFeed
    val: EvalFeed
    class_names: list[str]
    channels: int
    image_size: int
    mean: list[float]
    std: list[float]
    pixel_channels: int
    """Channels of decoded images, 1 or 3; the network's input may have more."""
    pixel_size: int
    """Side in pixels at which decoded images come to the device, which resizes them to ``image_size``."""
    digest: str
    train_size: int
    val_size: int
    val_source: str
    effective: dict[str, str | int | float | bool]

    def sentence(self) -> str:
        """What a person wants to see of the data before training."""
        held = "held out of them (data.val_fraction)" if self.val_source == "held out" else f"of the {self.val_source} split"
        return (
            f"{self.train_size:,} images to train on, {self.val_size:,} to validate on {held}, {len(self.class_names)} classes, "
            f"{self.channels} x {self.image_size} x {self.image_size}, loader {self.effective['loader']}"
        )

    def describe(self) -> dict[str, Any]:
        """What the data is, in plain types for a record of the run."""
        return {
            "name": self.name,
            "source": self.origin,
            "classes": list(self.class_names),
            "train_size": self.train_size,
            "val_size": self.val_size,
            "val_source": self.val_source,
            "digest": self.digest,
        }
