"""The protocol of a precision mode."""

from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.optim import Optimizer


class Precision(Protocol):
    """How numbers are kept and computed. The loop reads the same for every mode."""

    name: str
    dtype: torch.dtype
    scaled: bool

    def prepare(self, model: nn.Module) -> nn.Module:
        """The module that computes. ``model`` keeps the weights that the optimizer updates; in most modes both are one."""

    def evaluable(self, model: nn.Module) -> nn.Module:
        """A module that computes as this mode does, with the weights of ``model`` as they are now."""

    def refresh(self) -> None:
        """Let the module that computes follow the weights after they were changed by other means than ``step``."""

    def autocast(self) -> AbstractContextManager[Any]:
        """The region of the forward pass and the loss."""

    def backward(self, loss: Tensor) -> None:
        """Backward pass of one micro-batch's loss (0-d, already divided by the accumulation window)."""

    def step(self, optimizer: Optimizer, *, clip_norm: float | None) -> Tensor:
        """Clip, then update unless a gradient is inf or NaN; returns the true gradient norm (0-d, on the device)."""

    def gradient_statistics(self, optimizer: Optimizer) -> Tensor:
        """Of the gradients before ``step``: non-finite values, and the share that is zero or subnormal in half; [2], on the device."""

    def loss_scale(self) -> Tensor:
        """The loss scale in use (0-d, on the device)."""

    def state_dict(self) -> dict[str, Any]:
        """Plain types that resume the mode."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what ``state_dict`` returned."""
