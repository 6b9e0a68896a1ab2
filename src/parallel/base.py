"""What a parallel mode does. Model code knows nothing of it."""

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from src.runtime.rank import Rank

T = TypeVar("T")


class Computing(Protocol):
    """As much of a precision mode as a parallel mode needs."""

    dtype: torch.dtype

    def autocast(self) -> AbstractContextManager[Any]:
        """The region of the forward pass."""


class Parallel:
    """How ranks work together. Every rank calls every method at the same point of the program.

    The methods here are those of a lone process that holds everything; a mode replaces what is different.
    """

    name: str
    backend = "none"
    num_replicas = 1
    """Devices that share each micro-batch of this process."""
    shares = False
    """Whether each rank holds a share of the weights instead of all of them."""

    def __init__(self, rank: Rank) -> None:
        self.rank = rank

    def enter(self) -> None:
        """Join the group of ranks."""

    def exit(self) -> None:
        """Leave the group; only after success, since leaving waits for the others."""

    def wrap(self, model: nn.Module, precision: Computing) -> nn.Module:
        """The module to call in training; its parameters are those of ``model``, equal on all ranks."""
        return model

    def accumulate(self, wrapped: nn.Module, *, last: bool) -> AbstractContextManager[Any]:
        """The region of one micro-batch's forward and backward; gradients are exchanged in the last one only."""
        return nullcontext()

    def sync_buffers(self, model: nn.Module) -> None:
        """Make floating-point buffers (batch statistics) equal on all ranks: their mean."""

    def sum_(self, tensor: Tensor) -> Tensor:
        """Sum over ranks, in place."""
        return tensor

    def gather(self, value: T) -> list[T]:
        """Every rank's value, in rank order. Slow: for checkpoints and start-up."""
        return [value]

    # Where the weights are: whole on every rank, or a share on each.

    def sum_shares_(self, tensor: Tensor) -> Tensor:
        """Sum, in place, over the ranks that hold shares of one copy of the weights; nothing where each rank holds them all."""
        return tensor

    def shard(self, model: nn.Module) -> None:
        """Leave each rank its share of the weights of a module that is never called, like an average, in place."""

    def owned(self, model: nn.Module) -> nn.Module:
        """The parameters that this rank updates: those of a wrapped ``model``, or its share of each, in the same order."""
        return model

    def whole(self, model: nn.Module) -> nn.Module:
        """A bare module to call without the other ranks, its weights as they are now: ``model``, or a copy with all shares."""
        return model

    def model_state(self, model: nn.Module) -> dict[str, Any]:
        """The module's state dict with whole tensors; complete on rank 0."""
        return model.state_dict()

    def load_model(self, model: nn.Module, state: Mapping[str, Any]) -> None:
        """Load what ``model_state`` gave in any mode."""
        model.load_state_dict(state)

    def optimizer_state(self, optimizer: Optimizer) -> dict[str, Any]:
        """The state dict of an optimizer over the owned parameters, with whole tensors; complete on rank 0."""
        return optimizer.state_dict()

    def load_optimizer(self, optimizer: Optimizer, state: dict[str, Any]) -> None:
        """Load what ``optimizer_state`` gave in any mode."""
        optimizer.load_state_dict(state)
