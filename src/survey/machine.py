"""What this machine is, and which precision and parallel modes work and are fast on it."""

import logging
import platform
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import psutil
import torch
import torchvision
from torch import nn

from src.config.check_devices import num_processes
from src.config.schema import OPTIONS, Config, PrecisionConfig
from src.runtime.rank import device_name, num_cores
from src.survey.coverage import observe
from src.survey.formats import GAIN, cpu_flags, support
from src.survey.trial import Shape, try_mode

CPU_FEATURES = ("avx2", "avx512f", "avx512_bf16", "amx_bf16", "avx512_fp16", "asimdhp", "bf16")
"""Names of /proc/cpuinfo that matter for speed in some number format; the last two are ARM's."""
CGROUP = Path("/sys/fs/cgroup")
NVIDIA_DRIVER = Path("/proc/driver/nvidia/version")
GIB = 2**30


@dataclass(frozen=True)
class ModeReport:
    """One precision mode on this device. ``speed`` is that of a matmul as a multiple of float32's, None where none ran."""

    name: str
    works: bool
    computes_in: str
    speed: float | None
    why: str

    @property
    def fast(self) -> bool:
        """Whether its matmuls gain on float32."""
        return self.speed is not None and self.speed >= GAIN


@dataclass(frozen=True)
class ParallelReport:
    """One parallel mode on this device, and the ranks that ``num_processes=auto`` gives."""

    name: str
    ranks: int
    backend: str


def facts(device: torch.device) -> list[tuple[str, str]]:
    """Name and value of what there is, one line each."""
    memory = psutil.virtual_memory()
    flags = cpu_flags()
    rows = [
        ("device", str(device)),
        ("python, torch, torchvision", f"{platform.python_version()}, {torch.__version__}, {torchvision.__version__}"),
        ("CPU", device_name(torch.device("cpu"))),
        ("CPU features", ", ".join(flag for flag in CPU_FEATURES if flag in flags) or "none of those that matter here"),
        ("kernels for", torch.backends.cpu.get_cpu_capability()),
        ("cores", f"{num_cores()} usable of {psutil.cpu_count()}{_quota()}"),
        ("memory", f"{memory.available / GIB:.1f} GiB free of {memory.total / GIB:.1f}{_memory_limit()}"),
    ]
    return [*rows, *(_gpus() if torch.cuda.is_available() else [("GPU", no_gpu())])]


def no_gpu(*, built_for: str | None = torch.version.cuda, driver: Path = NVIDIA_DRIVER) -> str:
    """Why torch sees no GPU, as far as that can be known."""
    if built_for is None:
        return "none: this torch was built without CUDA"
    if not driver.exists():
        return "none: no NVIDIA driver is loaded"
    return f"none visible: driver {_driver(driver)} is loaded, so CUDA_VISIBLE_DEVICES hides them or it is too old for CUDA {built_for}"


def _gpus() -> list[tuple[str, str]]:
    rows = []
    for index in range(torch.cuda.device_count()):
        card = torch.cuda.get_device_properties(index)
        free, total = torch.cuda.mem_get_info(index)
        text = f"{card.name}, compute capability {card.major}.{card.minor}, {free / GIB:.1f} GiB free of {total / GIB:.1f}"
        rows.append((f"cuda:{index}", text))
    cudnn = torch.backends.cudnn.version()
    nccl = ".".join(map(str, torch.cuda.nccl.version()))
    versions = f"{_driver(NVIDIA_DRIVER)}, {torch.version.cuda}, {cudnn}, {nccl}"
    return [*rows, ("driver, CUDA, cuDNN, NCCL", versions)]


def _driver(path: Path) -> str:
    words = path.read_text().split() if path.exists() else []
    return next((word for word in words if word[0].isdigit() and "." in word), "unknown")


def _quota(path: Path = CGROUP / "cpu.max") -> str:
    quota, _, period = (path.read_text() if path.exists() else "max").partition(" ")
    return "" if quota.strip() == "max" else f", and this container may use {int(quota) / int(period):.1f} at a time"


def _memory_limit(path: Path = CGROUP / "memory.max") -> str:
    limit = path.read_text().strip() if path.exists() else "max"
    return "" if limit == "max" else f", and this container may use {int(limit) / GIB:.1f}"


def precision_modes(device: torch.device, speeds: Mapping[str, float]) -> list[ModeReport]:
    """Every precision mode: one training step of a tiny network tells whether it works, ``speeds`` how fast it is.

    ``speeds`` are FLOP/s of a matmul by number format, float32 among them.
    """
    return [_mode(name, device, speeds) for name in OPTIONS["precision"]]


def _mode(name: str, device: torch.device, speeds: Mapping[str, float]) -> ModeReport:
    try:
        with _silent("src.precision"):
            computed = _tiny_step(name, device)
    except Exception as error:  # whatever it is, it is the answer
        return ModeReport(name, False, "-", None, (str(error) or type(error).__name__).splitlines()[0])
    asked = "tf32" if name == "tf32" else computed
    speed = speeds[computed] / speeds["float32"] if computed in speeds else None
    return ModeReport(name, True, computed, speed, support(asked, device).why)


def _tiny_step(name: str, device: torch.device) -> str:
    """The number format that most of a tiny network's FLOPs really run in."""
    network = nn.Sequential(nn.Conv2d(8, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.Flatten(), nn.Linear(16 * 8 * 8, 16))
    trial = try_mode(network, PrecisionConfig(name=name), device=device)
    images, labels = trial.batch(4, Shape(8, 8, 16))
    return observe(trial.working, partial(trial.step, images, labels)).formats()[0]


@contextmanager
def _silent(logger: str) -> Iterator[None]:
    """Without the warnings of each mode, which the table repeats in its own words."""
    log = logging.getLogger(logger)
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(level)


def parallel_modes(config: Config, device: torch.device) -> list[ParallelReport]:
    """Every parallel mode with the ranks it would start here for ``device=auto``."""
    reports = []
    for name, kind in OPTIONS["parallel"].items():
        ranks = num_processes(replace(config, parallel=kind(name=name)), torch.cuda.device_count() if device.type == "cuda" else 0)
        reports.append(ParallelReport(name, ranks, "-" if name in ("single", "dp") else "nccl" if device.type == "cuda" else "gloo"))
    return reports
