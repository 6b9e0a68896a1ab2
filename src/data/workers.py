"""Images decoded again every epoch by worker processes, for data that doesn't fit on the device."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from src.data.decoder import Chunk, pixel_decoder
from src.data.images import Images, Turn
from src.data.sampler import Span


class WorkersStore:
    """Decodes to squares of ``size`` pixels; batches are on their way to the device while it computes."""

    def __init__(self, images: Images, *, size: int, num_workers: int, device: torch.device) -> None:
        self._decoder = pixel_decoder(images, size=size, num_workers=num_workers, pin_memory=device.type == "cuda")
        self._device = device

    def stream(self, order: Tensor, *, spans: Sequence[Span], index: Tensor, entropy: tuple[int, int, int]) -> Iterator[Tensor]:
        """Pixels of ``order[start:stop]`` for each span, on the device; ``entropy`` seeds the images' own randomness."""
        chunks = [Chunk(order[span.start : span.stop].tolist(), Turn(entropy, span.start)) for span in spans]
        for pixels in self._decoder.stream(chunks):
            yield pixels.to(self._device, non_blocking=True)
