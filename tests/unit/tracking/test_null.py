"""The tracker that keeps nothing."""

from pathlib import Path

import numpy as np
from torch import nn

from src.tracking.base import Point
from src.tracking.null import NullTracker


def test_it_keeps_nothing_and_says_so() -> None:
    tracker = NullTracker()
    tracker.log_points([Point("a", 1.0, 1, 0.0)])
    tracker.set_tags({"a": "b"})
    assert tracker.ref is None
    assert tracker.log_artifacts({"a.txt": Path("a.txt")}) == ("a.txt",)
    assert not tracker.log_model(nn.Identity(), np.zeros((2, 1, 2, 2), np.float32))
    assert tracker.finish("FINISHED")
