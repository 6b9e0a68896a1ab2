"""The networks: what each needs of its input, how it is built, and the weights it can start from."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor, nn

from src.config.schema import FIXED_SIZES, CustomModelConfig, ModelConfig, TimmConfig, TorchvisionConfig
from src.errors import ConfigError
from src.models import custom, timm_zoo
from src.models.digits_cnn import DigitsCNN
from src.models.pretrained import load_pretrained

# torchvision's networks are imported where they are built: torchvision loads torch's compiler, which takes as long as torch itself.

TORCHVISION_CHANNELS = 3

__all__ = ["MODELS", "ModelNeeds", "ModelSpec", "build_model", "input_needs", "load_pretrained", "named_weights"]


@dataclass(frozen=True)
class ModelNeeds:
    """The images a network takes.

    ``channels`` is the number of input channels it insists on (None: any); ``min_image_size`` the smallest side in pixels
    that runs; ``image_size`` the side it was designed for.
    """

    channels: int | None
    min_image_size: int
    image_size: int


@dataclass(frozen=True)
class ModelSpec:
    """A network without options of its own; ``build(num_classes, channels, image_size)`` gives the bare module."""

    build: Callable[[int, int, int], nn.Module]
    needs: ModelNeeds


def _from_torchvision(arch: str) -> ModelSpec:
    def build(num_classes: int, channels: int, image_size: int) -> nn.Module:
        from src.models import torchvision_zoo

        return torchvision_zoo.build(arch, num_classes=num_classes, image_size=image_size, kwargs={})

    return ModelSpec(build, ModelNeeds(TORCHVISION_CHANNELS, *FIXED_SIZES[arch]))


def _digits_cnn(num_classes: int, channels: int, image_size: int) -> nn.Module:
    return DigitsCNN(num_classes, channels=channels)


def _alexnet(num_classes: int, channels: int, image_size: int) -> nn.Module:
    from src.models.alexnet import alexnet

    return alexnet(num_classes, channels=channels)


def _resnet18_cifar(num_classes: int, channels: int, image_size: int) -> nn.Module:
    from src.models.resnet_cifar import resnet18_cifar

    return resnet18_cifar(num_classes, channels=channels)


MODELS: dict[str, ModelSpec] = {
    "digits_cnn": ModelSpec(_digits_cnn, ModelNeeds(None, *FIXED_SIZES["digits_cnn"])),
    "alexnet": ModelSpec(_alexnet, ModelNeeds(TORCHVISION_CHANNELS, *FIXED_SIZES["alexnet"])),
    "resnet18": _from_torchvision("resnet18"),
    "resnet18_cifar": ModelSpec(_resnet18_cifar, ModelNeeds(None, *FIXED_SIZES["resnet18_cifar"])),
    "resnet50": _from_torchvision("resnet50"),
    "vit_b_16": _from_torchvision("vit_b_16"),
}


def input_needs(config: ModelConfig) -> ModelNeeds:
    """What the network needs of its input; builds nothing. Raises ``ConfigError`` for an unknown ``arch``."""
    if isinstance(config, TorchvisionConfig):
        from src.models import torchvision_zoo

        sizes = torchvision_zoo.image_sizes(config.arch, published=config.pretrained == "torchvision")
        return ModelNeeds(TORCHVISION_CHANNELS, *sizes)
    if isinstance(config, TimmConfig):
        return ModelNeeds(None, *timm_zoo.image_sizes(config.arch, published=config.pretrained == "timm"))
    if isinstance(config, CustomModelConfig):
        return ModelNeeds(None, min_image_size=1, image_size=224)
    return MODELS[config.name].needs


def build_model(config: ModelConfig, *, num_classes: int, channels: int, image_size: int) -> nn.Module:
    """The network, randomly initialised on the CPU in float32, for images [B, channels, image_size, image_size].

    Raises:
        ConfigError: a name, a size or arguments that the network's library does not know, or a factory that does not give a network.
    """
    needed = input_needs(config).channels
    assert needed in (None, channels), f"{config.name} takes {needed} channels, not {channels}"
    if isinstance(config, TorchvisionConfig):
        from src.models import torchvision_zoo

        return torchvision_zoo.build(config.arch, num_classes=num_classes, image_size=image_size, kwargs=config.kwargs)
    if isinstance(config, TimmConfig):
        return timm_zoo.build(config.arch, num_classes=num_classes, channels=channels, image_size=image_size, kwargs=config.kwargs)
    if isinstance(config, CustomModelConfig):
        return custom.build(config, num_classes=num_classes, channels=channels, image_size=image_size)
    return MODELS[config.name].build(num_classes, channels, image_size)


def named_weights(config: ModelConfig) -> dict[str, Tensor]:
    """The weights that ``model.pretrained=torchvision`` or ``=timm`` stands for, for images normalised with ImageNet's mean and std.

    Raises:
        ConfigError: that library has no weights of the network.
        DataError: the file is neither in the library's cache nor can be downloaded.
    """
    if config.pretrained == "timm" and isinstance(config, TimmConfig):
        return timm_zoo.weights(config.arch, kwargs=config.kwargs)
    from src.models import torchvision_zoo

    if config.pretrained == "torchvision" and isinstance(config, TorchvisionConfig):
        return torchvision_zoo.weights(config.arch)
    if config.pretrained == "torchvision" and config.name in ("alexnet", "resnet18", "resnet50", "vit_b_16"):
        return torchvision_zoo.weights(config.name)
    having = "alexnet, resnet18, resnet50, vit_b_16 or torchvision" if config.pretrained == "torchvision" else "timm"
    raise ConfigError(
        f"model.pretrained={config.pretrained} has no weights of model={config.name}; use it with model={having}, or name a weights file"
    )
