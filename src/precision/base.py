"""The protocol of a precision mode, and the update gate that all modes share."""

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
        """Change the model's own dtypes where the mode asks for it."""

    def autocast(self) -> AbstractContextManager[Any]:
        """The region of the forward pass and the loss."""

    def backward(self, loss: Tensor) -> None:
        """Backward pass of one micro-batch's loss (0-d, already divided by the accumulation window)."""

    def step(self, optimizer: Optimizer, *, clip_norm: float | None) -> Tensor:
        """Unscale, clip, then update unless a gradient is inf or NaN; returns the true gradient norm (0-d, on the device)."""

    def loss_scale(self) -> Tensor:
        """The loss scale in use (0-d, on the device)."""

    def state_dict(self) -> dict[str, Any]:
        """Plain types that resume the mode."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what ``state_dict`` returned."""


def gradient_norm(optimizer: Optimizer) -> Tensor:
    """The 2-norm of all gradients together (0-d float32, on their device); inf or NaN if any gradient is."""
    gradients = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
    return torch.nn.utils.get_total_norm(gradients)


def clip(optimizer: Optimizer, norm: Tensor, *, clip_norm: float) -> None:
    """Scale all gradients so that their norm is at most ``clip_norm``; ``norm`` is what ``gradient_norm`` returned."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    torch.nn.utils.clip_grads_with_norm_(parameters, clip_norm, norm)


def gated_step(optimizer: Optimizer, norm: Tensor) -> None:
    """Update unless ``norm`` is inf or NaN.

    A fused optimizer takes the decision on the device through ``found_inf``, the same gate GradScaler uses; others cost one
    host read.
    """
    found_inf = torch.logical_not(torch.isfinite(norm)).to(torch.float32)
    if optimizer.defaults.get("fused"):
        optimizer.found_inf = found_inf  # type: ignore[attr-defined]
        optimizer.grad_scale = None  # type: ignore[attr-defined]
        optimizer.step()
        del optimizer.found_inf, optimizer.grad_scale  # type: ignore[attr-defined]
    elif not bool(found_inf):
        optimizer.step()
