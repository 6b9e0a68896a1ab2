"""float32 weights: full precision, TF32, and automatic mixed precision."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from src.errors import ConfigError
from src.precision.overrides import Override, apply_overrides
from src.precision.scaling import Scaling, all_gradients


class Mixed:
    """Weights and updates in float32; autocast lets matmuls and convolutions run in ``dtype`` (Micikevicius et al., 2018).

    With ``dtype`` float32 nothing is cast: fp32, or tf32 where ``tf32`` lets the GPU round the inputs of matmuls and
    convolutions to ten bits.
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
        """The model itself, with its overrides; one that is half already is refused, since the updates need float32 weights."""
        for name, parameter in model.named_parameters():
            if parameter.dtype in (torch.float16, torch.bfloat16):
                raise ConfigError(
                    f"model: parameter {name} is {str(parameter.dtype).removeprefix('torch.')}, but precision={self.name} needs float32 "
                    "weights; return the model in float32 (autocast casts it), or use precision=o3"
                )
        apply_overrides(model, self._overrides, device_type=self._device.type)
        return model

    def evaluable(self, model: nn.Module) -> nn.Module:
        """The model itself: it carries its overrides."""
        return model

    def refresh(self) -> None:
        """Nothing to do: the weights are the ones that compute."""

    def autocast(self) -> AbstractContextManager[Any]:
        """A fresh autocast region, so that no cast of another region's weights is reused; none in float32."""
        return nullcontext() if self.dtype == torch.float32 else torch.autocast(self._device.type, dtype=self.dtype)

    def backward(self, loss: Tensor) -> None:
        """Backward of the scaled loss."""
        self._scaling.backward(loss)

    def step(self, optimizer: Optimizer, *, clip_norm: float | None) -> Tensor:
        """Clip, then update unless a gradient is inf or NaN; returns the true gradient norm (0-d)."""
        return self._scaling.step(optimizer, clip_norm=clip_norm)

    def gradient_statistics(self, optimizer: Optimizer) -> Tensor:
        """Non-finite values, and the share of scaled values that is zero or subnormal in ``dtype`` [2]."""
        return self._scaling.gradient_statistics(all_gradients(optimizer), dtype=self.dtype)

    def loss_scale(self) -> Tensor:
        """The loss scale in use (0-d)."""
        return self._scaling.loss_scale()

    def state_dict(self) -> dict[str, Any]:
        """The scaler's state."""
        return self._scaling.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the scaler's state."""
        self._scaling.load_state_dict(state)
