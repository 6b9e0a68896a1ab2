"""Ranks do not outlive their launcher, nor their own processes them."""

import ctypes
import os
import signal
import sys


def die_with(parent: int) -> None:
    """Ask the kernel to kill this process when the process ``parent`` that started it dies, so that no orphan works on (Linux only).

    A rank calls it before anything slow is imported: a launcher that dies during that time must be noticed too.
    """
    if sys.platform != "linux":
        return
    ctypes.CDLL(None, use_errno=True).prctl(1, signal.SIGKILL)  # 1 is PR_SET_PDEATHSIG
    if os.getppid() != parent:  # it died before the request
        os.kill(os.getpid(), signal.SIGKILL)
