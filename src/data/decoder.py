"""Decoding of many images, in this process or in worker processes.

Threads would not do: for small images most of the time is Python's, which holds the interpreter lock.
"""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler

from src.data.images import FIXED, ArrayImages, Images, Turn
from src.errors import DataError
from src.runtime.parent import die_with

_CHUNK_BYTES = 2**20
_WORTH_PROCESSES = 512
_MAX_WORKERS = 16
_PREFETCH = 4

T = TypeVar("T")


@dataclass(frozen=True)
class Chunk:
    """Positions that are read at once, and what their own randomness is seeded from."""

    rows: list[int]
    turn: Turn


class Decoder(Generic[T]):
    """A stream of what ``read`` gives for chunks; its worker processes live as long as it does.

    ``pin_memory`` puts pixels into page-locked memory, from where they reach a GPU without a wait.
    """

    def __init__(self, read: Callable[[Chunk], T], *, num_workers: int, pin_memory: bool) -> None:
        self._chunks = _Chunks()
        self._loader: DataLoader[T | DataError] = DataLoader(
            _Reads(read),
            batch_size=None,
            sampler=self._chunks,
            num_workers=num_workers,
            collate_fn=_as_is,
            pin_memory=pin_memory,
            persistent_workers=num_workers > 0,
            generator=torch.Generator(),  # Else each epoch would take a number from the global one, which dropout uses.
            prefetch_factor=_PREFETCH if num_workers > 0 else None,
            worker_init_fn=partial(_be_a_worker, parent=os.getpid()),
        )
        if num_workers > 0:  # Fork now, with nothing to read yet: forked beside threads at work, a process can inherit a taken lock.
            iter(self._loader)

    def stream(self, chunks: Sequence[Chunk]) -> Iterator[T]:
        """What each chunk gave, in order. Raises DataError for a broken image, RuntimeError if a worker process dies."""
        self._chunks.all = chunks
        try:
            for result in self._loader:
                if isinstance(result, DataError):
                    raise result
                yield result
        except (ConnectionError, EOFError, RuntimeError) as error:
            if not self._loader.num_workers or not _lost_connection(error):
                raise
            time.sleep(1)  # a worker died while it handed images over; torch hears of that, and raises the RuntimeError that names it
            raise RuntimeError("DataLoader worker (pid unknown) died while it handed over images") from error


def _be_a_worker(worker: int, *, parent: int) -> None:
    """Signals to the rank's group are for the rank to answer, which needs its workers until it has; they end when it does."""
    os.setpgrp()
    die_with(parent)


def _lost_connection(error: Exception) -> bool:
    """Whether a worker could not be read from, in this thread or in that which pins memory; an error of reading itself is none."""
    if isinstance(error, RuntimeError):
        return str(error).startswith("Pin memory thread exited")
    return "in DataLoader worker process" not in str(error)


def pixel_decoder(images: Images, *, size: int, num_workers: int, pin_memory: bool) -> Decoder[Tensor]:
    """Chunks of ``images`` as uint8 [len(rows), C, size, size]."""
    return Decoder(partial(_decode, images, size), num_workers=num_workers, pin_memory=pin_memory)


def decode_all(images: Images, *, size: int, num_workers: int) -> Tensor:
    """Every image, uint8 [N, C, size, size]."""
    if isinstance(images, ArrayImages):
        return images.pixels
    count = len(images.labels)
    pixels = torch.empty(count, images.channels, size, size, dtype=torch.uint8)
    length = max(1, _CHUNK_BYTES // (images.channels * size * size))
    chunks = chunked(count, length=length)
    decoder = pixel_decoder(images, size=size, num_workers=useful_workers(count, num_workers), pin_memory=False)
    for chunk, part in zip(chunks, decoder.stream(chunks), strict=True):
        pixels[chunk.turn.place : chunk.turn.place + length] = part
    return pixels


def chunked(count: int, *, length: int) -> list[Chunk]:
    """All of ``count`` positions in order, in chunks of ``length``."""
    return [Chunk(list(range(start, min(start + length, count))), Turn(FIXED, start)) for start in range(0, count, length)]


def useful_workers(count: int, num_workers: int) -> int:
    """Worker processes for reading ``count`` images once; 0 where starting them takes longer."""
    return num_workers if num_workers > 1 and count >= _WORTH_PROCESSES else 0


def resolve_workers(num_workers: int | str, *, in_memory: bool, local_world_size: int) -> int:
    """Worker processes per rank; ``auto`` shares the usable cores among the host's ranks, and needs none for arrays."""
    if num_workers != "auto":
        return int(num_workers)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return 0 if in_memory else max(1, min(cores // local_world_size, _MAX_WORKERS))


class _Chunks(Sampler[Chunk]):
    """The chunks of the epoch at hand."""

    all: Sequence[Chunk] = ()

    def __iter__(self) -> Iterator[Chunk]:
        return iter(self.all)


class _Reads(Dataset[T | DataError]):
    """Reads a chunk at once."""

    def __init__(self, read: Callable[[Chunk], T]) -> None:
        self._read = read

    def __getitem__(self, chunk: Chunk) -> T | DataError:
        # An error raised in a worker would come back with the worker's traceback as its message.
        try:
            return self._read(chunk)
        except DataError as error:
            return error


def _decode(images: Images, size: int, chunk: Chunk) -> Tensor:
    return images.decode(chunk.rows, size=size, turn=chunk.turn)


def _as_is(result: Any) -> Any:
    return result
