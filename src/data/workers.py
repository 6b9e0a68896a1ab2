"""Images decoded again every epoch by worker processes, for data that doesn't fit on the device."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from src.data.decoder import Decoder
from src.data.images import Images
from src.data.sampler import Span


class WorkersStore:
    """Decodes to squares of ``size`` pixels; batches are on their way to the device while it computes."""

    def __init__(self, images: Images, *, size: int, num_workers: int, device: torch.device) -> None:
        self._decoder = Decoder(images, size=size, num_workers=num_workers, pin_memory=device.type == "cuda")
        self._device = device

    def stream(self, order: Tensor, *, spans: Sequence[Span], index: Tensor) -> Iterator[Tensor]:
        """Pixels of ``order[start:stop]`` for each span, on the device."""
        for pixels in self._decoder.stream([order[span.start : span.stop].tolist() for span in spans]):
            yield pixels.to(self._device, non_blocking=True)
