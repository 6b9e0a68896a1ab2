"""The rules of mixed precision."""

import re

from src.config.schema import Config, Dtype
from src.config.values import show
from src.errors import ConfigError


def check_precision(config: Config, cuda_devices: int | None) -> None:
    """Mode, format, overrides and scaler fit together and the parallel mode; raises ``ConfigError``."""
    precision, scaler = config.precision, config.precision.scaler
    name, full = precision.name, precision.name in ("fp32", "tf32", "o0")
    if full and precision.dtype is not Dtype.auto:
        raise ConfigError(f"precision.dtype={precision.dtype.name} has no effect with precision={name}; use precision=amp")
    if name == "bf16" and precision.dtype is Dtype.float16:
        raise ConfigError("precision.dtype=float16 contradicts precision=bf16; use precision=amp")
    if precision.keep_batchnorm_fp32 != "auto" and name not in ("o2", "o3"):
        raise ConfigError(
            f"precision.keep_batchnorm_fp32={show(precision.keep_batchnorm_fp32)} has no effect with precision={name}, whose weights are "
            "all float32; use it with precision=o2 or o3"
        )
    _precision_of_shares(config)
    for text in precision.overrides:
        if not re.fullmatch(r"[^=]+=(float32|float16|bfloat16)", text):
            raise ConfigError(f"precision.overrides: {text!r} must be PATTERN=DTYPE with float32, float16 or bfloat16")
    if not scaler.min_scale <= scaler.init_scale <= scaler.max_scale:
        raise ConfigError(
            f"precision.scaler.init_scale={scaler.init_scale} must lie in min_scale={scaler.min_scale} to max_scale={scaler.max_scale}"
        )
    if scaler.enabled is not True:
        return
    if full:
        raise ConfigError(
            f"precision.scaler.enabled=true needs float16, but precision={name} computes in float32; use precision=amp or auto"
        )
    if precision.dtype is Dtype.bfloat16 or name == "bf16":
        where = "precision=bf16 computes in bfloat16" if name == "bf16" else "precision.dtype=bfloat16"
    elif precision.dtype is Dtype.auto and _surely_cpu(config, cuda_devices):
        where = f"precision={name} computes in bfloat16 on a CPU"
    else:
        return
    raise ConfigError(f"precision.scaler.enabled=true needs float16, but {where}; use scaler.enabled=auto or precision.dtype=float16")


def _precision_of_shares(config: Config) -> None:
    """fsdp gathers the weights of a block in one format, and both it and dp's replicas lose the casts at a module's door."""
    parallel, precision = config.parallel.name, config.precision
    if parallel not in ("dp", "fsdp"):
        return
    if precision.name in ("o2", "o3"):
        raise ConfigError(
            f"precision={precision.name} keeps half weights of its own, which parallel={parallel} can't spread over devices; "
            "use precision=amp, or parallel=ddp"
        )
    if precision.overrides:
        raise ConfigError(
            f"precision.overrides={show(precision.overrides)} can't be kept with parallel={parallel}, which spreads the weights over "
            "devices; use parallel=ddp, or leave it out"
        )


def _surely_cpu(config: Config, cuda_devices: int | None) -> bool:
    return config.device == "cpu" or (config.device == "auto" and cuda_devices == 0)
