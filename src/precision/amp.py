"""Automatic mixed precision: autocast, and a GradScaler where float16 needs one."""

import logging
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer

from src.config.schema import ScalerConfig
from src.errors import ConfigError
from src.precision.base import clip, gated_step, gradient_norm

log = logging.getLogger(__name__)


class Amp:
    """float32 weights, matmuls and convolutions in half precision (Micikevicius et al., 2018)."""

    name = "amp"

    def __init__(self, device: torch.device, *, dtype: torch.dtype, scaler: ScalerConfig) -> None:
        self._device = device
        self.dtype = dtype
        if device.type == "cpu" and dtype == torch.bfloat16 and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
            log.warning("this CPU has no fast bfloat16 kernels: precision=amp computes correctly here, but precision=fp32 is faster")
        self.scaled = dtype == torch.float16 if scaler.enabled == "auto" else bool(scaler.enabled)
        self._scaler = GradScaler(
            device.type,
            init_scale=scaler.init_scale,
            growth_factor=scaler.growth_factor,
            backoff_factor=scaler.backoff_factor,
            growth_interval=scaler.growth_interval,
            enabled=self.scaled,
        )
        # What stays in float32 stays in full float32: the mode means "half where autocast says so", not TF32 elsewhere.
        torch.backends.cuda.matmul.allow_tf32 = False
        torch.backends.cudnn.allow_tf32 = False

    def prepare(self, model: nn.Module) -> nn.Module:
        """Refuse a model that is half already: the scaler needs float32 master weights."""
        for name, parameter in model.named_parameters():
            if parameter.dtype in (torch.float16, torch.bfloat16):
                raise ConfigError(
                    f"model: parameter {name} is {str(parameter.dtype).removeprefix('torch.')}, but precision=amp needs float32 "
                    "weights; return the model in float32 (autocast casts it)"
                )
        return model

    def autocast(self) -> AbstractContextManager[Any]:
        """A fresh autocast region, so that no cast of another region's weights is reused."""
        return torch.autocast(self._device.type, dtype=self.dtype)

    def backward(self, loss: Tensor) -> None:
        """Backward of the scaled loss."""
        self._scaler.scale(loss).backward()

    def step(self, optimizer: Optimizer, *, clip_norm: float | None) -> Tensor:
        """Unscale -> norm -> clip -> update unless a gradient is inf or NaN -> adapt the scale; returns the true norm (0-d)."""
        self._scaler.unscale_(optimizer)
        norm = gradient_norm(optimizer)
        if clip_norm is not None:
            clip(optimizer, norm, clip_norm=clip_norm)
        if self.scaled:
            self._scaler.step(optimizer)
            self._scaler.update()
        else:
            gated_step(optimizer, norm)
        return norm

    def loss_scale(self) -> Tensor:
        """The scale of the next step (0-d, on the device)."""
        if not self.scaled:
            return torch.ones((), device=self._device)
        # GradScaler.get_scale() reads the host; this is the tensor behind it, made on first use.
        scale = self._scaler._get_scale_async()
        return torch.full((), self._scaler.get_scale(), device=self._device) if scale is None else scale

    def state_dict(self) -> dict[str, Any]:
        """Scale, growth tracker and their settings."""
        return self._scaler.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore scale and growth tracker; the settings stay this run's, and a state from a mode without a scaler changes nothing."""
        if self.scaled and state:
            own = self._scaler.state_dict()
            self._scaler.load_state_dict(own | {key: state[key] for key in ("scale", "_growth_tracker")})
