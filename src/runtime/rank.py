"""Who am I: rank, world size and device of this process. The only reader of torchrun's environment."""

import os
import platform
from dataclasses import dataclass, field
from pathlib import Path

import torch


@dataclass(frozen=True)
class Rank:
    """This process among all processes of the run."""

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    local_world_size: int = 1
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    @property
    def is_main(self) -> bool:
        """Rank 0 writes the run's files."""
        return self.rank == 0


def from_environment(device: str) -> Rank:
    """Read torchrun's variables and pick this rank's device.

    ``device`` is the config's word: auto, cpu, cuda or cuda:N (N for one process only).
    """
    local_rank = int(os.environ.get("LOCAL_RANK", "0"))
    return Rank(
        rank=int(os.environ.get("RANK", "0")),
        world_size=int(os.environ.get("WORLD_SIZE", "1")),
        local_rank=local_rank,
        local_world_size=int(os.environ.get("LOCAL_WORLD_SIZE", "1")),
        device=pick_device(device, local_rank=local_rank),
    )


def pick_device(device: str, *, local_rank: int = 0) -> torch.device:
    """The torch device behind the config's word for this local rank."""
    if device == "cpu" or (device == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    if ":" in device:
        return torch.device(device)
    return torch.device("cuda", local_rank)


def use_threads(local_world_size: int) -> int:
    """Share the cores among this machine's ranks, unless OMP_NUM_THREADS says otherwise; returns the threads per rank."""
    wish = os.environ.get("OMP_NUM_THREADS", "").split(",")[0]
    threads = int(wish) if wish.isdigit() else num_cores() // local_world_size
    torch.set_num_threads(max(1, threads))
    return torch.get_num_threads()


def num_cores() -> int:
    """Cores this process may use, which a container can make fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def device_name(device: torch.device) -> str:
    """The device as people know it."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    model = platform.processor() or platform.machine()
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), model)
    except OSError:  # not Linux
        pass
    return f"{model} ({num_cores()} cores)"
