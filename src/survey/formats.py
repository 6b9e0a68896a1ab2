"""Which number formats this device is built for, and how fast a matmul really is in each."""

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

DTYPES = {"float32": torch.float32, "tf32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}

TENSOR_CORES = {"float16": (7, 0), "bfloat16": (8, 0), "tf32": (8, 0)}
"""Number format -> the first compute capability of NVIDIA GPUs whose tensor cores take it."""

INSTRUCTIONS = {"bfloat16": ("amx_bf16", "avx512_bf16", "bf16"), "float16": ("amx_fp16", "avx512_fp16", "asimdhp")}
"""Number format -> the flags of /proc/cpuinfo that stand for arithmetic in it (x86, then ARM)."""

CPU_SIDE, GPU_SIDE = 384, 8192
PROBE_SECONDS, PROBE_TURNS = 0.3, 20
GAIN = 1.2
"""A format or mode this much faster than float32 counts as fast; below, differences are noise or not worth it."""


@dataclass(frozen=True)
class Support:
    """Whether the hardware has units for a number format, and how that is known."""

    native: bool
    why: str


def support(name: str, device: torch.device) -> Support:
    """What the hardware offers for the number format ``name``."""
    if name == "float32":
        return Support(True, "what the others are measured against")
    if device.type == "cuda":
        return gpu_support(name, torch.cuda.get_device_capability(device), model=torch.cuda.get_device_name(device))
    return cpu_support(name, cpu_flags())


def gpu_support(name: str, capability: tuple[int, int], *, model: str) -> Support:
    """Tensor cores by compute capability; the GTX 16 cards have Turing's capability, 7.5, without tensor cores."""
    needed, has = (".".join(map(str, pair)) for pair in (TENSOR_CORES[name], capability))
    if capability < TENSOR_CORES[name]:
        return Support(False, f"no tensor cores for {name}: compute capability {has}, which begin with {needed}")
    if "GTX 16" in model:
        return Support(False, f"no tensor cores: {model} has none, although its compute capability is {has}")
    return Support(True, f"tensor cores (compute capability {has})")


def cpu_support(name: str, flags: frozenset[str]) -> Support:
    """Instructions and kernels of the CPU; oneDNN has kernels for some CPUs that must emulate the arithmetic."""
    if name == "tf32":
        return Support(False, "only NVIDIA GPUs have TF32")
    found = [flag for flag in INSTRUCTIONS[name] if flag in flags]
    if not has_kernels(name):
        return Support(False, f"oneDNN has no {name} kernels for this CPU, so torch's plain loops compute it")
    if not found:
        lacking = " and ".join(INSTRUCTIONS[name][:2])
        return Support(False, f"oneDNN has {name} kernels for this CPU, but it has no {name} instructions ({lacking} on x86)")
    return Support(True, f"oneDNN's kernels with {', '.join(found)}")


def has_kernels(name: str) -> bool:
    """Whether oneDNN computes in the half format ``name`` on this CPU."""
    mkldnn = torch.ops.mkldnn
    return bool(mkldnn._is_mkldnn_bf16_supported() if name == "bfloat16" else mkldnn._is_mkldnn_fp16_supported())


def cpu_flags(cpuinfo: Path = Path("/proc/cpuinfo")) -> frozenset[str]:
    """The CPU's features under Linux's names; empty where there is no such file."""
    if not cpuinfo.exists():
        return frozenset()
    lines = (line.partition(":") for line in cpuinfo.read_text(encoding="utf-8").splitlines())
    return frozenset(next((value.split() for key, _, value in lines if key.strip() in ("flags", "Features")), []))


def measurable(device: torch.device) -> list[str]:
    """The formats that a matmul can be timed in on this device, float32 first."""
    names = ["float32", "bfloat16", "float16"]
    return names if device.type == "cpu" or not support("tf32", device).native else ["float32", "tf32", *names[1:]]


def matmul_speeds(device: torch.device, names: list[str], *, side: int | None = None) -> dict[str, float]:
    """FLOP/s of a square matmul in each format: the best of ``PROBE_SECONDS`` of repetitions. Left out: what torch can't compute.

    The formats take turns, at least ``PROBE_TURNS``, so that other work on the machine disturbs all of them alike.
    """
    side = side or probe_side(device)
    full = torch.randn(2, side, side, device=device)
    pairs = {name: full.to(DTYPES[name]) for name in names}
    best: dict[str, float] = {}
    began, turns = time.perf_counter(), 0
    while turns < PROBE_TURNS or time.perf_counter() - began < PROBE_SECONDS * len(names):
        for name, (a, b) in pairs.items():
            with suppress(RuntimeError), _tf32(name == "tf32"):
                best[name] = min(best.get(name, math.inf), _seconds(a, b))
        turns += 1
    return {name: 2 * side**3 / seconds for name, seconds in best.items()}


def probe_side(device: torch.device) -> int:
    """Rows and columns of the matrices that are timed: large where that costs nothing, smaller where memory is short."""
    if device.type == "cpu":
        return CPU_SIDE
    free, _ = torch.cuda.mem_get_info(device)
    return GPU_SIDE if free > 6 * 4 * GPU_SIDE**2 else GPU_SIDE // 4


@contextmanager
def _tf32(allowed: bool) -> Iterator[None]:
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = allowed
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


def _seconds(a: Tensor, b: Tensor) -> float:
    start = time.perf_counter()
    torch.mm(a, b)
    if a.is_cuda:
        torch.cuda.synchronize(a.device)
    return time.perf_counter() - start
