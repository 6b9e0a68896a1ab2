"""Peak memory of one job, also where a sweep runs several in one process."""

from pathlib import Path

import psutil
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


def summary(device: torch.device) -> str:
    """This process's memory on the device it computes on, in one line."""
    peak = peak_bytes(device)
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        reserved = torch.cuda.max_memory_reserved(device)
        return (
            f"{_show(torch.cuda.max_memory_allocated(device))} allocated at most, {_show(reserved)} reserved, "
            f"{_show(free)} of {_show(total)} free on {torch.cuda.get_device_name(device)}"
        )
    system = psutil.virtual_memory()
    own = "" if peak is None else f"{_show(peak)} resident at most, "
    return f"{own}{_show(system.available)} of {_show(system.total)} available on this machine"


def _show(count: int) -> str:
    """A number of bytes as people read it."""
    return f"{count / 2**30:.1f} GiB" if count >= 2**30 else f"{count / 2**20:.0f} MiB"
