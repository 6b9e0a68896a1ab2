"""Precision modes behind one protocol."""

import logging
from dataclasses import fields

import torch

from src.config.schema import Dtype, PrecisionConfig, ScalerConfig
from src.precision.base import Precision
from src.precision.half import Half
from src.precision.mixed import Mixed
from src.precision.overrides import parse_overrides
from src.precision.scaling import Scaling, SumShares

__all__ = ["Precision", "build_precision"]

log = logging.getLogger(__name__)

FULL = ("fp32", "tf32", "o0")


def build_precision(config: PrecisionConfig, *, device: torch.device, sum_shares: SumShares | None = None) -> Precision:
    """The precision mode of this run on this device. O0 to O3 are apex.amp's levels; O0 is fp32 and O1 is amp.

    ``sum_shares`` is there where each rank has a share of the gradients.
    """
    dtype = torch.float32 if config.name in FULL else half_dtype(config, device)
    enabled = dtype == torch.float16 if config.scaler.enabled == "auto" else bool(config.scaler.enabled)
    if dtype == torch.float16 and not enabled:
        log.warning("float16 without loss scaling: gradients below 6e-8 become zero; precision.scaler.enabled=auto scales the loss")
    if not enabled and (idle := changed_settings(config.scaler)):
        log.warning(
            "%s has no effect: precision=%s computes in %s here, without loss scaling; precision.dtype=float16 scales the loss",
            ", ".join(f"precision.scaler.{name}" for name in idle),
            config.name,
            str(dtype).removeprefix("torch."),
        )
    scaling = Scaling(config.scaler, device=device, enabled=enabled, sum_shares=sum_shares)
    overrides = parse_overrides(config.overrides)
    if config.name in ("o2", "o3"):
        masters = config.name == "o2"
        keep = masters if config.keep_batchnorm_fp32 == "auto" else bool(config.keep_batchnorm_fp32)
        return Half(
            config.name, device=device, dtype=dtype, scaling=scaling, overrides=overrides, masters=masters, keep_batchnorm=keep
        )  # fmt: skip
    tf32 = config.name == "tf32" and has_tf32(device)
    return Mixed(config.name, device=device, dtype=dtype, scaling=scaling, overrides=overrides, tf32=tf32)


def changed_settings(config: ScalerConfig) -> list[str]:
    """The settings of loss scaling that are not the defaults; ``max_consecutive_skips`` serves every mode."""
    default = ScalerConfig(enabled=config.enabled, max_consecutive_skips=config.max_consecutive_skips)
    return [field.name for field in fields(config) if getattr(config, field.name) != getattr(default, field.name)]


def half_dtype(config: PrecisionConfig, device: torch.device) -> torch.dtype:
    """The half format in use: float16 on a GPU and bfloat16 on a CPU unless the config names one; says where it is slow."""
    auto = torch.float16 if device.type == "cuda" and config.name != "bf16" else torch.bfloat16
    dtype = {Dtype.float16: torch.float16, Dtype.bfloat16: torch.bfloat16, Dtype.auto: auto}[config.dtype]
    if device.type == "cpu":
        mkldnn = torch.ops.mkldnn
        fast = mkldnn._is_mkldnn_bf16_supported() if dtype == torch.bfloat16 else mkldnn._is_mkldnn_fp16_supported()
        if not fast:
            log.warning(
                "this CPU has no fast %s kernels: precision=%s computes correctly here, but precision=fp32 is faster",
                str(dtype).removeprefix("torch."),
                config.name,
            )
    return dtype


def has_tf32(device: torch.device) -> bool:
    """Whether the device rounds to TF32 (NVIDIA GPUs of compute capability 8.0 and newer); a warning where it doesn't."""
    if device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 0):
        return True
    log.warning("precision=tf32: this device has no TF32, so everything is computed in float32")
    return False
