"""How busy this machine is: one sampler a machine, in a thread of the launcher, whatever the number of ranks."""

import logging
import threading
import time
from importlib import import_module
from pathlib import Path
from typing import Any

import psutil

from src.tracking.base import Point
from src.tracking.journal import Journal, last_step

log = logging.getLogger(__name__)

_GIB = 2**30


class LoadSampler:
    """Writes ``system/`` points to a journal of its own, at the step the run has reached; a fault of it ends the sampling only.

    ``run_journal`` tells that step; ``visible`` is CUDA_VISIBLE_DEVICES.
    """

    def __init__(self, journal: Path, *, run_journal: Path, visible: str | None, every_seconds: float = 10.0) -> None:
        self._journal = journal
        self._run_journal = run_journal
        self._visible = visible
        self._every_seconds = every_seconds
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="load-sampler", daemon=True)

    def start(self) -> None:
        """Sample from now on."""
        self._thread.start()

    def close(self) -> None:
        """Take the last sample and stop; a driver that hangs is not waited for."""
        self._closing.set()
        self._thread.join(5)

    def _run(self) -> None:
        try:
            journal = Journal(self._journal)
            gpus = Gpus(self._visible)
            psutil.cpu_percent()  # the first call has nothing to compare with
            while True:
                closing = self._closing.wait(self._every_seconds)
                now, step = time.time(), last_step(self._run_journal)
                values = host_load() | gpus.load()
                journal.write([Point(f"system/{name}", value, step, now) for name, value in values.items()])
                if closing:
                    break
            journal.close()
            gpus.close()
        except Exception as error:
            log.warning("the load of this machine isn't recorded any more: %s: %s", type(error).__name__, error)


def host_load() -> dict[str, float]:
    """CPU load of the machine in per cent since the last call, and the resident memory of this process and its descendants.

    Pages that processes share count once in each of them.
    """
    this = psutil.Process()
    memory = 0
    for process in (this, *this.children(recursive=True)):
        try:
            memory += process.memory_info().rss
        except psutil.Error:  # it has ended meanwhile
            continue
    return {"cpu_percent": psutil.cpu_percent(), "memory_gib": memory / _GIB}


class Gpus:
    """The GPUs that CUDA_VISIBLE_DEVICES leaves, numbered as CUDA does; none without a driver or without the extra ``gpu``."""

    def __init__(self, visible: str | None) -> None:
        self._nvml: Any = None
        self._handles: list[Any] = []
        try:
            nvml: Any = import_module("pynvml")
            nvml.nvmlInit()
        except Exception:  # not installed, or its own error for a machine without the driver
            return
        self._nvml = nvml
        present = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
        chosen = visible_indices(visible, [nvml.nvmlDeviceGetUUID(handle) for handle in present])
        self._handles = [present[index] for index in chosen]

    def load(self) -> dict[str, float]:
        """``gpu_N_percent``, the share of time in which a kernel ran, and ``gpu_N_memory_gib`` in use by anyone."""
        found: dict[str, float] = {}
        for number, handle in enumerate(self._handles):
            try:
                found[f"gpu_{number}_memory_gib"] = self._nvml.nvmlDeviceGetMemoryInfo(handle).used / _GIB
                found[f"gpu_{number}_percent"] = float(self._nvml.nvmlDeviceGetUtilizationRates(handle).gpu)
            except self._nvml.NVMLError:  # a part of a GPU has no load of its own
                continue
        return found

    def close(self) -> None:
        """Leave the driver's library."""
        if self._nvml is not None:
            self._nvml.nvmlShutdown()


def visible_indices(visible: str | None, uuids: list[str]) -> list[int]:
    """Which of the GPUs with these UUIDs CUDA_VISIBLE_DEVICES names, by index or by the beginning of a UUID; null is all.

    Like CUDA, the list ends at the first entry that is no GPU of this machine.
    """
    if visible is None:
        return list(range(len(uuids)))
    chosen: list[int] = []
    for entry in (text.strip() for text in visible.split(",")):
        if entry.isdigit():
            matches = [int(entry)] if int(entry) < len(uuids) else []
        else:
            matches = [index for index, uuid in enumerate(uuids) if entry.startswith("GPU-") and uuid.startswith(entry)]
        if len(matches) != 1:
            break
        chosen += matches
    return chosen
