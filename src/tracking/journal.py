"""``metrics.jsonl``: every metric point of a run, one strict JSON object a line, written by rank 0 and read by the sender.

The file is the truth; a tracker is a copy of it that may lag, and can be filled again from here.
"""

import json
import logging
import math
import os
from collections.abc import Sequence
from pathlib import Path

from src.tracking.base import Point

log = logging.getLogger(__name__)

ABANDONED_SUFFIX = ".abandoned"
_TAIL_BYTES = 4096


class Journal:
    """Append-only writer for one process. It never raises for a full disk: it warns once and counts in ``dropped``."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        self.dropped = 0
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        self._size = os.fstat(self._fd).st_size
        self._cut_torn_line()

    def write(self, points: Sequence[Point]) -> None:
        """Append points with one write, so that a crash tears at most the last line of the file."""
        data = "".join(_encode(point) for point in points).encode()
        try:
            written = os.write(self._fd, data)
            if written < len(data):
                raise OSError(f"only {written} of {len(data)} bytes fit")
            self._size += written
        except OSError as error:
            if not self.dropped:
                log.warning("metric points can't be written to %s (%s); training goes on without them", self.path, error)
            self.dropped += len(points)
            self._truncate(self._size)

    def close(self) -> None:
        """Close the file; further writes are an error."""
        os.close(self._fd)

    def _cut_torn_line(self) -> None:
        """A writer that was killed may have left half a line: cut it, or the next point would be glued to it."""
        data = self.path.read_bytes()
        if data and not data.endswith(b"\n"):
            self._truncate(data.rfind(b"\n") + 1)

    def _truncate(self, size: int) -> None:
        os.ftruncate(self._fd, size)
        self._size = size


def read_points(path: Path, *, offset: int = 0, limit: int | None = None) -> tuple[list[Point], int]:
    """Points of complete lines from byte ``offset`` on, at most ``limit`` lines, and the offset to go on from.

    A last line without its newline is left for later; a line that isn't a point is skipped. A missing file has no points.
    """
    points: list[Point] = []
    lines = 0
    try:
        with path.open("rb") as file:
            file.seek(offset)
            while (limit is None or lines < limit) and (line := file.readline()).endswith(b"\n"):
                offset += len(line)
                lines += 1
                if (point := _decode(line)) is not None:
                    points.append(point)
    except FileNotFoundError:
        pass
    return points, offset


def last_step(path: Path) -> int:
    """The step of the newest point, 0 if there is none: a look at the end of the file only."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL_BYTES))
            lines = file.read().splitlines(keepends=True)
    except FileNotFoundError:
        return 0
    newest = (point for line in reversed(lines) if line.endswith(b"\n") and (point := _decode(line)) is not None)
    return next((point.step for point in newest), 0)


def truncate_after(path: Path, *, step: int) -> int:
    """Drop points later than ``step`` before a run continues from there; returns how many.

    They belong to a future that was abandoned, and are moved to ``metrics.jsonl.abandoned``. Call it while nothing writes or reads.
    """
    points, _ = read_points(path)
    late = [point for point in points if point.step > step]
    if not late:
        return 0
    abandoned = Journal(path.with_name(path.name + ABANDONED_SUFFIX))
    abandoned.write(late)
    abandoned.close()
    temporary = path.with_name(path.name + ".tmp")
    with temporary.open("w", encoding="utf-8") as file:
        file.writelines(_encode(point) for point in points if point.step <= step)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    return len(late)


def _encode(point: Point) -> str:
    record: dict[str, object] = {"name": point.name, "value": point.value, "step": point.step, "time": point.time}
    if not math.isfinite(point.value):
        # json would write NaN and Infinity, which no strict parser reads
        record |= {"value": None, "nonfinite": str(point.value)}
    return json.dumps(record, allow_nan=False, separators=(",", ":")) + "\n"


def _decode(line: bytes) -> Point | None:
    try:
        record = json.loads(line)
        value = record["value"] if record["value"] is not None else record["nonfinite"]
        return Point(str(record["name"]), float(value), int(record["step"]), float(record["time"]))
    except (ValueError, KeyError, TypeError):
        return None
