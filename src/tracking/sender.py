"""From the journals to a tracker, in a thread of the launcher, so that no rank ever waits for a store."""

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
    """Points the tracker took, and points of the journals it didn't; those can be sent again from there."""

    sent: int
    failed: int


class Sender:
    """Follows journals and sends their new points in batches; what a store refuses is kept in the journal and sent again.

    Each tracker has a sender of its own, so that one that fails neither stops another nor sends it anything twice.

    ``attach`` gives it the tracker, also after ``start``. Memory is bounded by one read of ``POINTS_PER_READ`` lines.
    """

    def __init__(self, *journals: Path, poll_seconds: float = 1.0) -> None:
        self._offsets = dict.fromkeys(journals, 0)
        self._newest: dict[str, int] = {}
        self._sent_before: dict[Path, dict[str, int]] = {}
        self._poll_seconds = poll_seconds
        self._tracker: Tracker | None = None
        self._sent = 0
        self._warned = False
        self._closing = threading.Event()
        self._deadline = float("inf")
        self._thread = threading.Thread(target=self._run, name="metric-sender", daemon=True)

    def start(self) -> None:
        """Start following the journals, which need not exist yet."""
        self._thread.start()

    def attach(self, tracker: Tracker) -> None:
        """Send to this tracker from now on; points written before wait in the journals."""
        self._tracker = tracker

    def close(self, timeout: float) -> SentReport:
        """Send what is left, for at most ``timeout`` seconds, and stop. Call it once, when nothing writes to the journals any more."""
        self._deadline = time.monotonic() + timeout
        self._closing.set()
        self._thread.join(timeout)
        sent, offsets = self._sent, dict(self._offsets)
        return SentReport(sent=sent, failed=sum(_num_points(journal, offset) for journal, offset in offsets.items()))

    def _run(self) -> None:
        pause = self._poll_seconds
        while True:
            # asked before reading: what was written before close() is then surely seen by the last read
            closing = self._closing.is_set()
            done = all(self._send_new(journal) for journal in self._offsets)
            if closing and (done or time.monotonic() >= self._deadline):
                return
            pause = self._poll_seconds if done else min(2 * pause, _LONGEST_BACKOFF)
            if closing:
                time.sleep(min(pause, 0.5))
            else:
                self._closing.wait(pause)

    def _send_new(self, journal: Path) -> bool:
        """Send all new points of a journal; False if the tracker failed or the time is up."""
        self._follow_cut(journal)
        while self._tracker is not None:
            points, offset = read_points(journal, offset=self._offsets[journal], limit=POINTS_PER_READ)
            before = self._sent_before.get(journal, {})
            points = [point for point in points if point.step > before.get(point.name, -1)]
            if offset == self._offsets[journal]:
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
            self._offsets[journal] = offset
            self._newest |= {point.name: point.step for point in points}
            self._sent += len(points)
            if time.monotonic() >= self._deadline:
                return False
        return True

    def _follow_cut(self, journal: Path) -> None:
        """Read a journal from its start if it has become shorter: the run goes on from an earlier step.

        The steps that it does again are not sent again.
        """
        if journal.exists() and journal.stat().st_size < self._offsets[journal]:
            self._offsets[journal] = 0
            self._sent_before[journal] = dict(self._newest)


def _num_points(journal: Path, offset: int) -> int:
    count = 0
    while True:
        points, end = read_points(journal, offset=offset, limit=POINTS_PER_READ)
        if end == offset:
            return count
        count, offset = count + len(points), end
