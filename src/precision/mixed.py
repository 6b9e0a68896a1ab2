"""float32 weights: full precision, TF32, and automatic mixed precision."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn

from src.errors import ConfigError
from src.precision.base import Precision
from src.precision.overrides import autocast_calls


class Mixed(Precision):
    """Weights and updates in float32; autocast lets matmuls and convolutions run in ``dtype`` (Micikevicius et al., 2018).

    With ``dtype`` float32 nothing is cast: fp32, or tf32 where ``tf32`` lets the GPU round the inputs of matmuls and
    convolutions to ten bits.
    """

    def prepare(self, model: nn.Module) -> nn.Module:
        """The model itself, with its overrides; one that is half already is refused, since the updates need float32 weights."""
        for name, parameter in model.named_parameters():
            if parameter.dtype in (torch.float16, torch.bfloat16):
                raise ConfigError(
                    f"model: parameter {name} is {str(parameter.dtype).removeprefix('torch.')}, but precision={self.name} needs float32 "
                    "weights; return the model in float32 (autocast casts it), or use precision=o3"
                )
        modules = dict(model.named_modules())
        for name, (dtype, around) in self.doors(model).items():
            autocast_calls(modules[name], dtype=dtype, around=around, device_type=self._device.type)
        return model

    def autocast(self) -> AbstractContextManager[Any]:
        """A fresh autocast region, so that no cast of another region's weights is reused; none in float32."""
        return nullcontext() if self.dtype == torch.float32 else torch.autocast(self._device.type, dtype=self.dtype)
