"""Who writes a run's checkpoints, and what happens when one can't be written."""

import logging
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from src.checkpoint.find import step_files
from src.checkpoint.host import HostMemory, to_host
from src.checkpoint.save import write_checkpoint
from src.config.schema import SaveConfig

log = logging.getLogger(__name__)


@dataclass
class _Snapshot:
    payload: dict[str, Any]
    about: dict[str, Any]
    is_best: bool
    memory: HostMemory


class Writer:
    """Writes to ``directory``; with ``save.background`` in a thread, while training goes on.

    In the background one checkpoint is written and one may wait. A newer one takes the place of the one that waits, unless that
    is the best so far, so that saving more often than the disk can follow costs neither memory nor time. A checkpoint that can't
    be written is a warning, ``save.max_failures`` in a row are forgiven, and the ones before stay.
    """

    def __init__(self, directory: Path, config: SaveConfig) -> None:
        self._directory = directory
        self._config = config
        self._failures = 0
        self._reason = ""
        self._changed = threading.Condition()
        self._free: list[HostMemory] = []
        self._waiting: _Snapshot | None = None
        self._closed = False
        self._thread: threading.Thread | None = None

    def start(self, size: int = 0) -> None:
        """Get ready for checkpoints with about ``size`` bytes on a GPU: their memory is locked in the thread, while training begins."""
        if self._config.background:
            self._thread = threading.Thread(target=self._work, args=(size,), name="checkpoints", daemon=True)
            self._thread.start()

    def put(self, content: dict[str, Any], *, about: dict[str, Any], is_best: bool) -> None:
        """Write ``content``, or let it be written: what is on a device is copied now, so it may change afterwards."""
        if not self._config.background:
            self._write(_Snapshot(to_host(content), about, is_best, HostMemory()))
            return
        if self._thread is None:
            self.start()
        with self._changed:
            self._changed.wait_for(lambda: self._free if self._waiting is None else is_best or not self._waiting.is_best)
            memory = self._free.pop() if self._waiting is None else self._withdraw()
        try:
            snapshot = _Snapshot(to_host(content, memory), about, is_best, memory)
        except (RuntimeError, MemoryError) as error:  # no memory to hold it
            self._fail(about["step"], error)
            snapshot = None
        with self._changed:
            self._waiting = snapshot
            self._changed.notify_all()
        if snapshot is None:
            self._release(memory)

    def wait(self) -> None:
        """Until everything is on the disk, or has failed to get there."""
        with self._changed:
            self._changed.wait_for(lambda: self._thread is None or len(self._free) == 2)

    def close(self) -> None:
        """Wait, and end the thread."""
        self.wait()
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()

    def problem(self, *, last: bool) -> str | None:
        """Why the run must end, if it must: too many failures, or one of the ``last`` checkpoint that the run will write."""
        if self._failures <= (0 if last else self._config.max_failures):
            return None
        newest = next(iter(step_files(self._directory)), None)
        return (
            f"the last {self._failures} checkpoints could not be written ({self._reason}), save.max_failures={self._config.max_failures}; "
            f"{f'the newest good one is {newest}' if newest else 'there is no earlier one'}; free some space or set hydra.run.dir"
        )

    def _withdraw(self) -> HostMemory:
        snapshot, self._waiting = self._waiting, None
        assert snapshot is not None
        snapshot.memory.recycle()
        return snapshot.memory

    def _work(self, size: int) -> None:
        for _ in range(2):
            self._release(HostMemory(size))
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting is not None or self._closed)
                if self._waiting is None:
                    return
                snapshot, self._waiting = self._waiting, None
                self._changed.notify_all()
            self._write(snapshot)
            memory = snapshot.memory
            del snapshot  # its tensors lie there
            self._release(memory)

    def _release(self, memory: HostMemory) -> None:
        memory.recycle()
        with self._changed:
            self._free.append(memory)
            self._changed.notify_all()

    def _write(self, snapshot: _Snapshot) -> None:
        try:
            write_checkpoint(
                self._directory,
                snapshot.payload,
                about=snapshot.about,
                is_best=snapshot.is_best and self._config.best,
                keep=self._config.keep,
            )
        except Exception as error:  # torch turns a full disk into a RuntimeError; and after any error somebody may wait for this thread
            self._fail(snapshot.about["step"], error)
        else:
            self._failures = 0

    def _fail(self, step: int, error: Exception) -> None:
        self._failures += 1
        self._reason = str(error).partition("\n")[0] or type(error).__name__
        log.warning(
            "the checkpoint of step %d could not be written to %s: %s; earlier ones are kept, and training goes on",
            step,
            self._directory,
            self._reason,
        )
