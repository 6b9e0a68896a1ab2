"""The rules that a run must keep before anything is created: ranges, and what holds across fields."""

import json
import re

from src.config import runfile
from src.config.check_devices import check_batch_size, check_devices
from src.config.check_precision import check_precision
from src.config.check_saved import check_saved
from src.config.ranges import check_ranges
from src.config.schema import (
    FIXED_SIZES,
    OPTIONS,
    AdamWConfig,
    CheckpointConfig,
    Compile,
    Config,
    CustomDataConfig,
    CustomModelConfig,
    ImageFolderConfig,
    Mode,
    MultiStepConfig,
    SGDConfig,
    SyntheticConfig,
)
from src.config.values import show
from src.errors import ConfigError

MAX_BYTES = 60_000
"""Of the config as JSON; the rest of a checkpoint's 64 KiB manifest is for what else is said there."""
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
    _length(config)
    _names(config)
    _secrets(config)
    _objective(config)
    check_devices(config, cuda_devices)
    if isinstance(config, CheckpointConfig):
        check_saved(config)
    else:
        check_batch_size(config, cuda_devices)
    if config.resume == "":
        raise ConfigError("resume= is empty; give a checkpoint file, a run directory, an MLflow run id, auto or null")
    _compile(config)
    _optim(config)
    _schedule(config)
    _data(config)
    _model(config)
    check_precision(config, cuda_devices)


def _length(config: Config) -> None:
    if (length := len(json.dumps(runfile.to_dict(config), ensure_ascii=False).encode(errors="replace"))) > MAX_BYTES:
        raise ConfigError(
            f"the config takes {length} bytes as JSON, and every checkpoint holds it in a place of {MAX_BYTES}: shorten tags or kwargs"
        )


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
