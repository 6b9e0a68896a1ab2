"""ResNet-18 for small images."""

from torch import nn
from torchvision import models as zoo


def resnet18_cifar(num_classes: int, *, channels: int) -> nn.Module:
    """torchvision's ResNet-18 with a 3x3 stem that keeps the resolution and no max pooling; 32x32 pixels end as 4x4 maps.

    The usual form of the network for CIFAR (He et al., 2016, section 4.2, have the same stem); 11.2 million parameters.
    """
    model: nn.Module = zoo.resnet18(weights=None, num_classes=num_classes)
    stem = nn.Conv2d(channels, 64, kernel_size=3, padding=1, bias=False)
    nn.init.kaiming_normal_(stem.weight, mode="fan_out", nonlinearity="relu")  # as torchvision starts the others
    model.conv1 = stem
    model.maxpool = nn.Identity()
    return model
