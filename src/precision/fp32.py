"""Single precision, TF32 off."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from src.precision.base import clip, gated_step, gradient_norm


class FP32:
    """Everything in float32, as the reference the other modes are compared with."""

    name = "fp32"
    dtype = torch.float32
    scaled = False

    def __init__(self, device: torch.device) -> None:
        self._device = device
        torch.backends.cuda.matmul.allow_tf32 = False
        torch.backends.cudnn.allow_tf32 = False

    def prepare(self, model: nn.Module) -> nn.Module:
        """The model as it is."""
        return model

    def autocast(self) -> AbstractContextManager[Any]:
        """No casts."""
        return nullcontext()

    def backward(self, loss: Tensor) -> None:
        """Plain backward."""
        loss.backward()

    def step(self, optimizer: Optimizer, *, clip_norm: float | None) -> Tensor:
        """Clip, then update unless a gradient is inf or NaN; returns the gradient norm (0-d)."""
        norm = gradient_norm(optimizer)
        if clip_norm is not None:
            clip(optimizer, norm, clip_norm=clip_norm)
        gated_step(optimizer, norm)
        return norm

    def loss_scale(self) -> Tensor:
        """Always 1."""
        return torch.ones((), device=self._device)

    def state_dict(self) -> dict[str, Any]:
        """Nothing to keep."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Nothing to restore."""
