"""AlexNet (Krizhevsky, 2014) from torchvision, with a deterministic backward pass on the images it was designed for."""

from torch import Tensor, nn
from torchvision import models as zoo


class _FittingPool(nn.AdaptiveAvgPool2d):
    """Adaptive pooling that does nothing to maps of the right size: its backward pass is not deterministic on CUDA."""

    def forward(self, maps: Tensor) -> Tensor:
        return maps if maps.shape[-2:] == self.output_size else super().forward(maps)


def alexnet(num_classes: int, *, channels: int) -> nn.Module:
    """torchvision's network and state dict keys, randomly initialised; deterministic for 223 to 254 pixels."""
    assert channels == 3
    model: nn.Module = zoo.alexnet(weights=None, num_classes=num_classes)
    model.avgpool = _FittingPool((6, 6))
    return model
