"""From the journal to the tracker, in a thread of the launcher, so that no rank ever waits for a store."""

import logging
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from src.tracking.base import Tracker
from src.tracking.journal import read_points
from src.tracking.messages import brief

log = logging.getLogger(__name__)

POINTS_PER_READ = 1000
_LONGEST_BACKOFF = 30.0


@dataclass(frozen=True)
class SentReport:
    """Points the tracker took, and points of the journal it didn't; those can be sent again from the journal."""

    sent: int
    failed: int


class Sender:
    """Follows a journal and sends its new points in batches; what a store refuses is kept in the journal and sent again.

    ``attach`` gives it the tracker, also after ``start``. Memory is bounded by one read of ``POINTS_PER_READ`` lines.
    """

    def __init__(self, journal: Path, *, poll_seconds: float = 1.0) -> None:
        self._journal = journal
        self._poll_seconds = poll_seconds
        self._tracker: Tracker | None = None
        self._offset = 0
        self._sent = 0
        self._warned = False
        self._closing = threading.Event()
        self._deadline = float("inf")
        self._thread = threading.Thread(target=self._run, name="metric-sender", daemon=True)

    def start(self) -> None:
        """Start following the journal, which need not exist yet."""
        self._thread.start()

    def attach(self, tracker: Tracker) -> None:
        """Send to this tracker from now on; points written before wait in the journal."""
        self._tracker = tracker

    def close(self, timeout: float) -> SentReport:
        """Send what is left, for at most ``timeout`` seconds, and stop. Call it once, when nothing writes to the journal any more."""
        self._deadline = time.monotonic() + timeout
        self._closing.set()
        self._thread.join(timeout)
        sent, offset = self._sent, self._offset
        return SentReport(sent=sent, failed=_num_points(self._journal, offset))

    def _run(self) -> None:
        pause = self._poll_seconds
        while True:
            # asked before reading: what was written before close() is then surely seen by the last read
            closing = self._closing.is_set()
            done = self._send_new()
            if closing and (done or time.monotonic() >= self._deadline):
                return
            pause = self._poll_seconds if done else min(2 * pause, _LONGEST_BACKOFF)
            if closing:
                time.sleep(min(pause, 0.5))
            else:
                self._closing.wait(pause)

    def _send_new(self) -> bool:
        """Send all new points; False if the tracker failed or the time is up."""
        while self._tracker is not None:
            points, offset = read_points(self._journal, offset=self._offset, limit=POINTS_PER_READ)
            if offset == self._offset:
                return True
            try:
                self._tracker.log_points(points)
            except Exception as error:  # any fault of a store, known or not, may end the sending but never the training
                if not self._warned:
                    log.warning("metrics can't be sent now, the journal keeps them for later: %s", brief(error))
                    self._warned = True
                return False
            if self._warned:
                log.info("metrics are being sent again")
                self._warned = False
            self._offset = offset
            self._sent += len(points)
            if time.monotonic() >= self._deadline:
                return False
        return True


def _num_points(journal: Path, offset: int) -> int:
    count = 0
    while True:
        points, end = read_points(journal, offset=offset, limit=POINTS_PER_READ)
        if end == offset:
            return count
        count, offset = count + len(points), end
