"""HALFSTEP_FAULT: one fault, injected on purpose, to see how a run ends. Nothing happens unless the variable is set."""

import errno
import math
import os
import re
import signal
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from src.errors import ConfigError

if TYPE_CHECKING:
    from torch import Tensor

KINDS = ("kill", "raise", "exit", "hang", "slow", "nan", "oom", "enospc")
MARKER = ".fault"


def from_environment(run_dir: Path, *, rank: int, world_size: int) -> "Fault | None":
    """The fault that ``HALFSTEP_FAULT=kind:rank:step`` asks of this rank, unless it has struck in this run directory before.

    Raises ``ConfigError`` for a value that could never strike.
    """
    text = os.environ.get("HALFSTEP_FAULT")
    if not text:
        return None
    match = re.fullmatch(rf"({'|'.join(KINDS)}):(\d+):([1-9]\d*)", text)
    if match is None:
        raise ConfigError(f"HALFSTEP_FAULT={text} must be KIND:RANK:STEP with a step from 1 and a kind of {', '.join(KINDS)}")
    if int(match[2]) >= world_size:
        raise ConfigError(f"HALFSTEP_FAULT={text} names a rank that this run does not have; use 0 to {world_size - 1}")
    marker = run_dir / MARKER
    return Fault(match[1], step=int(match[3]), marker=marker) if int(match[2]) == rank and not marker.exists() else None


@dataclass
class Fault:
    """What is to go wrong in this rank when optimizer step number ``step`` begins; ``marker`` remembers that it has."""

    kind: str
    step: int
    marker: Path
    _slow: bool = False
    _left: float = field(default_factory=time.monotonic)

    def strike(self, step: int, images: "Tensor") -> None:
        """Go wrong if it is time: step number ``step`` begins, with the micro-batch ``images`` [B, C, H, W]."""
        if self._slow:
            time.sleep(3 * (time.monotonic() - self._left))
        elif step == self.step and not self.marker.exists():
            self.marker.touch()
            self._begin(images)
        self._left = time.monotonic()

    def _begin(self, images: "Tensor") -> None:
        match self.kind:
            case "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            case "raise":
                raise RuntimeError(f"injected by HALFSTEP_FAULT at step {self.step}")
            case "exit":
                os._exit(3)
            case "hang":
                while True:  # signal handlers run, the loop does not go on
                    threading.Event().wait(1.0)
            case "slow":
                self._slow = True
            case "nan":
                images.fill_(math.nan)
            case "oom":
                from torch import OutOfMemoryError  # late: the launcher, which only checks the value, sets variables for torch first

                raise OutOfMemoryError(f"injected by HALFSTEP_FAULT at step {self.step}: tried to allocate too much")
            case "enospc":
                _fail_next_fsync()


def _fail_next_fsync() -> None:
    # A file system with delayed allocation reports a full disk here; of what a rank writes only checkpoints are synced.
    fsync = os.fsync

    def full(descriptor: Any) -> None:
        os.fsync = fsync
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    os.fsync = full  # type: ignore[assignment]
