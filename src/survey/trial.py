"""A network, a precision mode and random images: one training step of a run, without its data."""

import time
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD, Optimizer

from src.config.schema import Config, PrecisionConfig
from src.errors import ConfigError
from src.models import build_model, input_needs
from src.precision import Precision, build_precision

NUM_CLASSES = 10
"""Outputs of the head for ``model.num_classes=auto``, where only the data would tell."""
WARM_UP_STEPS = 3
STEPS = 10


@dataclass(frozen=True)
class Shape:
    """What goes into the network and comes out of it."""

    channels: int
    image_size: int
    num_classes: int

    def __str__(self) -> str:
        return f"{self.channels} x {self.image_size} x {self.image_size}"


@dataclass
class Trial:
    """A network that can take training steps in a precision mode; ``working`` is the module that computes."""

    working: nn.Module
    precision: Precision
    optimizer: Optimizer
    device: torch.device
    channels_last: bool

    def batch(self, size: int, shape: Shape) -> tuple[Tensor, Tensor]:
        """Random images float32 [size, C, H, W] and labels int64 [size] on the device."""
        images = torch.randn(size, shape.channels, shape.image_size, shape.image_size, device=self.device)
        labels = torch.randint(shape.num_classes, (size,), device=self.device)
        return images.contiguous(memory_format=torch.channels_last) if self.channels_last else images, labels

    def forward_backward(self, images: Tensor, labels: Tensor) -> None:
        """One micro-batch, as a run does it: the loss under autocast, scaled, backward."""
        with self.precision.autocast():
            loss = F.cross_entropy(self.working(images), labels)
        self.precision.backward(loss)

    def step(self, images: Tensor, labels: Tensor) -> None:
        """``forward_backward`` and an update of length zero."""
        self.forward_backward(images, labels)
        self.precision.step(self.optimizer, clip_norm=None)
        self.optimizer.zero_grad(set_to_none=True)


def input_shape(config: Config) -> Shape:
    """The images of ``config``'s network where no data tells: three channels if it takes any, the size that it was designed for.

    Raises ``ConfigError`` for a ``data.image_size`` that the network can't take.
    """
    needs = input_needs(config.model)
    size = needs.image_size if config.data.image_size == "auto" else int(config.data.image_size)
    if size < needs.min_image_size:
        raise ConfigError(f"data.image_size={size} is too small for model={config.model.name}; use at least {needs.min_image_size}")
    classes = NUM_CLASSES if config.model.num_classes == "auto" else int(config.model.num_classes)
    return Shape(needs.channels or 3, size, classes)


def build_trial(config: Config, precision: PrecisionConfig, *, shape: Shape, device: torch.device) -> Trial:
    """``config``'s network in a mode. Raises ``ConfigError`` as a run does. Switches TF32 for the whole process, as any mode does."""
    model = build_model(config.model, num_classes=shape.num_classes, channels=shape.channels, image_size=shape.image_size)
    channels_last = device.type == "cuda" if config.train.channels_last == "auto" else bool(config.train.channels_last)
    return try_mode(model, precision, device=device, channels_last=channels_last)


def try_mode(model: nn.Module, precision: PrecisionConfig, *, device: torch.device, channels_last: bool = False) -> Trial:
    """``model`` in a mode on its device."""
    model = model.to(device).train()
    if channels_last:
        model = model.to(memory_format=torch.channels_last)
    mode = build_precision(precision, device=device)
    working = mode.prepare(model)
    return Trial(working, mode, SGD(model.parameters(), lr=0.0, fused=True), device, channels_last)


def step_seconds(trial: Trial, images: Tensor, labels: Tensor, *, limit: float) -> tuple[float, int]:
    """Mean seconds of a step, data excluded, and the number of steps it was taken over.

    Three steps warm up and ten are measured; each of the two ends after ``limit`` seconds, with one step at least.
    """
    _timed(trial, images, labels, steps=WARM_UP_STEPS, limit=limit)
    seconds, steps = _timed(trial, images, labels, steps=STEPS, limit=limit)
    return seconds / steps, steps


def _timed(trial: Trial, images: Tensor, labels: Tensor, *, steps: int, limit: float) -> tuple[float, int]:
    start = time.perf_counter()
    done = 0
    while done < steps and (done == 0 or time.perf_counter() - start < limit):
        trial.step(images, labels)
        done += 1
    if trial.device.type == "cuda":
        torch.cuda.synchronize(trial.device)
    return time.perf_counter() - start, done
