"""Whether a run that its store calls RUNNING still has a process."""

import fcntl
import json
from dataclasses import dataclass
from pathlib import Path

from src.sweep.directory import LOCK
from src.tracking.base import Status


@dataclass(frozen=True)
class Finding:
    """What a run directory tells about its run; nothing where it can't be seen from this machine."""

    ended: Status | None = None
    """The true status of a run whose process is gone."""
    process: str | None = None
    """The id of the process that holds the directory."""


def look_at(run_dir: Path) -> Finding:
    """Look at the lock that the process of a run holds to its last moment, and at the result if it still wrote one."""
    lock = run_dir / LOCK
    try:
        with lock.open(encoding="utf-8") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return Finding(process=file.read().strip() or "unknown")
            return Finding(ended=_last_word(run_dir, since=lock.stat().st_mtime))
    except OSError:  # no such directory here, or a file system without locks
        return Finding()


def _last_word(run_dir: Path, *, since: float) -> Status:
    """The status in ``result.json`` if the last process wrote it (its store was away then), KILLED if it died without a word."""
    result = run_dir / "result.json"
    if not result.exists() or result.stat().st_mtime < since:
        return "KILLED"
    status: Status = json.loads(result.read_text(encoding="utf-8"))["status"]
    return status
