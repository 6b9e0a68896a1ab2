"""A small convolutional network for images of 8 to 32 pixels."""

import torch.nn.functional as F
from torch import Tensor, nn

_GRID = 4


class DigitsCNN(nn.Module):
    """Two 3x3 convolutions, a grid of 4x4 places and two linear layers (LeCun et al., 1998, with ReLU); 58 thousand parameters.

    No batch norm and no dropout: the loss of a batch does not depend on how ranks share it. Channel counts are
    multiples of 8, which half-precision kernels want, and few, because a CPU without bfloat16 instructions is slow at them.
    """

    def __init__(self, num_classes: int, *, channels: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, 32, kernel_size=3, padding=1)
        self.conv2 = nn.Conv2d(32, 24, kernel_size=3, padding=1)
        self.hidden = nn.Linear(24 * _GRID * _GRID, 128)
        self.head = nn.Linear(128, num_classes)

    def forward(self, images: Tensor) -> Tensor:
        """Logits [B, num_classes] of float images [B, channels, H, W] with H and W of at least 8."""
        x = F.max_pool2d(F.relu(self.conv1(images)), 2)
        x = _grid(F.relu(self.conv2(x)))
        x = F.relu(self.hidden(x.flatten(1)))
        logits: Tensor = self.head(x)
        return logits


def _grid(maps: Tensor) -> Tensor:
    """Mean over 4x4 places of [B, C, H, W]; adaptive pooling does the same but has no deterministic backward on CUDA."""
    height, width = maps.shape[-2:]
    if (height, width) == (_GRID, _GRID):
        return maps
    stride = (height // _GRID, width // _GRID)
    kernel = (height - (_GRID - 1) * stride[0], width - (_GRID - 1) * stride[1])
    return F.avg_pool2d(maps, kernel, stride)
