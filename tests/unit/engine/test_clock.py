"""A clock that steps back an hour in mid-run: times are measured by another clock, and everything is in the order of the steps."""

import math
import os
import time

from src.checkpoint.find import newest_valid, step_files
from src.engine import loop
from src.engine.state import TrainState
from src.tracking.journal import last_step, read_points

HOUR = 3600.0


def test_durations_and_order_do_not_depend_on_the_wall_clock(make_parts, monkeypatch):
    true_time = time.time
    calls = 0

    def stepping_back() -> float:
        nonlocal calls
        calls += 1
        return true_time() - HOUR * (calls > 4)

    monkeypatch.setattr(time, "time", stepping_back)
    parts, state = make_parts(save={"every_steps": 2, "keep": 9, "background": False}), TrainState()
    began = time.monotonic()
    loop.fit(parts, state)
    taken = time.monotonic() - began
    path = parts.run_dir / "metrics.jsonl"
    points, _ = read_points(path)
    stamps = [point.time for point in points]
    assert min(stamps[1:]) < stamps[0] - HOUR / 2  # it did step back
    assert [point.step for point in points] == sorted(point.step for point in points)
    assert last_step(path) == state.step == 10
    for point in points:
        if point.name.startswith("perf/"):
            assert math.isfinite(point.value)
            assert point.value >= 0
    seconds = [point.value for point in points if point.name == "perf/epoch_seconds"]
    assert 0 < sum(seconds) <= taken
    assert 0 < state.train_seconds <= taken


def test_the_newest_checkpoint_is_that_of_the_last_step(make_parts):
    """File times that run backwards are no reason to go on from an earlier step."""
    parts = make_parts(save={"every_steps": 2, "keep": 9, "background": False})
    loop.fit(parts, TrainState())
    directory = parts.run_dir / "checkpoints"
    for age, path in enumerate(step_files(directory)):
        os.utime(path, (1e9 + age, 1e9 + age))
    newest = newest_valid(directory)
    assert newest is not None
    assert newest.name == "step-00000010.pt"
    assert max(directory.glob("step-*.pt"), key=lambda path: path.stat().st_mtime) != newest
