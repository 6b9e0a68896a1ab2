"""TensorBoard behind the tracker protocol: one event file in the run directory, written from the journal.

Only TensorBoard's record format is used: its own writer would import TensorFlow where that is installed, and hides a full disk.
"""

import io
import logging
import math
import os
import platform
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from src.tracking.base import Point, Status
from src.tracking.null import NullTracker

if TYPE_CHECKING:
    from tensorboard.compat.proto.event_pb2 import Event

log = logging.getLogger(__name__)


class TensorBoardTracker(NullTracker):
    """Scalars and pictures of one run under ``folder``; what TensorBoard has no place for is dropped."""

    def __init__(self, folder: Path) -> None:
        """Begin a new event file, which takes the place of any that an interrupted session left. Raises OSError.

        A resumed run's journal holds all its points, is rid of those of an abandoned future, and is sent from its start.
        """
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog

        folder.mkdir(parents=True, exist_ok=True)
        now = time.time()
        # TensorBoard reads the files of a folder in the order of their names
        self._file = (folder / f"events.out.tfevents.{now:.6f}.{platform.node()}.{os.getpid()}").open("xb", buffering=0)
        self._size = 0
        self._last_step = 0
        self._nonfinite = 0
        # at this event TensorBoard forgets every point from step 0 on that it has read before
        start = Event(wall_time=now, step=0, session_log=SessionLog(status=SessionLog.START))
        self._write([Event(wall_time=now, file_version="brain.Event:2"), start])

    def log_points(self, points: Sequence[Point]) -> None:
        """Append finite points, at their own time; inf and NaN, which would hide the rest of a curve, are counted instead.

        All of them are written or, after an OSError, none; the same points again would show twice.
        """
        finite = [point for point in points if math.isfinite(point.value)]
        self._write([_event(point.time, point.step, tag=point.name, simple_value=point.value) for point in finite])
        self._nonfinite += len(points) - len(finite)
        self._last_step = max([self._last_step, *(point.step for point in points)])

    def log_artifacts(self, paths: Mapping[str, Path]) -> tuple[str, ...]:
        """Show the PNG files among them, at the last step; other files lie in the run directory anyway."""
        pictures = {name: path for name, path in paths.items() if path.suffix == ".png"}
        try:
            self._write([_picture(Path(name).with_suffix("").as_posix(), path, step=self._last_step) for name, path in pictures.items()])
        except OSError as error:
            log.warning("pictures can't be written for TensorBoard: %s", error)
            return tuple(pictures)
        return ()

    def finish(self, status: Status) -> bool:
        """Close the file."""
        if self._nonfinite:
            log.warning("%d metric points are inf or NaN and not shown in TensorBoard; metrics.jsonl has them", self._nonfinite)
        self._file.close()
        return True

    def _write(self, events: "Sequence[Event]") -> None:
        from tensorboard.summary.writer.record_writer import RecordWriter

        buffer = io.BytesIO()
        writer = RecordWriter(buffer)
        for event in events:
            writer.write(event.SerializeToString())
        data = buffer.getvalue()
        try:
            written = self._file.write(data)
            if written < len(data):
                raise OSError(f"only {written} of {len(data)} bytes fit")
        except OSError:
            self._file.truncate(self._size)
            self._file.seek(self._size)
            raise
        self._size += len(data)


def _event(wall_time: float, step: int, **value: Any) -> "Event":
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary

    return Event(wall_time=wall_time, step=step, summary=Summary(value=[Summary.Value(**value)]))


def _picture(tag: str, path: Path, *, step: int) -> "Event":
    from PIL import Image
    from tensorboard.compat.proto.summary_pb2 import Summary

    with Image.open(path) as image:
        width, height = image.size
    picture = Summary.Image(height=height, width=width, colorspace=4, encoded_image_string=path.read_bytes())
    return _event(time.time(), step, tag=tag, image=picture)
