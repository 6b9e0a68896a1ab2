"""The launcher's watch over the ranks it started: who has died, who hangs, who is slow."""

import logging
import signal
import statistics
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from src.launch import outcome as outcomes
from src.runtime.pulse import Beat, read_beat

log = logging.getLogger(__name__)

POLL_SECONDS = 0.2
PEER_SECONDS = 3.0
"""How long the others may go on once a rank has failed: they wait for it, some of them where no signal is heard."""
START_SECONDS = 60.0
"""Before its first step a rank may take this much longer than ``parallel.timeout_seconds``: libraries load, data is prepared."""
STACK_SECONDS = 1.0
PAUSE_SECONDS = 5.0
"""If this thread itself did not run for so long, the whole machine was paused."""
SLOW_SECONDS = 3.0
"""Time over which ranks are compared."""
SLOW_RATIO = 3.0
SLOW_STEPS = 5


@dataclass(frozen=True)
class Hang:
    """No rank has got on for ``seconds``; ``rank`` was the first to stand still, or is stopped by a signal."""

    rank: int
    seconds: float
    stopped: bool
    answered: tuple[int, ...]
    """Ranks that were asked for their stacks."""


def heartbeat_file(run_dir: Path, rank: int) -> Path:
    """Where a rank writes its pulse."""
    return run_dir / "ranks" / str(rank) / "heartbeat"


class Watch:
    """A thread that looks after the ranks of one group, from ``__enter__`` to ``__exit__``.

    After a failure it ends the ranks that don't end by themselves, and after ``timeout_seconds`` without progress of any rank the
    whole group; the engine, which waits for the processes, then sees the end.
    """

    def __init__(self, run_file: Path, *, num_processes: int, timeout_seconds: float) -> None:
        self.hang: Hang | None = None
        self.ended: set[int] = set()
        """Ranks that this launcher has killed, because of another's fault."""
        self.memory: dict[int, int] = {}
        """Largest resident set of each rank that was seen, in bytes."""
        self._run_dir = run_file.parent
        self._run_file = str(run_file)
        self._ranks = range(num_processes)
        self._timeout = timeout_seconds
        self._processes: dict[int, psutil.Process] = {}
        self._failed: dict[int, bool] = {}
        self._failed_at: float | None = None
        self._since = self._last = time.monotonic()
        self._compared: tuple[float, dict[int, Beat]] = (self._since, {})
        self._named_slow: set[int] = set()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watch-ranks", daemon=True)

    def __enter__(self) -> "Watch":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.set()
        self._thread.join()

    def dump_stacks(self) -> tuple[int, ...]:
        """Ask the ranks to write the stacks of their threads to their logs; returns those that can hear it."""
        asked = [rank for rank, process in self._processes.items() if _is_running(process) and not _is_stopped(process)]
        for rank in asked:
            _send(self._processes[rank], signal.SIGUSR2)
        return tuple(asked)

    def _run(self) -> None:
        while not self._closing.wait(POLL_SECONDS):
            now = time.monotonic()
            if now - self._last > PAUSE_SECONDS:
                self._since = now
            self._last = now
            self._find()
            self._measure()
            if self._failed_at is None and any(self._has_failed(rank) for rank in self._ranks):
                self._failed_at = now
            if self._failed_at is not None:
                if now - self._failed_at > PEER_SECONDS:
                    self._kill()
                continue
            beats = {rank: read_beat(heartbeat_file(self._run_dir, rank)) for rank in self._ranks if not self._is_done(rank)}
            if self._processes and beats and (late := find_hang(beats, since=self._since, now=now, timeout=self._timeout)):
                self._end_hang(*late)
            self._compare(beats, now)

    def _find(self) -> None:
        if len(self._processes) == len(self._ranks):
            return
        for process in psutil.Process().children():
            with suppress(psutil.Error, KeyError):  # it has ended, or is about to become a rank
                if self._run_file in process.cmdline():
                    self._processes.setdefault(int(process.environ()["RANK"]), process)

    def _measure(self) -> None:
        for rank, process in self._processes.items():
            with suppress(psutil.Error):
                self.memory[rank] = max(self.memory.get(rank, 0), process.memory_info().rss)

    def _is_done(self, rank: int) -> bool:
        return (self._run_dir / "ranks" / str(rank) / "outcome.json").exists()

    def _has_failed(self, rank: int) -> bool:
        if self._is_done(rank):
            if rank not in self._failed:
                outcome = outcomes.read(self._run_dir, rank)
                self._failed[rank] = outcome is not None and outcome.status == "FAILED"
            return self._failed[rank]
        return rank in self._processes and not _is_running(self._processes[rank]) and not self._is_done(rank)

    def _kill(self) -> None:
        for rank, process in self._processes.items():
            if _is_running(process):
                self.ended.add(rank)
                _send(process, signal.SIGKILL)

    def _end_hang(self, rank: int, seconds: float) -> None:
        stopped = [rank for rank, process in self._processes.items() if _is_stopped(process)]
        answered = self.dump_stacks()
        time.sleep(STACK_SECONDS)
        self.hang = Hang(stopped[0] if stopped else rank, seconds, bool(stopped), answered)
        self._kill()
        self._failed_at = time.monotonic()

    def _compare(self, beats: dict[int, Beat | None], now: float) -> None:
        """Warn, once a rank, of one that keeps the others waiting."""
        since, before = self._compared
        if now - since < SLOW_SECONDS:
            return
        known = {rank: beat for rank, beat in beats.items() if beat is not None}
        self._compared = (now, known)
        for rank, (own, others) in find_slow(before, known, seconds=now - since).items():
            if rank not in self._named_slow:
                self._named_slow.add(rank)
                log.warning(
                    "rank %d is slow: it takes %.0f ms a step for data and forward pass, the others %.0f ms, and they wait for it",
                    rank, 1000 * own, 1000 * others,
                )  # fmt: skip


def find_hang(beats: dict[int, Beat | None], *, since: float, now: float, timeout: float) -> tuple[int, float] | None:
    """The rank whose last beat is the oldest and the seconds since any rank's newest, if that is longer than allowed.

    While one rank still gets on, the others may well wait for it; ``since`` is when the watch began.
    """
    times = {rank: since if beat is None else max(since, beat.time) for rank, beat in beats.items()}
    silence = now - max(times.values())
    if silence <= (timeout if any(beats.values()) else timeout + START_SECONDS):
        return None
    oldest = min(times, key=lambda rank: (beats[rank] is not None, times[rank]))
    return oldest, silence


def find_slow(before: dict[int, Beat], now: dict[int, Beat], *, seconds: float) -> dict[int, tuple[float, float]]:
    """Ranks whose own part of a step is ``SLOW_RATIO`` times the others' and makes up much of the time: (own, others') seconds a step."""
    shares: dict[int, float] = {}
    for rank, beat in now.items():
        steps = beat.step - before[rank].step if rank in before else 0
        if steps < SLOW_STEPS:
            return {}
        shares[rank] = (beat.busy - before[rank].busy) / steps
    found = {}
    for rank, own in shares.items():
        others = [share for other, share in shares.items() if other != rank]
        busy = now[rank].busy - before[rank].busy
        if others and own >= SLOW_RATIO * (middle := statistics.median(others)) and busy > seconds / 4:
            found[rank] = (own, middle)
    return found


def _is_running(process: psutil.Process) -> bool:
    try:
        return bool(process.status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD))
    except psutil.Error:
        return False


def _is_stopped(process: psutil.Process) -> bool:
    try:
        return bool(process.status() in (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP))
    except psutil.Error:
        return False


def _send(process: psutil.Process, number: int) -> None:
    with suppress(psutil.Error):  # which also knows when another process has taken over the id
        process.send_signal(number)
