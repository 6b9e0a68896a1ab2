"""How many GPUs this process may use, found without torch: the checks of a command line run before torch is imported."""

import os
from pathlib import Path

from src.errors import ConfigError

PROC = Path("/proc/driver/nvidia/gpus")
DEV = Path("/dev")


def visible_cuda_devices() -> int:
    """GPUs of this machine that CUDA_VISIBLE_DEVICES leaves visible; like CUDA, the list ends at the first negative index."""
    present = len(list(PROC.glob("*"))) or len(list(DEV.glob("nvidia[0-9]*")))
    listed = os.environ.get("CUDA_VISIBLE_DEVICES")
    if listed is None:
        return present
    count = 0
    for entry in listed.split(","):
        if not entry.strip() or entry.strip().startswith("-"):
            break
        count += 1
    return min(count, present)


def refuse_torchrun() -> None:
    """Raise ``ConfigError`` in a process that torchrun started: each of its ranks would start a whole group of its own."""
    if "TORCHELASTIC_RUN_ID" in os.environ:
        raise ConfigError(
            "this process was started by torchrun, but the program starts its own ranks; type "
            "python -m src.train parallel=ddp parallel.num_processes=N"
        )
