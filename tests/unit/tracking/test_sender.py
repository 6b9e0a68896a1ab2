"""The sender against trackers that fail, hang or come late."""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from src.tracking import sender as sender_module
from src.tracking.base import Point
from src.tracking.journal import Journal, truncate_after
from src.tracking.null import NullTracker
from src.tracking.sender import Sender, SentReport


class _Recorder(NullTracker):
    """Keeps what it is sent, unless ``fault`` raises or waits."""

    def __init__(self, fault: Callable[[], None] = lambda: None) -> None:
        self.points: list[Point] = []
        self.calls = 0
        self.fault = fault

    def log_points(self, points: Sequence[Point]) -> None:
        self.calls += 1
        self.fault()
        self.points += points


def _points(count: int, *, first: int = 1) -> list[Point]:
    return [Point("train/loss", float(step), step, 0.0) for step in range(first, first + count)]


def _wait(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def _hang(release: threading.Event) -> None:
    release.wait(30)


def _raise() -> None:
    raise OSError("server is down")


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    return Journal(tmp_path / "metrics.jsonl")


def _sender(journal: Journal) -> Sender:
    sender = Sender(journal.path, poll_seconds=0.01)
    sender.start()
    return sender


def test_points_follow_while_the_run_goes_on(journal: Journal) -> None:
    tracker, sender = _Recorder(), _sender(journal)
    sender.attach(tracker)
    journal.write(_points(3))
    _wait(lambda: len(tracker.points) == 3)
    journal.write(_points(2, first=4))
    assert sender.close(5) == SentReport(sent=5, failed=0)
    assert tracker.points == _points(5)


def test_tracker_may_come_late(journal: Journal) -> None:
    """The launcher opens MLflow while the ranks start."""
    sender = _sender(journal)
    journal.write(_points(3))
    time.sleep(0.05)
    tracker = _Recorder()
    sender.attach(tracker)
    _wait(lambda: len(tracker.points) == 3)
    assert sender.close(5) == SentReport(sent=3, failed=0)


def test_without_a_tracker_nothing_is_sent_and_close_returns_at_once(journal: Journal) -> None:
    sender = _sender(journal)
    journal.write(_points(3))
    begin = time.monotonic()
    assert sender.close(5) == SentReport(sent=0, failed=3)
    assert time.monotonic() - begin < 2


def test_outage_is_replayed_without_gaps_or_doubles(journal: Journal, caplog: pytest.LogCaptureFixture) -> None:
    """D16, FAULTS 15: one warning, then everything arrives in order."""
    tracker, sender = _Recorder(), _sender(journal)
    sender.attach(tracker)
    journal.write(_points(20))
    _wait(lambda: len(tracker.points) == 20)
    with caplog.at_level(logging.INFO, logger="src.tracking.sender"):
        tracker.fault = _raise
        calls = tracker.calls
        journal.write(_points(10, first=21))
        _wait(lambda: tracker.calls >= calls + 3)
        tracker.fault = lambda: None
        journal.write(_points(10, first=31))
        assert sender.close(5) == SentReport(sent=40, failed=0)
    assert tracker.points == _points(40)
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]
    assert "server is down" in caplog.text


def test_points_that_never_arrive_are_counted(journal: Journal) -> None:
    sender = _sender(journal)
    sender.attach(_Recorder(_raise))
    journal.write(_points(7))
    begin = time.monotonic()
    assert sender.close(0.3) == SentReport(sent=0, failed=7)
    assert time.monotonic() - begin < 2


def test_close_does_not_wait_for_a_call_that_hangs(journal: Journal) -> None:
    """FAULTS 15: a server that takes 30 s holds the end up by the time-out of close only."""
    release = threading.Event()
    tracker = _Recorder(fault=lambda: _hang(release))
    sender = _sender(journal)
    sender.attach(tracker)
    journal.write(_points(4))
    _wait(lambda: tracker.calls == 1)
    begin = time.monotonic()
    report = sender.close(0.2)
    assert time.monotonic() - begin < 2
    assert report == SentReport(sent=0, failed=4)
    release.set()


def test_one_read_is_bounded_and_all_is_sent(journal: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
    """FAULTS 15: memory stays bounded however long the outage was."""
    monkeypatch.setattr(sender_module, "POINTS_PER_READ", 10)
    sizes: list[int] = []
    tracker = _Recorder()
    send = tracker.log_points
    monkeypatch.setattr(tracker, "log_points", lambda points: sizes.append(len(points)) or send(points))
    sender = _sender(journal)
    journal.write(_points(95))
    sender.attach(tracker)
    assert sender.close(5) == SentReport(sent=95, failed=0)
    assert max(sizes) <= 10
    assert tracker.points == _points(95)


def test_two_journals_go_to_two_trackers_and_each_gets_everything_once(journal: Journal) -> None:
    """A tracker that fails is sent its points again; the one that doesn't gets no doubles."""
    other = Journal(journal.path.with_name("system.jsonl"))
    good, bad = _Recorder(), _Recorder(_raise)
    senders = [Sender(journal.path, other.path, poll_seconds=0.01) for _ in range(2)]
    for sender, tracker in zip(senders, (good, bad), strict=True):
        sender.start()
        sender.attach(tracker)
    journal.write(_points(3))
    other.write(_points(2, first=10))
    _wait(lambda: len(good.points) == 5 and bad.calls >= 3)
    bad.fault = lambda: None
    assert [sender.close(5) for sender in senders] == [SentReport(sent=5, failed=0)] * 2
    for tracker in (good, bad):
        assert sorted(point.step for point in tracker.points) == [1, 2, 3, 10, 11]


def test_steps_done_again_after_a_restart_are_sent_once(journal: Journal) -> None:
    """FAULTS row 1: a fresh group goes on from an earlier step, and the journal is cut back to it while the sender runs."""
    tracker, sender = _Recorder(), _sender(journal)
    sender.attach(tracker)
    journal.write([*_points(8), Point("val/loss", 0.5, 4, 0.0)])
    _wait(lambda: len(tracker.points) == 9)
    journal.close()
    truncate_after(journal.path, step=4)
    time.sleep(0.1)
    again = Journal(journal.path)
    again.write([*_points(8, first=5), Point("val/loss", 0.4, 8, 0.0)])
    sender.close(5)
    again.close()
    steps = [point.step for point in tracker.points if point.name == "train/loss"]
    assert steps == list(range(1, 13))
    assert [point.step for point in tracker.points if point.name == "val/loss"] == [4, 8]
