"""Plain lines without a terminal; a bar on one."""

import io
import logging

import pytest
from rich.console import Console

from src.runtime import progress
from src.runtime.progress import Progress


@pytest.fixture
def clock(monkeypatch):
    """A clock to move by hand."""
    now = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    return now


@pytest.fixture
def lines(caplog, monkeypatch):
    """Messages so far, on a console that is no terminal."""
    monkeypatch.setattr(progress, "console", Console(file=io.StringIO()))
    caplog.set_level(logging.INFO, logger="src")
    return lambda: [record.getMessage() for record in caplog.records]


def test_log_points_of_a_long_epoch_get_a_line_every_ten_seconds(clock, lines):
    shown = Progress(100, shown=True)
    for step, seconds in enumerate([0, 9, 2, 9, 9, 0], 1):
        clock[0] += seconds
        shown.step(step, "loss 1")
    shown.close()
    assert lines() == ["step 3  loss 1", "step 5  loss 1"]


def test_epochs_always_get_a_line_which_starts_the_wait_anew(clock, lines):
    shown = Progress(100, shown=True)
    clock[0] += 9
    shown.epoch("epoch 1")
    shown.epoch("epoch 2")
    clock[0] += 9
    shown.step(1, "loss")
    assert lines() == ["epoch 1", "epoch 2"]


def test_other_ranks_show_nothing(clock, lines):
    hidden = Progress(100, shown=False)
    clock[0] += 99
    hidden.step(1, "loss")
    hidden.epoch("epoch 1")
    hidden.close()
    assert lines() == []


def test_a_terminal_gets_a_bar_that_leaves_no_trace(monkeypatch, caplog):
    screen = io.StringIO()
    monkeypatch.setattr(progress, "console", Console(file=screen, force_terminal=True, width=100))
    caplog.set_level(logging.INFO, logger="src")
    shown = Progress(10, shown=True)
    shown.step(4, "loss 0.5")
    shown._bar.refresh()
    assert "4/10" in screen.getvalue()
    assert "loss 0.5" in screen.getvalue()
    shown.close()
    shown.close()  # the end of a run and its failure both close it
    assert not caplog.records
    hidden = Progress(10, shown=False)
    assert hidden._bar is None
