"""Pictures: PIL reads them back, and the colours show what the numbers say."""

import math
from pathlib import Path

import numpy as np
import pytest
from matplotlib import _pylab_helpers
from PIL import Image

from src.tracking.base import Point
from src.tracking.plots import confusion, curves, reliability

BLUE, ORANGE = (0x1F, 0x5F, 0xA8), (0xD9, 0x73, 0x1A)


def _pixels(path: Path, colour: tuple[int, int, int]) -> int:
    with Image.open(path) as image:
        return int((np.asarray(image.convert("RGB")) == colour).all(axis=-1).sum())


def _size(path: Path) -> tuple[int, int]:
    with Image.open(path) as image:
        return image.size


def _line(name: str, values: list[float]) -> list[Point]:
    return [Point(name, value, step, 0.0) for step, value in enumerate(values)]


def test_training_is_blue_and_validation_orange(tmp_path: Path) -> None:
    curves(_line("train/loss", [3.0, 2.0, 1.0]), tmp_path / "one.png")
    curves(_line("train/loss", [3.0, 2.0, 1.0]) + _line("val/loss", [2.0, 1.5, 1.0]), tmp_path / "two.png", title="run $x_1$ 名前")
    assert _pixels(tmp_path / "one.png", BLUE) > 50
    assert _pixels(tmp_path / "one.png", ORANGE) == 0
    assert _pixels(tmp_path / "two.png", ORANGE) > 50


def test_a_panel_for_each_kind_of_value(tmp_path: Path) -> None:
    points = _line("train/loss", [1.0, 0.5])
    curves(points, tmp_path / "1.png")
    curves(points + _line("val/accuracy", [0.1, 0.2]), tmp_path / "2.png")
    curves(points + _line("val/accuracy", [0.1, 0.2]) + _line("amp/scale", [65536.0, 32768.0]), tmp_path / "3.png")
    sizes = [_size(tmp_path / f"{panels}.png") for panels in (1, 2, 3)]
    assert sizes[1] == (2 * sizes[0][0], sizes[0][1])
    assert sizes[2] == (2 * sizes[0][0], 2 * sizes[0][1])


def test_skipped_updates_are_drawn_only_if_there_were_any(tmp_path: Path) -> None:
    points = _line("train/loss", [1.0, 0.5])
    curves(points + _line("amp/skipped_updates", [0.0, 0.0]), tmp_path / "none.png")
    curves(points + _line("amp/skipped_updates", [0.0, 1.0]), tmp_path / "one.png")
    assert _size(tmp_path / "one.png")[0] == 2 * _size(tmp_path / "none.png")[0]


@pytest.mark.parametrize("values", [[], [1.0], [math.nan, math.inf], [1.0, math.inf, 0.5]])
def test_few_or_non_finite_points_draw(tmp_path: Path, values: list[float]) -> None:
    """A single point is visible, inf and NaN are left out."""
    curves(_line("train/loss", values), tmp_path / "c.png")
    finite = [value for value in values if math.isfinite(value)]
    assert (_pixels(tmp_path / "c.png", BLUE) > 0) == bool(finite)


@pytest.mark.parametrize("size", [2, 10, 20, 21, 100])
def test_confusion_matrix_of_any_size(tmp_path: Path, size: int) -> None:
    confusion(np.eye(size, dtype=np.int64) * 9, [f"class_{i} $\\x" for i in range(size)], tmp_path / "m.png")
    width, height = _size(tmp_path / "m.png")
    assert 300 < height <= width < 1500


def test_colour_is_the_share_of_the_true_class(tmp_path: Path) -> None:
    """A rare class that is always right is as dark as a common one, and an empty class divides by nothing."""
    dark = (8, 48, 107)
    confusion(np.array([[1000, 0, 0], [0, 2, 0], [0, 0, 0]]), ["a", "b", "c"], tmp_path / "right.png")
    confusion(np.array([[1000, 0, 0], [2, 0, 0], [0, 0, 0]]), ["a", "b", "c"], tmp_path / "wrong.png")
    confusion(np.array([[500, 500, 0], [0, 2, 0], [0, 0, 0]]), ["a", "b", "c"], tmp_path / "half.png")
    right, wrong, half = (_pixels(tmp_path / f"{name}.png", dark) for name in ("right", "wrong", "half"))
    assert right == pytest.approx(wrong, rel=0.05)
    assert right == pytest.approx(2 * half, rel=0.1)


def test_reliability_shows_the_accuracy_of_each_bin(tmp_path: Path) -> None:
    """Blue grows with the accuracy; an empty bin and a single image draw."""
    for name, accuracy in (("low", 0.25), ("high", 0.75)):
        reliability({"count": [0, 4], "accuracy": [None, accuracy]}, tmp_path / f"{name}.png", error=0.1)
    low, high = (_pixels(tmp_path / f"{name}.png", BLUE) for name in ("low", "high"))
    assert low > 1000
    assert high == pytest.approx(3 * low, rel=0.1)


def test_no_global_state(tmp_path: Path) -> None:
    curves(_line("train/loss", [1.0, 0.5]), tmp_path / "c.png")
    assert not _pylab_helpers.Gcf.figs
