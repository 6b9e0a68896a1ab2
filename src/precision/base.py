"""What every precision mode does the same way, and what each decides for itself."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from src.precision.overrides import Override, choose, doors
from src.precision.scaling import Scaling, all_gradients


class Precision:
    """How numbers are kept and computed. The loop reads the same for every mode.

    The methods here are those of a mode whose optimizer updates the very weights that compute, without casts.
    """

    def __init__(
        self, name: str, *, device: torch.device, dtype: torch.dtype, scaling: Scaling, overrides: list[Override], tf32: bool = False
    ) -> None:
        self.name = name
        self.dtype = dtype
        self.scaled = scaling.enabled
        self._device = device
        self._scaling = scaling
        self._overrides = overrides
        # What stays in float32 stays in full float32 unless asked for: the modes mean what their names say.
        torch.backends.cuda.matmul.allow_tf32 = tf32
        torch.backends.cudnn.allow_tf32 = tf32

    def prepare(self, model: nn.Module) -> nn.Module:
        """The module that computes. ``model`` keeps the weights that the optimizer updates; in most modes both are one."""
        return model

    def evaluable(self, model: nn.Module) -> nn.Module:
        """A module that computes as this mode does, with the weights of ``model`` as they are now."""
        return model

    def refresh(self) -> None:
        """Let the module that computes follow ``model`` after that was changed by other means than ``step``."""

    def publish(self) -> None:
        """Let ``model`` follow the buffers of the module that computes, where they are not the same."""

    def doors(self, model: nn.Module) -> dict[str, tuple[torch.dtype, torch.dtype]]:
        """The modules that an override gives another dtype than what is around them: name -> (dtype, dtype around)."""
        return doors(choose(model, self._overrides), outside=self.dtype)

    def autocast(self) -> AbstractContextManager[Any]:
        """The region of the forward pass and the loss."""
        return nullcontext()

    def backward(self, loss: Tensor) -> None:
        """Backward pass of one micro-batch's loss (0-d, already divided by the accumulation window), scaled if the mode scales."""
        self._scaling.backward(loss)

    def step(self, optimizer: Optimizer, *, clip_norm: float | None) -> Tensor:
        """Clip, then update unless a gradient is inf or NaN; returns the true gradient norm (0-d, on the device)."""
        return self._scaling.step(optimizer, clip_norm=clip_norm)

    def gradient_statistics(self, optimizer: Optimizer) -> Tensor:
        """Of the scaled gradients before ``step``: non-finite values, and the share that is zero or subnormal in ``dtype`` [2]."""
        return self._scaling.gradient_statistics(all_gradients(optimizer), dtype=self.dtype)

    def loss_scale(self) -> Tensor:
        """The loss scale in use (0-d, on the device)."""
        return self._scaling.loss_scale()

    def state_dict(self) -> dict[str, Any]:
        """The scaler's state, which resumes the mode: plain types."""
        return self._scaling.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what ``state_dict`` returned."""
        self._scaling.load_state_dict(state)
