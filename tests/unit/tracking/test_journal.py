"""The journal: strict JSON, whole lines only, never an error for a full disk."""

import errno
import json
import logging
import math
import os
from pathlib import Path
from typing import Any

import pytest

from src.tracking.base import Point
from src.tracking.journal import Journal, last_step, read_points, truncate_after


def _points(count: int, *, first: int = 1) -> list[Point]:
    return [Point("train/loss", 1 / 3 + step, step, 1.7e9 + step) for step in range(first, first + count)]


def _reject(word: str) -> float:
    raise AssertionError(f"{word} isn't strict JSON")


def test_points_come_back_exactly(tmp_path: Path) -> None:
    path = tmp_path / "run" / "metrics.jsonl"
    journal = Journal(path)
    journal.write(_points(3))
    journal.write(_points(2, first=4))
    journal.close()
    assert read_points(path) == (_points(5), path.stat().st_size)


def test_non_finite_values_are_strict_json_and_come_back(tmp_path: Path) -> None:
    """D05: a strict parser reads every line."""
    path = tmp_path / "metrics.jsonl"
    values = [math.nan, math.inf, -math.inf, 0.5]
    Journal(path).write([Point("val/loss", value, step, 0.0) for step, value in enumerate(values)])
    records = [json.loads(line, parse_constant=_reject) for line in path.read_text().splitlines()]
    assert [record["value"] for record in records] == [None, None, None, 0.5]
    assert [record.get("nonfinite") for record in records] == ["nan", "inf", "-inf", None]
    back = [point.value for point in read_points(path)[0]]
    assert math.isnan(back[0])
    assert back[1:] == values[1:]


def test_one_write_for_a_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = Journal(tmp_path / "metrics.jsonl")
    sizes: list[int] = []
    write = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: sizes.append(len(data)) or write(fd, data))
    journal.write(_points(50))
    assert len(sizes) == 1
    assert sizes[0] == journal.path.stat().st_size


def test_reading_in_pieces_gives_each_point_once(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    Journal(path).write(_points(10))
    offset, seen = 0, []
    for expected in (4, 4, 2, 0):
        points, offset = read_points(path, offset=offset, limit=4)
        assert len(points) == expected
        seen += points
    assert seen == _points(10)


def test_missing_journal_has_no_points(tmp_path: Path) -> None:
    assert read_points(tmp_path / "metrics.jsonl", offset=0) == ([], 0)


def test_torn_last_line_is_left_for_later_and_cut_on_reopen(tmp_path: Path) -> None:
    """A writer killed in the middle of a line costs that line only."""
    path = tmp_path / "metrics.jsonl"
    Journal(path).write(_points(2))
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"name":"train/lo')
    assert read_points(path) == (_points(2), len(whole))
    journal = Journal(path)
    assert path.read_bytes() == whole
    journal.write(_points(1, first=3))
    assert read_points(path)[0] == _points(3)


def test_foreign_line_is_skipped(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'\xff\xfe\n{"name": 1}\n[]\nnull\n')
    Journal(path).write(_points(1))
    assert read_points(path) == (_points(1), path.stat().st_size)


@pytest.mark.parametrize("fits", [0, 30])
def test_full_disk_drops_points_with_one_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, fits: int
) -> None:
    """FAULTS 9: also when half of a line fitted, the file keeps whole lines only, and writing goes on once there is room."""
    path = tmp_path / "metrics.jsonl"
    journal = Journal(path)
    journal.write(_points(1))
    write = os.write

    def full(fd: int, data: bytes) -> int:
        if not fits:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(fd, data[:fits])

    with monkeypatch.context() as patch, caplog.at_level(logging.WARNING):
        patch.setattr(os, "write", full)
        journal.write(_points(2, first=2))
        journal.write(_points(3, first=4))
    assert journal.dropped == 5
    assert len(caplog.records) == 1
    journal.write(_points(1, first=7))
    assert read_points(path)[0] == _points(1) + _points(1, first=7)


def test_resume_drops_the_abandoned_future_and_keeps_it_aside(tmp_path: Path) -> None:
    """D07: after a kill at step 7 and a resume from step 5, steps 1 to 10 stand in the journal once each."""
    path = tmp_path / "metrics.jsonl"
    Journal(path).write(_points(7))
    assert truncate_after(path, step=5) == 2
    Journal(path).write(_points(5, first=6))
    assert [point.step for point in read_points(path)[0]] == list(range(1, 11))
    assert read_points(tmp_path / "metrics.jsonl.abandoned")[0] == _points(2, first=6)
    assert truncate_after(path, step=10) == 0
    assert sorted(item.name for item in tmp_path.iterdir()) == ["metrics.jsonl", "metrics.jsonl.abandoned"]


def test_truncating_what_is_not_there_does_nothing(tmp_path: Path) -> None:
    assert truncate_after(tmp_path / "metrics.jsonl", step=0) == 0
    assert not list(tmp_path.iterdir())


def test_points_are_plain_values() -> None:
    point: Any = Point("a", 1.0, 1, 0.0)
    with pytest.raises(AttributeError):
        point.value = 2.0


def test_last_step_is_that_of_the_last_whole_line(tmp_path: Path) -> None:
    """Also in a file longer than what is looked at, and while a line is being written."""
    path = tmp_path / "metrics.jsonl"
    assert last_step(path) == 0
    journal = Journal(path)
    assert last_step(path) == 0
    journal.write([Point("train/loss", 1.0, step, 0.0) for step in range(1, 2001)])
    assert last_step(path) == read_points(path)[0][-1].step == 2000
    with path.open("a") as file:
        file.write('not a point\n{"name":"train/loss","value":1.0,"step":2001')
    assert last_step(path) == 2000
