"""What the launcher needs from a tracker, and the points that flow to it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import nn

    Images = NDArray[np.float32]

Status = Literal["FINISHED", "FAILED", "KILLED"]
"""How a run ended, in MLflow's words."""

Param = str | float | int | bool | None
"""A config value after flattening; lists arrive as text."""


@dataclass(frozen=True)
class Point:
    """One metric value. ``time`` is in Unix seconds; ``value`` may be inf or NaN."""

    name: str
    value: float
    step: int
    time: float


@dataclass(frozen=True)
class RunRef:
    """Where a run is kept."""

    uri: str
    experiment_id: str
    run_id: str


class Tracker(Protocol):
    """A store of runs. Only the launcher talks to it; ranks write the journal."""

    @property
    def ref(self) -> RunRef | None:
        """The run's address; None where nothing is kept."""

    def log_points(self, points: Sequence[Point]) -> None:
        """Store points; storing the same ones again changes nothing. Raises any error of the store: the sender retries."""

    def set_tags(self, tags: Mapping[str, Any]) -> None:
        """Set tags of the run; a failure is one warning."""

    def describe(self, text: str) -> None:
        """Replace the text on top of the run's page, unless a person has written there; a failure is one warning."""

    def log_dataset(self, about: Mapping[str, Any], *, context: str) -> None:
        """Make the data set that ``data.json`` describes an input of the run, once; a failure is one warning.

        ``context`` is what it is used for: training, validation or test.
        """

    def log_artifacts(self, paths: Mapping[str, Path]) -> tuple[str, ...]:
        """Upload files under the given names (``folder/name``); returns the names that failed, after one warning."""

    def log_model(self, model: "nn.Module", example: "Images") -> bool:
        """Upload a model that a user can load without this project; False, after one warning, if that fails."""

    def finish(self, status: Status) -> bool:
        """Close the run with its true status; False, after one warning, if the store is away."""
