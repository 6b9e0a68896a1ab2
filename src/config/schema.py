"""Types, defaults and one doc line for every option: the single place where a default lives.

A group (``optim``, ``schedule``, ...) is a base dataclass; an option of it that has fields of its own is a subclass.
``OPTIONS`` maps group and ``name`` to the dataclass. Hydra and OmegaConf check the types, ``checks.py`` the ranges
declared here and the rules across fields.
"""

from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Union


def option(default: Any, doc: str, **rule: Any) -> Any:
    """A dataclass field with its doc line and its rule.

    Rules: ``at_least``, ``above``, ``at_most``, ``below`` (numbers), ``words`` (the strings a Union field accepts).
    """
    metadata = {"doc": doc, **rule}
    if isinstance(default, list | dict):
        return field(default_factory=lambda: type(default)(default), metadata=metadata)
    return field(default=default, metadata=metadata)


def section(kind: type, doc: str) -> Any:
    """A nested section with its defaults."""
    return field(default_factory=kind, metadata={"doc": doc})


class Mode(Enum):
    """Whether a larger or a smaller objective is better."""

    max = "max"
    min = "min"


class Dtype(Enum):
    """The dtype that matmuls and convolutions are asked to run in."""

    auto = "auto"
    float16 = "float16"
    bfloat16 = "bfloat16"


class Loader(Enum):
    """Where the images live during training."""

    auto = "auto"
    resident = "resident"
    workers = "workers"


class Backend(Enum):
    """The collective library of torch.distributed."""

    auto = "auto"
    nccl = "nccl"
    gloo = "gloo"


class CommHook(Enum):
    """Compression of gradients on their way between ranks."""

    none = "none"
    fp16 = "fp16"
    bf16 = "bf16"


class Split(Enum):
    """The part of a data set."""

    train = "train"
    val = "val"
    test = "test"


@dataclass
class Objective:
    """What "best" means for checkpoints, sweeps and the plateau schedule."""

    name: str = option("val/accuracy", "metric that decides which checkpoint is best")
    mode: Mode = option(Mode.max, "max or min")


@dataclass
class TrainConfig:
    """The loop."""

    epochs: int = option(20, "passes over the training images", at_least=1, at_most=1_000_000)
    max_steps: int | None = option(None, "stop after this many optimizer steps (null: no limit)", at_least=1)
    batch_size: int = option(64, "GLOBAL batch size: images per optimizer step over all ranks and accumulation", at_least=1)
    accumulate: int = option(1, "micro-batches per optimizer step", at_least=1)
    clip_norm: float | None = option(None, "largest gradient norm, measured on unscaled gradients (null: no clipping)", above=0)
    log_every: int = option(20, "optimizer steps between metric points", at_least=1)
    check_every: int | None = option(None, "optimizer steps between decisions that ranks take together (null: log_every)", at_least=1)
    eval_every: int = option(1, "epochs between evaluations; the last epoch is always evaluated", at_least=1)
    label_smoothing: float = option(0.0, "label smoothing of the training loss", at_least=0, below=1)
    channels_last: Union[bool, str] = option("auto", "NHWC memory format (auto: on a GPU)", words=("auto",))


@dataclass
class ModelConfig:
    """The network. Options: digits_cnn, alexnet, resnet18."""

    name: str = option("digits_cnn", "network")
    num_classes: Union[int, str] = option("auto", "outputs of the head (auto: as many as the data has)", words=("auto",), at_least=2)


@dataclass
class AugmentConfig:
    """Random changes of training images, drawn on the training device."""

    flip: bool = option(False, "mirror half of the images")
    crop_padding: int = option(0, "pad by this many pixels and crop back at a random place", at_least=0)


@dataclass
class DataConfig:
    """What every data set has."""

    name: str = option("digits", "data set")
    image_size: Union[int, str] = option(
        "auto", "side in pixels fed to the network (auto: the images' own, or what the network needs)", words=("auto",), at_least=1
    )
    mean: list[float] | None = option(None, "per-channel mean of pixels scaled to [0, 1] (null: measured on the training images)")
    std: list[float] | None = option(None, "per-channel standard deviation (null: measured on the training images)")
    augment: AugmentConfig = section(AugmentConfig, "augmentation of training images")
    val_fraction: float = option(0.2, "share of the training images held out when the data has no validation split", at_least=0, below=1)
    split_seed: int = option(0, "seed of that stratified split", at_least=0)
    num_workers: Union[int, str] = option("auto", "processes or threads per rank that decode images", words=("auto",), at_least=0)
    loader: Loader = option(Loader.auto, "resident: decoded once, kept on the device; workers: decoded again every epoch")
    subset: int | None = option(None, "use only this many training images, and as many for validation (null: all)", at_least=2)


@dataclass
class DigitsConfig(DataConfig):
    """scikit-learn's 1,797 real 8x8 digits; nothing is downloaded."""


@dataclass
class ImageFolderConfig(DataConfig):
    """ROOT/train/CLASS/*.jpg with ROOT/val or ROOT/test, or ROOT/CLASS/*.jpg."""

    name: str = option("image_folder", "data set")
    root: str | None = option(None, "folder of class folders, relative to where the command is typed")


@dataclass
class SyntheticConfig(DataConfig):
    """Random images with a learnable class signal, for tests and speed measurements."""

    name: str = option("synthetic", "data set")
    size: int = option(1024, "training images", at_least=2)
    val_size: int = option(256, "validation images", at_least=1)
    classes: int = option(10, "classes", at_least=2)
    pixels: int = option(32, "side of the generated images in pixels", at_least=1)
    channels: int = option(3, "colour channels: 1 or 3", at_least=1, at_most=3)
    seed: int = option(0, "seed of the generated images", at_least=0)


@dataclass
class OptimConfig:
    """What every optimizer has."""

    name: str = option("adamw", "optimizer")
    lr: float = option(1e-3, "peak learning rate", above=0)
    weight_decay: float = option(0.01, "decoupled (adamw) or L2 (sgd) weight decay", at_least=0)
    decay_all: bool = option(False, "decay biases and normalisation weights too")
    fused: Union[bool, str] = option(
        "auto", "one kernel for the whole update, with no host read (auto: wherever torch has one)", words=("auto",)
    )


@dataclass
class AdamWConfig(OptimConfig):
    """Adam with decoupled weight decay (Loshchilov and Hutter, 2019)."""

    lr: float = option(2e-3, "peak learning rate", above=0)
    betas: list[float] = option([0.9, 0.999], "decay rates of the first and second moment")


@dataclass
class SGDConfig(OptimConfig):
    """Stochastic gradient descent with momentum."""

    name: str = option("sgd", "optimizer")
    lr: float = option(0.05, "peak learning rate", above=0)
    weight_decay: float = option(5e-4, "L2 weight decay", at_least=0)
    momentum: float = option(0.9, "momentum", at_least=0, below=1)
    nesterov: bool = option(True, "Nesterov momentum; needs momentum > 0")


@dataclass
class ScheduleConfig:
    """What every schedule has."""

    name: str = option("constant", "schedule")
    warmup_steps: int = option(0, "real updates over which the learning rate rises linearly from 0", at_least=0)


@dataclass
class ConstantConfig(ScheduleConfig):
    """The learning rate stays."""


@dataclass
class CosineConfig(ScheduleConfig):
    """Half a cosine from lr to min_factor x lr over the planned updates (Loshchilov and Hutter, 2017)."""

    name: str = option("cosine", "schedule")
    min_factor: float = option(0.0, "last learning rate as a share of lr", at_least=0, at_most=1)


@dataclass
class PlateauConfig(ScheduleConfig):
    """Multiply the learning rate when the objective stops improving over all ranks."""

    name: str = option("plateau", "schedule")
    patience: int = option(3, "evaluations without improvement that are forgiven", at_least=0)
    factor: float = option(0.1, "factor on the learning rate", above=0, below=1)
    min_lr: float = option(0.0, "the learning rate never falls below this", at_least=0)


@dataclass
class ScalerConfig:
    """Dynamic loss scaling and the gate against non-finite gradients."""

    enabled: Union[bool, str] = option("auto", "scale the loss (auto: with float16 only)", words=("auto",))
    init_scale: float = option(65536.0, "first loss scale", above=0)
    growth_factor: float = option(2.0, "factor after growth_interval good steps", above=1)
    backoff_factor: float = option(0.5, "factor after a skipped step", above=0, below=1)
    growth_interval: int = option(2000, "good steps in a row before the scale grows", at_least=1)
    max_consecutive_skips: int = option(50, "skipped updates in a row that end the run with exit code 4, in every precision", at_least=1)


@dataclass
class PrecisionConfig:
    """The number formats of the computation."""

    name: str = option("amp", "precision mode")
    dtype: Dtype = option(Dtype.auto, "autocast dtype (auto: float16 on a GPU, bfloat16 on a CPU)")
    scaler: ScalerConfig = section(ScalerConfig, "loss scaling")


@dataclass
class ParallelConfig:
    """What every parallel mode has."""

    name: str = option("single", "parallel mode")


@dataclass
class DDPConfig(ParallelConfig):
    """One process a device, gradients averaged (torch DistributedDataParallel)."""

    name: str = option("ddp", "parallel mode")
    num_processes: Union[int, str] = option("auto", "ranks (auto: every visible GPU, or 2 on a CPU)", words=("auto",), at_least=1)
    backend: Backend = option(Backend.auto, "auto: nccl on GPUs, gloo on a CPU")
    sync_batchnorm: bool = option(False, "batch statistics over all ranks")
    find_unused_parameters: bool = option(False, "needed when parameters take no part in some steps; costs time")
    gradient_as_bucket_view: bool = option(True, "gradients share memory with the communication buckets")
    static_graph: bool = option(False, "promise that every step uses the same parameters")
    bucket_cap_mb: int = option(25, "size of a communication bucket in MiB", at_least=1)
    comm_hook: CommHook = option(CommHook.none, "send gradients in half precision")
    timeout_seconds: int = option(600, "longest wait in a collective", at_least=1)
    grace_seconds: int = option(30, "time from SIGTERM to SIGKILL for ranks", at_least=1)


@dataclass
class TrackingConfig:
    """Where metrics and artifacts go. Options: mlflow, none."""

    name: str = option("mlflow", "tracker")
    uri: str | None = option(None, "MLflow store (null: MLFLOW_TRACKING_URI, or one sqlite file at the project's root)")
    experiment_name: str = option("halfstep", "MLflow experiment")
    run_name: str | None = option(None, "MLflow run name (null: the run's name)")
    required: bool = option(False, "exit with 75 if the store can't be reached at start, instead of training without it")
    log_model: bool = option(True, "log the best model at the end")


@dataclass
class SaveConfig:
    """Checkpoints."""

    every_epochs: int = option(1, "epochs between checkpoints; the last epoch is always saved", at_least=1)
    keep: int = option(2, "newest checkpoints kept beside the best", at_least=1)


@dataclass
class Config:
    """One run."""

    seed: int = option(0, "seed of weights, sample order and augmentation", at_least=0, at_most=2**63 - 1)
    deterministic: bool = option(False, "deterministic kernels only; slower")
    device: str = option("auto", "auto, cpu, cuda or cuda:N")
    name: str | None = option(None, "name of the run in directories and the tracker (null: model-data-precision-parallel)")
    resume: str | None = option(None, "auto, a checkpoint or run directory, or an MLflow run id")
    tags: dict[str, Any] = option({}, "free tags of the run; add your own with +tags.KEY=VALUE")
    objective: Objective = section(Objective, "what best means")
    train: TrainConfig = section(TrainConfig, "the loop")
    save: SaveConfig = section(SaveConfig, "checkpoints")
    model: ModelConfig = section(ModelConfig, "network")
    # Groups start from their base class: OmegaConf merges only a subclass over it, so the option chosen fits whatever it is.
    data: DataConfig = section(DataConfig, "data set")
    optim: OptimConfig = section(OptimConfig, "optimizer")
    schedule: ScheduleConfig = section(ScheduleConfig, "learning rate over updates")
    precision: PrecisionConfig = section(PrecisionConfig, "number formats")
    parallel: ParallelConfig = section(ParallelConfig, "processes and devices")
    tracking: TrackingConfig = section(TrackingConfig, "metrics store")


@dataclass
class EvaluateConfig(Config):
    """A saved model and where to measure it; every other key overrides the checkpoint's own config."""

    checkpoint: str | None = option(None, "checkpoint file, run directory or MLflow run id")
    split: Split = option(Split.val, "part of the data to evaluate")


SMALLEST_IMAGE = {"digits_cnn": 8, "alexnet": 63, "resnet18": 8}
"""Model -> smallest side in pixels that its strided layers leave something of."""

OPTIONS: dict[str, dict[str, type]] = {
    "model": {"digits_cnn": ModelConfig, "alexnet": ModelConfig, "resnet18": ModelConfig},
    "data": {"digits": DigitsConfig, "image_folder": ImageFolderConfig, "synthetic": SyntheticConfig},
    "optim": {"adamw": AdamWConfig, "sgd": SGDConfig},
    "schedule": {"plateau": PlateauConfig, "cosine": CosineConfig, "constant": ConstantConfig},
    "precision": {"fp32": PrecisionConfig, "amp": PrecisionConfig},
    "parallel": {"single": ParallelConfig, "ddp": DDPConfig},
    "tracking": {"mlflow": TrackingConfig, "none": TrackingConfig},
}
"""Group -> option name -> the dataclass of its fields."""
