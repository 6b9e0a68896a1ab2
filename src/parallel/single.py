"""One process, one device."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

from torch import Tensor, nn

from src.runtime.rank import Rank

T = TypeVar("T")


class Single:
    """No other ranks: every exchange is the identity."""

    name = "single"
    backend = "none"

    def __init__(self, rank: Rank) -> None:
        self.rank = rank

    def enter(self) -> None:
        """Nothing to join."""

    def exit(self) -> None:
        """Nothing to leave."""

    def wrap(self, model: nn.Module) -> nn.Module:
        """The bare module."""
        return model

    def accumulate(self, wrapped: nn.Module, *, last: bool) -> AbstractContextManager[Any]:
        """Gradients add up by themselves."""
        return nullcontext()

    def sync_buffers(self, model: nn.Module) -> None:
        """One copy only."""

    def sum_(self, tensor: Tensor) -> Tensor:
        """The tensor itself."""
        return tensor

    def gather(self, value: T) -> list[T]:
        """This rank's value."""
        return [value]
