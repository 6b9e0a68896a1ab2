"""The networks: a table from ``model.name`` to what builds it and what it needs of its input."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import nn
from torchvision import models as zoo

from src.config.schema import SMALLEST_IMAGE
from src.models.alexnet import alexnet
from src.models.digits_cnn import DigitsCNN


@dataclass(frozen=True)
class ModelSpec:
    """A network and the images it takes.

    ``build(num_classes, channels)`` gives the bare module; ``channels`` is the number of input channels it insists on
    (None: any); ``min_image_size`` the smallest side in pixels that runs; ``image_size`` the side it was designed for.
    """

    build: Callable[[int, int], nn.Module]
    channels: int | None
    min_image_size: int
    image_size: int


def _digits_cnn(num_classes: int, channels: int) -> nn.Module:
    return DigitsCNN(num_classes, channels=channels)


def _alexnet(num_classes: int, channels: int) -> nn.Module:
    return alexnet(num_classes, channels=channels)


def _resnet18(num_classes: int, channels: int) -> nn.Module:
    model: nn.Module = zoo.resnet18(weights=None, num_classes=num_classes)
    return model


MODELS: dict[str, ModelSpec] = {
    "digits_cnn": ModelSpec(_digits_cnn, channels=None, min_image_size=SMALLEST_IMAGE["digits_cnn"], image_size=32),
    "alexnet": ModelSpec(_alexnet, channels=3, min_image_size=SMALLEST_IMAGE["alexnet"], image_size=227),
    "resnet18": ModelSpec(_resnet18, channels=3, min_image_size=SMALLEST_IMAGE["resnet18"], image_size=224),
}


def build_model(name: str, *, num_classes: int, channels: int) -> nn.Module:
    """The network called ``name``, randomly initialised on the CPU, for images with ``channels`` channels."""
    spec = MODELS[name]
    assert spec.channels in (None, channels), f"{name} takes {spec.channels} channels, not {channels}"
    return spec.build(num_classes, channels)
