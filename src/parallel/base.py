"""The protocol of a parallel mode. Model code knows nothing of it."""

from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeVar

from torch import Tensor, nn

from src.runtime.rank import Rank

T = TypeVar("T")


class Parallel(Protocol):
    """How ranks work together. Every rank calls every method at the same point of the program."""

    name: str
    rank: Rank
    backend: str

    def enter(self) -> None:
        """Join the group of ranks."""

    def exit(self) -> None:
        """Leave the group; only after success, since leaving waits for the others."""

    def wrap(self, model: nn.Module) -> nn.Module:
        """The module to call in training; its parameters are those of ``model``, equal on all ranks."""

    def accumulate(self, wrapped: nn.Module, *, last: bool) -> AbstractContextManager[Any]:
        """The region of one micro-batch's forward and backward; gradients are exchanged in the last one only."""

    def sync_buffers(self, model: nn.Module) -> None:
        """Make floating-point buffers (batch statistics) equal on all ranks: their mean."""

    def sum_(self, tensor: Tensor) -> Tensor:
        """Sum over ranks, in place."""

    def gather(self, value: T) -> list[T]:
        """Every rank's value, in rank order. Slow: for checkpoints and start-up."""
