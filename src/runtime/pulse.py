"""The sign of life of a rank: what it writes at each micro-batch, and the launcher reads.

One ``pwrite`` of a few bytes (about a microsecond), and nothing that waits for the device.
"""

import contextlib
import os
import struct
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeVar

from src.runtime.fault import Fault

if TYPE_CHECKING:
    from torch import Tensor

_FORMAT = struct.Struct("<dqd")


class HasImages(Protocol):
    """A batch of images, first dimension the batch."""

    images: "Tensor"


class Position(Protocol):
    """Where the loop is."""

    step: int
    """Optimizer steps done."""


B = TypeVar("B", bound=HasImages)


@dataclass(frozen=True)
class Beat:
    """The last sign of life: when (``time.monotonic``, one clock for all processes of a machine), and what was done until then."""

    time: float
    step: int
    """Optimizer steps done."""
    busy: float
    """Seconds so far with data and forward passes: the part of a step in which no rank waits for another."""


class Pulse:
    """Writes this rank's beats to ``path``, nowhere if that is None, and lets ``fault`` strike where there is one."""

    def __init__(self, path: Path | None = None, *, fault: Fault | None = None) -> None:
        self._file: int | None = None
        self._fault = fault
        self._step = 0
        self._busy = 0.0
        self._since = time.monotonic()
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)

    def follow(self, batches: Iterator[B], position: Position) -> Iterator[B]:
        """The same batches, with a beat at each."""
        while True:
            self._since = time.monotonic()
            batch = next(batches, None)
            if batch is None:
                return
            if self._fault is not None:
                self._fault.strike(position.step + 1, batch.images)
            self._step = position.step
            self.forward_done()
            yield batch

    def forward_done(self) -> None:
        """Say that this rank's own part of a step, or of its first half, is done; what follows waits for other ranks."""
        now = time.monotonic()
        self._busy += now - self._since
        self._since = now
        self._write(now)

    def alive(self) -> None:
        """Say that work outside of a step goes on: a batch of an evaluation is done."""
        self._write(time.monotonic())

    def _write(self, now: float) -> None:
        if self._file is not None:
            with contextlib.suppress(OSError):  # a full disk must not end the training
                os.pwrite(self._file, _FORMAT.pack(now, self._step, self._busy), 0)


SILENT = Pulse()
"""For a process that no launcher watches."""


def read_beat(path: Path) -> Beat | None:
    """A rank's last beat, None before its first."""
    try:
        data = path.read_bytes()
    except OSError:
        return None
    return Beat(*_FORMAT.unpack(data)) if len(data) == _FORMAT.size else None
