"""Ranks do not outlive their launcher."""

import ctypes
import os
import signal
import sys


def global_rank() -> int:
    """This process's rank, as the engine numbered it."""
    return int(os.environ.get("RANK", "0"))


def die_with(launcher: int) -> None:
    """Ask the kernel to kill this rank when the process ``launcher`` that started it dies, so that no orphan trains on (Linux only).

    Called before anything slow is imported: a launcher that dies during that time must be noticed too.
    """
    if sys.platform != "linux":
        return
    ctypes.CDLL(None, use_errno=True).prctl(1, signal.SIGKILL)  # 1 is PR_SET_PDEATHSIG
    if os.getppid() != launcher:  # it died before the request
        os.kill(os.getpid(), signal.SIGKILL)
