"""Precision modes behind one protocol."""

import torch

from src.config.schema import Dtype, PrecisionConfig
from src.precision.amp import Amp
from src.precision.base import Precision
from src.precision.fp32 import FP32

__all__ = ["Precision", "build_precision"]


def build_precision(config: PrecisionConfig, *, device: torch.device) -> Precision:
    """The precision mode of this run on this device."""
    if config.name == "fp32":
        return FP32(device)
    dtype = {
        Dtype.float16: torch.float16,
        Dtype.bfloat16: torch.bfloat16,
        Dtype.auto: torch.float16 if device.type == "cuda" else torch.bfloat16,
    }[config.dtype]
    return Amp(device, dtype=dtype, scaler=config.scaler)
