"""Event files, read back by TensorBoard's own reader."""

import io
import logging
import math
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from src.tracking.base import Point
from src.tracking.tensorboard import TensorBoardTracker


def _points(steps: range, *, name: str = "train/loss", value: float = 0.1) -> list[Point]:
    return [Point(name, value * step, step, 1.7e9 + step / 4) for step in steps]


def _read(folder: Path) -> EventAccumulator:
    return EventAccumulator(str(folder), size_guidance={"scalars": 0, "images": 0}).Reload()


def _scalars(folder: Path, name: str = "train/loss") -> list[tuple[int, float, float]]:
    return [(event.step, event.value, event.wall_time) for event in _read(folder).Scalars(name)]


def test_points_arrive_with_their_step_and_time(tmp_path: Path) -> None:
    """Also while the run goes on, and under names that only other stores refuse."""
    tracker = TensorBoardTracker(tmp_path / "tensorboard")
    tracker.log_points(_points(range(1, 4)))
    tracker.log_points(_points(range(2, 3), name="acc@5 (é)"))
    stored = _scalars(tmp_path / "tensorboard")
    assert [(step, time) for step, _, time in stored] == [(1, 1.7e9 + 0.25), (2, 1.7e9 + 0.5), (3, 1.7e9 + 0.75)]
    np.testing.assert_array_equal([value for _, value, _ in stored], np.float32([0.1, 0.2, 0.3]))
    assert _read(tmp_path / "tensorboard").Tags()["scalars"] == ["train/loss", "acc@5 (é)"]
    assert tracker.ref is None
    assert tracker.finish("FINISHED")


def test_non_finite_points_are_left_out_and_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """D05."""
    tracker = TensorBoardTracker(tmp_path)
    tracker.log_points([Point("val/loss", value, step, 1.0) for step, value in enumerate([1.0, math.inf, math.nan, 0.5])])
    with caplog.at_level(logging.WARNING):
        tracker.finish("FINISHED")
    assert [(step, value) for step, value, _ in _scalars(tmp_path, "val/loss")] == [(0, 1.0), (3, 0.5)]
    assert "2 metric points" in caplog.text


def test_a_resumed_run_shows_no_step_twice_and_none_it_left_behind(tmp_path: Path) -> None:
    """D07: stopped at 7, resumed from 5; also for a TensorBoard that has read the first session."""
    first = TensorBoardTracker(tmp_path)
    first.log_points(_points(range(1, 8)))
    watching = _read(tmp_path)
    first.finish("KILLED")
    second = TensorBoardTracker(tmp_path)
    second.log_points(_points(range(1, 6)))  # the sender begins at the journal's start
    second.log_points(_points(range(6, 7), value=0.7))
    stored = _scalars(tmp_path)
    assert [step for step, _, _ in stored] == [1, 2, 3, 4, 5, 6]
    assert stored[-1][1] == pytest.approx(4.2)
    assert [event.step for event in watching.Reload().Scalars("train/loss")] == [1, 2, 3, 4, 5, 6]
    second.finish("FINISHED")


def test_pictures_are_shown_at_the_last_step(tmp_path: Path) -> None:
    picture = tmp_path / "curves.png"
    Image.new("RGBA", (7, 5), "red").save(picture)
    text = tmp_path / "run.yaml"
    text.write_text("seed: 0")
    tracker = TensorBoardTracker(tmp_path / "tensorboard")
    tracker.log_points(_points(range(1, 4)))
    assert tracker.log_artifacts({"plots/curves.png": picture, "run.yaml": text}) == ()
    tracker.finish("FINISHED")
    events = _read(tmp_path / "tensorboard")
    assert events.Tags()["images"] == ["plots/curves"]
    (shown,) = events.Images("plots/curves")
    assert (shown.step, shown.width, shown.height) == (3, 7, 5)
    assert Image.open(io.BytesIO(shown.encoded_image_string)).getpixel((0, 0)) == (255, 0, 0, 255)


def test_a_picture_that_cannot_be_read_is_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    tracker = TensorBoardTracker(tmp_path)
    assert tracker.log_artifacts({"a.png": tmp_path / "gone.png"}) == ("a.png",)
    assert "pictures can't be written" in caplog.text
    tracker.finish("FINISHED")


class _FullDisk(io.BytesIO):
    """Takes 10 bytes of the next write."""

    full = False

    def write(self, data: bytes) -> int:  # type: ignore[override]
        return super().write(data[:10] if self.full else data)


def test_a_batch_that_did_not_fit_leaves_no_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk raises to the sender, and what it sends again shows once."""
    tracker = TensorBoardTracker(tmp_path / "unused")
    tracker.finish("FINISHED")
    disk = _FullDisk()
    monkeypatch.setattr(tracker, "_file", disk)
    monkeypatch.setattr(tracker, "_size", 0)
    tracker.log_points(_points(range(1, 3)))
    before = disk.getvalue()
    disk.full = True
    with pytest.raises(OSError, match="only 10 of"):
        tracker.log_points(_points(range(3, 6)))
    assert disk.getvalue() == before
    disk.full = False
    tracker.log_points(_points(range(3, 6)))
    folder = tmp_path / "read"
    folder.mkdir()
    (folder / "events.out.tfevents.1").write_bytes(disk.getvalue())
    assert [step for step, _, _ in _scalars(folder)] == [1, 2, 3, 4, 5]
