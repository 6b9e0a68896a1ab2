"""8-bit pixels to network input, on the device and in few kernels; the same for training, evaluation and prediction."""

import torch
import torch.nn.functional as F
from torch import Tensor

from src.data.base import InputFormat, Placement

_STATISTICS_CHUNK = 2048


class Preprocess:
    """Normalise, give grey images the channels asked for, resize. Called with pixels 0 to 255, uint8 or float32 [B, C, S, S]."""

    def __init__(self, form: InputFormat, *, placement: Placement) -> None:
        mean = torch.tensor(form.mean, dtype=torch.float64)
        std = torch.tensor(form.std, dtype=torch.float64)
        # (x / 255 - mean) / std as one multiply-add; one channel of x broadcasts to the channels of the scale.
        self._scale = _per_channel(1 / (255 * std), placement.device)
        self._shift = _per_channel(-mean / std, placement.device)
        self.form = form
        self.size = form.image_size
        self._memory_format = torch.channels_last if placement.channels_last else torch.contiguous_format

    def __call__(self, pixels: Tensor) -> Tensor:
        """float32 [B, channels, image_size, image_size] in the memory format asked for."""
        # Normalising before resizing gives the same (the weights of a bilinear mean add to 1) and touches the smaller image.
        images = torch.addcmul(self._shift, pixels, self._scale)
        side = images.shape[-1]
        if side != self.size:
            images = F.interpolate(images, size=(self.size, self.size), mode="bilinear", antialias=side > self.size)
        return images.contiguous(memory_format=self._memory_format)


def pixel_statistics(pixels: Tensor) -> tuple[list[float], list[float]]:
    """Mean and standard deviation per channel of uint8 [N, C, H, W], for values scaled to [0, 1]; exact, in float64.

    A constant channel gets the smallest step, 1/255, as its deviation.
    """
    counts = torch.zeros(pixels.shape[1], 256, dtype=torch.int64, device=pixels.device)
    for chunk in pixels.split(_STATISTICS_CHUNK):
        counts += torch.stack([torch.bincount(chunk[:, channel].flatten(), minlength=256) for channel in range(pixels.shape[1])])
    share = counts.double() / counts.sum(dim=1, keepdim=True)
    values = torch.arange(256, dtype=torch.float64, device=pixels.device) / 255
    mean = share @ values
    std = (share * (values - mean[:, None]).square()).sum(dim=1).sqrt().clamp(min=1 / 255)
    return mean.tolist(), std.tolist()


def _per_channel(values: Tensor, device: torch.device) -> Tensor:
    return values.to(device=device, dtype=torch.float32).view(1, -1, 1, 1)
