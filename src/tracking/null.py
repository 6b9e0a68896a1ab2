"""The tracker that keeps nothing, and takes the place of a store that is away. The journal still has every point."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from src.tracking.base import Point, RunRef, Status

if TYPE_CHECKING:
    from torch import nn

    from src.tracking.base import Images


class NullTracker:
    """Accepts everything, keeps nothing."""

    @property
    def ref(self) -> RunRef | None:
        """There is no run."""
        return None

    def log_points(self, points: Sequence[Point]) -> None:
        """Drop the points."""

    def set_tags(self, tags: Mapping[str, Any]) -> None:
        """Drop the tags."""

    def describe(self, text: str) -> None:
        """Drop the text."""

    def log_dataset(self, about: Mapping[str, Any], *, context: str) -> None:
        """Drop the data set."""

    def log_artifacts(self, paths: Mapping[str, Path]) -> tuple[str, ...]:
        """Upload nothing, and name everything as not uploaded."""
        return tuple(paths)

    def log_model(self, model: "nn.Module", example: "Images") -> bool:
        """Upload nothing."""
        return False

    def finish(self, status: Status) -> bool:
        """Nothing to close."""
        return True
