"""Peak memory of one job, also where a sweep runs several in one process."""

from pathlib import Path

import torch

_STATUS = Path("/proc/self/status")
_CLEAR = Path("/proc/self/clear_refs")


def reset_peak(device: torch.device) -> None:
    """Forget the peak so far."""
    if device.type == "cuda":
        if torch.cuda.is_initialized():  # else there is no peak yet, and asking raises
            torch.cuda.reset_peak_memory_stats(device)
    elif _CLEAR.exists():
        _CLEAR.write_text("5")  # resets the peak resident set size (proc(5))


def peak_bytes(device: torch.device) -> int | None:
    """Most memory allocated on a GPU, or the largest resident set of this process; None where that can't be known."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    if not _STATUS.exists():
        return None
    line = next(line for line in _STATUS.read_text().splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024
