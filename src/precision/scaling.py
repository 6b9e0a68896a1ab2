"""Loss scaling and the gate that no non-finite gradient passes: one update, the same for every mode."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer

from src.config.schema import ScalerConfig

SumShares = Callable[[Tensor], Tensor]
"""Sums a tensor, in place, over the ranks that hold shares of one copy of the weights, where gradients are shares too."""


class Scaling:
    """torch's GradScaler with a floor, a ceiling and a static mode; without scaling (``enabled`` false) only the gate.

    Nothing here reads the host, but for an optimizer that isn't fused. With ``sum_shares`` all ranks that share the gradients
    see the same norm and take the same decision.
    """

    def __init__(self, config: ScalerConfig, *, device: torch.device, enabled: bool, sum_shares: SumShares | None = None) -> None:
        self.enabled = enabled
        self._config = config
        self._device = device
        self._sum_shares = sum_shares
        self._one = torch.ones((), device=device)
        self._scaler = _SharingScaler(
            sum_shares,
            device.type,
            init_scale=config.init_scale,
            growth_factor=config.growth_factor,
            backoff_factor=config.backoff_factor,
            growth_interval=config.growth_interval,
            enabled=enabled,
        )

    def backward(self, loss: Tensor) -> None:
        """Backward of the scaled loss."""
        self._scaler.scale(loss).backward()

    def step(self, optimizer: Optimizer, *, clip_norm: float | None) -> Tensor:
        """Norm -> clip -> update unless a gradient is inf or NaN -> adapt the scale; returns the true norm (0-d float32).

        The gradients stay scaled until the optimizer divides them, so that float16 gradients keep their range; the norm and
        its limit are those of the true gradients.
        """
        gradients = all_gradients(optimizer)
        norm = total_norm(gradients, sum_shares=self._sum_shares)
        if self.enabled:
            norm = norm / self.loss_scale()
        if clip_norm is not None:
            coefficient = (clip_norm / (norm + 1e-6)).clamp(max=1.0)
            torch._foreach_mul_(gradients, coefficient)
        if not self.enabled:
            gated_step(optimizer, norm)
            return norm
        self._scaler.step(optimizer)
        if self._config.dynamic:
            self._scaler.update()
            self.loss_scale().clamp_(self._config.min_scale, self._config.max_scale)
        else:
            self._scaler.update(self._config.init_scale)
        return norm

    def gradient_statistics(self, gradients: list[Tensor], *, dtype: torch.dtype) -> Tensor:
        """Non-finite values, and the share of values that is zero or subnormal in ``dtype``; float64 [2], on the device."""
        return gradient_statistics(gradients, dtype=dtype, sum_shares=self._sum_shares)

    def loss_scale(self) -> Tensor:
        """The scale of the next step (0-d, on the device); 1 without scaling."""
        if not self.enabled:
            return self._one
        # GradScaler.get_scale() reads the host; this is the tensor behind it, made on first use.
        scale = self._scaler._get_scale_async()
        if scale is None:
            self._scaler._lazy_init_scale_growth_tracker(self._device)
            scale = self._scaler._get_scale_async()
        assert scale is not None
        return scale

    def state_dict(self) -> dict[str, Any]:
        """Scale, growth tracker and their settings; empty without scaling."""
        return self._scaler.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore scale and growth tracker; the settings stay this run's, and a state of a mode without scaling changes nothing."""
        if self.enabled and state and self._config.dynamic:
            own = self._scaler.state_dict()
            self._scaler.load_state_dict(own | {key: state[key] for key in ("scale", "_growth_tracker")})


def all_gradients(optimizer: Optimizer) -> list[Tensor]:
    """The gradients that the optimizer will use."""
    return [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]


def total_norm(gradients: list[Tensor], *, sum_shares: SumShares | None = None) -> Tensor:
    """The 2-norm of all gradients together (0-d float32, on their device), added up in float32; inf or NaN if any gradient is."""
    norms: list[Tensor] = []
    for dtype in dict.fromkeys(gradient.dtype for gradient in gradients):
        norms += torch._foreach_norm([gradient for gradient in gradients if gradient.dtype == dtype], 2, dtype=torch.float32)
    norm: Tensor = torch.linalg.vector_norm(torch.stack(norms))
    # float64 holds the square of any float32, so sharing alone can't overflow.
    return norm if sum_shares is None else sum_shares(norm.double().square()).sqrt().float()


def gradient_statistics(gradients: list[Tensor], *, dtype: torch.dtype, sum_shares: SumShares | None = None) -> Tensor:
    """Non-finite values, and the share of values that is zero or subnormal in ``dtype``; float64 [2], on the device."""
    tiny = torch.finfo(dtype).tiny
    bad = torch.stack([torch.isfinite(gradient).logical_not().sum() for gradient in gradients]).sum()
    small = torch.stack([(gradient.abs() < tiny).sum() for gradient in gradients]).sum()
    counts = torch.stack((bad, small, torch.full_like(bad, sum(gradient.numel() for gradient in gradients)))).double()
    if sum_shares is not None:
        counts = sum_shares(counts)
    return torch.stack((counts[0], counts[1] / counts[2]))


class _SharingScaler(GradScaler):
    """GradScaler whose decision follows the gradients of all ranks that share them."""

    def __init__(self, sum_shares: SumShares | None, device: str, **settings: Any) -> None:
        super().__init__(device, **settings)
        self._sum_shares = sum_shares

    def _unscale_grads_(self, optimizer: Optimizer, inv_scale: Tensor, found_inf: Tensor, allow_fp16: bool) -> dict[torch.device, Tensor]:
        # Every path of GradScaler that looks at gradients comes by here; float16 gradients are o3's, which means them.
        flags = super()._unscale_grads_(optimizer, inv_scale, found_inf, True)
        if self._sum_shares is not None:
            for flag in flags.values():
                self._sum_shares(flag).clamp_(max=1.0)  # the fused kernels compare it with 1
        return flags


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
