"""Decoded images that stay on the device: batches are gathered there, and the host sends one order an epoch."""

from collections.abc import Iterator, Sequence

from torch import Tensor

from src.data.sampler import Span


class ResidentStore:
    """``pixels`` uint8 [N, C, S, S] on the device."""

    def __init__(self, pixels: Tensor) -> None:
        self.pixels = pixels

    def stream(self, order: Tensor, *, spans: Sequence[Span], index: Tensor, entropy: tuple[int, int, int]) -> Iterator[Tensor]:
        """Pixels of ``index[start:stop]`` for each span; ``index`` is ``order`` on the device, and ``entropy`` came too late."""
        for span in spans:
            yield self.pixels.index_select(0, index[span.start : span.stop])
