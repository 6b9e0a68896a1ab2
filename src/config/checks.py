"""The rules that a run must keep before anything is created: ranges, and what holds across fields."""

import re

from src.config.check_saved import check_saved
from src.config.ranges import check_ranges
from src.config.schema import (
    FIXED_SIZES,
    OPTIONS,
    AdamWConfig,
    Backend,
    CheckpointConfig,
    Compile,
    Config,
    CustomDataConfig,
    CustomModelConfig,
    DDPConfig,
    Dtype,
    FSDPConfig,
    GroupConfig,
    ImageFolderConfig,
    Mode,
    MultiStepConfig,
    SGDConfig,
    SyntheticConfig,
)
from src.config.values import show
from src.errors import ConfigError

OBJECTIVES = {
    "val/loss": Mode.min,
    "val/accuracy": Mode.max,
    "val/top5": Mode.max,
    "train/loss": Mode.min,
    "train/accuracy": Mode.max,
}
"""Metrics that can decide which checkpoint is best, and the only mode that makes sense for each."""


def check(config: Config, *, cuda_devices: int | None) -> None:
    """Every rule that needs neither torch nor the data; ``cuda_devices`` is the number of visible GPUs (None: unknown, not judged).

    Raises:
        ConfigError: names the option, its value, the rule and the fix.
    """
    check_options(config)
    check_ranges(config)
    _names(config)
    _secrets(config)
    _objective(config)
    _device(config, cuda_devices)
    _processes(config, cuda_devices)
    if isinstance(config, CheckpointConfig):
        check_saved(config)
    else:
        _batch_size(config, cuda_devices)
    if config.resume == "":
        raise ConfigError("resume= is empty; give a checkpoint file, a run directory, an MLflow run id, auto or null")
    _compile(config)
    _optim(config)
    _schedule(config)
    _data(config)
    _model(config)
    _precision(config, cuda_devices)


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


def check_options(config: Config) -> None:
    """Each group's ``name`` is an option and its fields are that option's."""
    for group, options in OPTIONS.items():
        chosen = getattr(config, group)
        if chosen.name not in options or type(chosen) is not options[chosen.name]:
            raise ConfigError(f"{group}.name={chosen.name}: choose the group option instead: {group}={chosen.name}")


def _secrets(config: Config) -> None:
    uri = config.tracking.uri or ""
    if re.match(r"[^/]+://[^/@]*:[^/@]+@", uri):
        raise ConfigError(
            "tracking.uri holds a password, and a run's config is recorded in files and in the store; put the address into "
            "MLFLOW_TRACKING_URI, which isn't"
        )


def _names(config: Config) -> None:
    texts = {
        "name": config.name,
        "tracking.run_name": config.tracking.run_name,
        "tracking.experiment_name": config.tracking.experiment_name,
    }
    for key, text in texts.items():
        if text is None:
            continue
        if not text.strip():
            raise ConfigError(f"{key} must not be empty")
        if ".." in text or re.search(r"[/\\\x00-\x1f\x7f-\x9f\ud800-\udfff]", text):
            raise ConfigError(f"{key}={text!r} must not contain '/', '\\', '..' or control characters")


def _objective(config: Config) -> None:
    name, mode = config.objective.name, config.objective.mode
    if name not in OBJECTIVES:
        raise ConfigError(f"objective.name={name} is not a metric that can be an objective; use one of {', '.join(OBJECTIVES)}")
    if mode is not OBJECTIVES[name]:
        raise ConfigError(f"objective.mode={mode.name} does not fit objective.name={name}; use {OBJECTIVES[name].name}")


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


def _batch_size(config: Config, cuda_devices: int | None) -> None:
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


def _compile(config: Config) -> None:
    train = config.train
    if train.compile is not Compile.none and config.parallel.name == "dp":
        raise ConfigError(
            f"train.compile={train.compile.name} can't compile replicas of parallel=dp; use parallel=ddp, or train.compile=none"
        )
    if train.compile_fallback and train.compile is Compile.none:
        raise ConfigError("train.compile_fallback=true has no effect with train.compile=none; choose train.compile=default")


def _optim(config: Config) -> None:
    optim = config.optim
    if isinstance(optim, SGDConfig) and optim.nesterov and optim.momentum == 0:
        raise ConfigError("optim.nesterov=true needs optim.momentum above 0; set optim.nesterov=false or a momentum")
    if isinstance(optim, AdamWConfig) and (len(optim.betas) != 2 or not all(0 <= beta < 1 for beta in optim.betas)):
        raise ConfigError(f"optim.betas={show(optim.betas)} must be two numbers of at least 0 and below 1, as in [0.9,0.999]")


def _schedule(config: Config) -> None:
    schedule = config.schedule
    if isinstance(schedule, MultiStepConfig):
        milestones = schedule.milestones
        if not milestones or min(milestones) < 1 or sorted(set(milestones)) != milestones:
            raise ConfigError(f"schedule.milestones={show(milestones)} must be growing epochs of at least 1, as in [10,15]")


def _data(config: Config) -> None:
    data = config.data
    if isinstance(data, CustomDataConfig):
        _factory("data", data.factory)
        if data.skip_broken:
            raise ConfigError("data.skip_broken reads image files; with data=custom your own function decides what to leave out: use 0")
    if isinstance(data, ImageFolderConfig) and not data.root:
        raise ConfigError("data.root is not set; give the folder that holds the class folders: data.root=DIR")
    if isinstance(data, SyntheticConfig) and data.channels == 2:
        raise ConfigError("data.channels=2 is neither grey nor colour; use 1 or 3")
    for key, values in (("mean", data.mean), ("std", data.std)):
        if values is not None and len(values) not in (1, 3):
            raise ConfigError(f"data.{key}={show(values)} must have one number per channel: 1 or 3")
    if data.mean is not None and data.std is not None and len(data.mean) != len(data.std):
        raise ConfigError(f"data.mean={show(data.mean)} and data.std={show(data.std)} must be equally long")
    if data.std is not None and not all(value > 0 for value in data.std):
        raise ConfigError(f"data.std={show(data.std)} must be above 0 in every channel")


def _model(config: Config) -> None:
    model, size = config.model, config.data.image_size
    least, _ = FIXED_SIZES.get(model.name, (1, 224))
    if isinstance(size, int) and size < least:
        raise ConfigError(f"data.image_size={size} is too small for model={model.name}; use at least {least}, or auto")
    if isinstance(model, CustomModelConfig):
        _factory("model", model.factory)
    if model.reset_head and model.pretrained is None:
        raise ConfigError("model.reset_head=true has no effect without weights to start from; set model.pretrained=PATH or leave it out")
    if model.pretrained == "":
        raise ConfigError("model.pretrained= is empty; give a weights file, a run directory, torchvision or null")


def _factory(group: str, factory: str | None) -> None:
    if factory is None:
        raise ConfigError(f"{group}.factory is not set; name your function: {group}.factory=package.module:function")
    if not re.fullmatch(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*", factory):
        raise ConfigError(f"{group}.factory={factory} must have the form package.module:function")


def _precision(config: Config, cuda_devices: int | None) -> None:
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
