"""Decoding of many images, in this process or in worker processes.

Threads would not do: for small images most of the time is Python's, which holds the interpreter lock.
"""

import os
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler

from src.data.images import ArrayImages, Images
from src.errors import DataError

_CHUNK_BYTES = 2**20
_WORTH_PROCESSES = 512
_MAX_WORKERS = 16
_PREFETCH = 4


class Decoder:
    """A stream of decoded chunks; its worker processes live as long as it does.

    ``pin_memory`` puts the chunks into page-locked memory, from where they reach a GPU without a wait.
    """

    def __init__(self, images: Images, *, size: int, num_workers: int, pin_memory: bool) -> None:
        self._chunks = _Chunks()
        self._loader: DataLoader[Tensor | DataError] = DataLoader(
            _Rows(images, size=size),
            batch_size=None,
            sampler=self._chunks,
            num_workers=num_workers,
            collate_fn=_as_is,
            pin_memory=pin_memory,
            persistent_workers=num_workers > 0,
            generator=torch.Generator(),  # Else each epoch would take a number from the global one, which dropout uses.
            prefetch_factor=_PREFETCH if num_workers > 0 else None,
        )

    def stream(self, chunks: Sequence[list[int]]) -> Iterator[Tensor]:
        """uint8 [len(chunk), C, size, size] for each list of positions, in order. Raises DataError for a broken image."""
        self._chunks.rows = chunks
        for pixels in self._loader:
            if isinstance(pixels, DataError):
                raise pixels
            yield pixels


def decode_all(images: Images, *, size: int, num_workers: int) -> Tensor:
    """Every image, uint8 [N, C, size, size]."""
    if isinstance(images, ArrayImages):
        return images.pixels
    rows = list(range(len(images.labels)))
    image_bytes = images.channels * size * size
    pixels = torch.empty(len(rows), images.channels, size, size, dtype=torch.uint8)
    length = max(1, _CHUNK_BYTES // image_bytes)
    starts = range(0, len(rows), length)
    processes = num_workers if num_workers > 1 and len(rows) >= _WORTH_PROCESSES else 0
    decoder = Decoder(images, size=size, num_workers=processes, pin_memory=False)
    for start, chunk in zip(starts, decoder.stream([rows[start : start + length] for start in starts]), strict=True):
        pixels[start : start + length] = chunk
    return pixels


def resolve_workers(num_workers: int | str, *, in_memory: bool, local_world_size: int) -> int:
    """Worker processes per rank; ``auto`` shares the usable cores among the host's ranks, and needs none for arrays."""
    if num_workers != "auto":
        return int(num_workers)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return 0 if in_memory else max(1, min(cores // local_world_size, _MAX_WORKERS))


class _Chunks(Sampler[list[int]]):
    """The lists of positions of the epoch at hand."""

    rows: Sequence[list[int]] = ()

    def __iter__(self) -> Iterator[list[int]]:
        return iter(self.rows)


class _Rows(Dataset[Tensor | DataError]):
    """Decodes a list of positions at once."""

    def __init__(self, images: Images, *, size: int) -> None:
        self._images = images
        self._size = size

    def __getitem__(self, rows: list[int]) -> Tensor | DataError:
        # An error raised in a worker would come back with the worker's traceback as its message.
        try:
            return self._images.decode(rows, size=self._size)
        except DataError as error:
            return error


def _as_is(pixels: Any) -> Any:
    return pixels
