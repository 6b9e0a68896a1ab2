"""How many processes and devices a run takes, and the rules they must keep."""

import re

from src.config.schema import Backend, Config, DDPConfig, FSDPConfig, GroupConfig
from src.errors import ConfigError


def check_devices(config: Config, cuda_devices: int | None) -> None:
    """The devices exist and can do what ``parallel`` asks of them; raises ``ConfigError``.

    ``cuda_devices`` is the number of visible GPUs here and below (None: unknown, not judged).
    """
    _device(config, cuda_devices)
    _processes(config, cuda_devices)


def num_processes(config: Config, cuda_devices: int | None) -> int:
    """Ranks of the run: 1 with single and dp; ``auto`` is every visible GPU, or 2 on a CPU."""
    if not isinstance(config.parallel, GroupConfig):
        return 1
    if isinstance(config.parallel.num_processes, int):
        return config.parallel.num_processes
    return (cuda_devices or 2) if uses_gpu(config, cuda_devices) else 2


def num_replicas(config: Config, cuda_devices: int | None) -> int:
    """Devices that share a micro-batch of one process: every visible GPU with dp, otherwise 1."""
    return (cuda_devices or 1) if config.parallel.name == "dp" and uses_gpu(config, cuda_devices) else 1


def uses_gpu(config: Config, cuda_devices: int | None) -> bool:
    """Whether the run computes on a GPU, as far as ``device`` and the number of visible GPUs tell."""
    return config.device.startswith("cuda") or (config.device == "auto" and bool(cuda_devices))


def _device(config: Config, cuda_devices: int | None) -> None:
    match = re.fullmatch(r"auto|cpu|cuda(?::(0|[1-9]\d*))?", config.device)
    if match is None:
        raise ConfigError(f"device={config.device} must be auto, cpu, cuda or cuda:N")
    if not config.device.startswith("cuda") or cuda_devices is None:
        return
    if cuda_devices == 0:
        raise ConfigError(f"device={config.device} needs a GPU and none is visible; use device=auto or device=cpu")
    if match[1] is not None and int(match[1]) >= cuda_devices:
        raise ConfigError(f"device={config.device} does not exist: {cuda_devices} visible; use cuda:0 to cuda:{cuda_devices - 1}")


def _processes(config: Config, cuda_devices: int | None) -> None:
    parallel = config.parallel
    if ":" in config.device and parallel.name != "single":
        takes = "all" if parallel.name == "dp" else "one per rank"
        raise ConfigError(f"device={config.device} names one device but parallel={parallel.name} takes {takes}; use device=cuda")
    if not isinstance(parallel, GroupConfig):
        return
    on_gpu = uses_gpu(config, cuda_devices)
    if isinstance(parallel, FSDPConfig) and parallel.backend is Backend.gloo and on_gpu:
        raise ConfigError("parallel.backend=gloo can't sum shares on GPUs, which parallel=fsdp needs; use nccl, auto or device=cpu")
    if isinstance(parallel, DDPConfig) and parallel.sync_batchnorm and cuda_devices is not None and not on_gpu:
        raise ConfigError("parallel.sync_batchnorm=true needs GPUs, since torch has no CPU kernel for it; use false")
    if parallel.backend is Backend.nccl and cuda_devices is not None and not on_gpu:
        raise ConfigError("parallel.backend=nccl needs GPUs and this run computes on a CPU; use parallel.backend=gloo or auto")
    if on_gpu and cuda_devices is not None and num_processes(config, cuda_devices) > cuda_devices:
        count = num_processes(config, cuda_devices)
        raise ConfigError(f"parallel.num_processes={count} is more than the visible GPUs: use at most {cuda_devices}, or device=cpu")


def check_batch_size(config: Config, cuda_devices: int | None) -> None:
    """The global batch divides evenly over ranks, devices and accumulation; raises ``ConfigError``."""
    processes, accumulate, size = num_processes(config, cuda_devices), config.train.accumulate, config.train.batch_size
    replicas = num_replicas(config, cuda_devices)
    unit = processes * replicas * accumulate
    if size % unit == 0:
        return
    factors = f"train.accumulate={accumulate}"
    if replicas > 1:
        factors = f"{replicas} GPUs (parallel=dp) x {factors}"
    if isinstance(config.parallel, GroupConfig):
        factors = f"parallel.num_processes={processes} x {factors}"
    lower = size - size % unit
    working = f"{lower} or {lower + unit}" if lower else f"{unit}"
    raise ConfigError(f"train.batch_size={size} does not divide into {factors}; use {working}")
