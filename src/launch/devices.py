"""How many GPUs this process may use, found without torch: the checks of a command line run before torch is imported."""

import os
from pathlib import Path

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
