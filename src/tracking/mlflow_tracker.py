"""One run in an MLflow store, once it is open."""

import logging
import math
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from src.tracking.base import Param, Point, RunRef, Status
from src.tracking.describe import NOTE_TAG, is_generated
from src.tracking.messages import brief, first_line
from src.tracking.mlflow_dataset import log_dataset
from src.tracking.mlflow_model import log_model
from src.tracking.mlflow_store import brief_requests, store_errors, wait_for_lock
from src.tracking.names import clean_name, param_texts, tag_texts

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from torch import nn

    from src.tracking.base import Images

log = logging.getLogger(__name__)

T = TypeVar("T")

_PARAMS_PER_BATCH = 100
_METRICS_PER_BATCH = 1000


class MlflowTracker:
    """A run that ``mlflow.start`` has opened. ``log_points`` may be called from another thread than the rest."""

    def __init__(self, client: "MlflowClient", ref: RunRef, *, resumed_tags: Mapping[str, str] | None = None) -> None:
        self._client = client
        self._ref = ref
        self._resumed = resumed_tags is not None
        self._nonfinite_before = int((resumed_tags or {}).get("nonfinite_points", 0))
        self._nonfinite: set[tuple[str, int]] = set()
        self._stored: dict[str, frozenset[int]] = {}
        self._unsent_params: Mapping[str, str] = {}

    @property
    def ref(self) -> RunRef:
        """The run's address, without a password."""
        return self._ref

    def log_params(self, params: Mapping[str, Param]) -> None:
        """Set params; a failure is one warning, and ``finish`` tries again: a run that exists must not be opened a second time."""
        texts = param_texts(params)
        try:
            _log_params(self._client, self._ref.run_id, texts)
        except store_errors() as error:
            log.warning("params can't be set in MLflow now: %s", brief(error))
            self._unsent_params = texts

    def log_points(self, points: Sequence[Point]) -> None:
        """Store finite points; inf and NaN, which a database turns into 1.8e308 or worse, are counted instead.

        On a resumed run a step that the store already has for a metric stays as it is, so every step appears once.
        """
        from mlflow.entities import Metric

        metrics = []
        for point in points:
            name = clean_name(point.name)
            if not math.isfinite(point.value):
                if not self._nonfinite:
                    log.warning("%s is %s at step %d; MLflow can't hold it, so such points are only counted", name, point.value, point.step)
                self._nonfinite.add((name, point.step))
            elif point.step not in self._stored_steps(name):
                metrics.append(Metric(name, point.value, round(point.time * 1000), point.step))
        for batch in _batches(metrics, _METRICS_PER_BATCH):
            self._client.log_batch(self._ref.run_id, metrics=batch, synchronous=True)

    def set_tags(self, tags: Mapping[str, Any]) -> None:
        """Set tags of the run; a failure is one warning."""
        try:
            log_tags(self._client, self._ref.run_id, tag_texts(tags))
        except store_errors() as error:
            log.warning("tags can't be set in MLflow: %s", brief(error))

    def describe(self, text: str) -> None:
        """Replace the text on top of the run's page, unless a person has written there; a failure is one warning."""
        try:
            with brief_requests():
                note = wait_for_lock(lambda: self._client.get_run(self._ref.run_id)).data.tags.get(NOTE_TAG)
            if is_generated(note):
                log_tags(self._client, self._ref.run_id, tag_texts({NOTE_TAG: text}))
        except store_errors() as error:
            log.warning("the description can't be set in MLflow: %s", brief(error))

    def log_dataset(self, about: Mapping[str, Any], *, context: str) -> None:
        """Make the data set that ``data.json`` describes an input of the run, once; a failure is one warning."""
        try:
            self._check_store()
            wait_for_lock(lambda: log_dataset(self._client, self._ref.run_id, about, context=context))
        except store_errors() as error:
            log.warning("the data set can't be logged in MLflow: %s", brief(error))

    def log_artifacts(self, paths: Mapping[str, Path]) -> tuple[str, ...]:
        """Upload files under the given names (``folder/name``); returns the names that failed, after one warning.

        After the first refusal by the store the rest isn't tried, or a dead server would cost a time-out a file.
        """
        left = {name: path for name, path in paths.items() if path.is_file()}
        missing = tuple(name for name in paths if name not in left)
        try:
            self._check_store()
            with tempfile.TemporaryDirectory() as folder:
                for name, path in dict(left).items():
                    # MLflow keeps a file's own name: give it a link that has the wanted one
                    link = Path(folder) / Path(name).name
                    link.symlink_to(path.absolute())
                    self._client.log_artifact(self._ref.run_id, str(link), None if name == link.name else Path(name).parent.as_posix())
                    link.unlink()
                    del left[name]
        except store_errors() as error:
            log.warning("artifacts can't be uploaded to MLflow, local copies are kept: %s", brief(error))
        return missing + tuple(left)

    def log_model(self, model: "nn.Module", example: "Images") -> bool:
        """Upload a model on the CPU, in eval mode, as a ``torch.export`` program under the name ``model``.

        ``example`` are float32 images [N, C, H, W]; the program takes any N. False, after one warning, if the net can't be exported
        or uploaded: that never ends a run. A user loads it, without this project, by ::

            mlflow.set_tracking_uri(URI)
            model = mlflow.pytorch.load_model("runs:/RUN_ID/model")    # or mlflow.pyfunc.load_model(...).predict(images)

        It computes the logits of the net that was logged. It is in eval mode already; calling ``.eval()`` on it raises.
        """
        try:
            self._check_store()
            with tempfile.TemporaryDirectory() as folder:
                log_model(self._client, self._ref, model.eval(), example, folder=Path(folder) / "model")
            return True
        except Exception as error:  # whatever an exporter or a store comes up with, the training is done and saved
            log.warning("the model isn't logged to MLflow (its checkpoint is kept): %s: %s", type(error).__name__, first_line(error))
            return False

    def finish(self, status: Status) -> bool:
        """Close the run with its true status; False, after one warning, if the store is away."""
        nonfinite = max(self._nonfinite_before, len(self._nonfinite))
        try:
            with brief_requests():
                if nonfinite:
                    wait_for_lock(lambda: self._client.set_tag(self._ref.run_id, "nonfinite_points", nonfinite))
                _log_params(self._client, self._ref.run_id, self._unsent_params)
                wait_for_lock(lambda: self._client.set_terminated(self._ref.run_id, status))
            return True
        except store_errors() as error:
            log.warning("MLflow run %s can't be closed as %s: %s", self._ref.run_id, status, brief(error))
            return False

    def _check_store(self) -> None:
        """Raise within seconds if the store is away: an upload may take long, finding out that nobody is there may not."""
        with brief_requests():
            wait_for_lock(lambda: self._client.get_run(self._ref.run_id))

    def _stored_steps(self, name: str) -> frozenset[int]:
        if not self._resumed:
            return frozenset()
        if name not in self._stored:
            self._stored[name] = frozenset(metric.step for metric in self._client.get_metric_history(self._ref.run_id, name))
        return self._stored[name]


def _log_params(client: "MlflowClient", run_id: str, params: Mapping[str, str]) -> None:
    from mlflow.entities import Param as MlflowParam

    for batch in _batches([MlflowParam(name, value) for name, value in params.items()], _PARAMS_PER_BATCH):
        wait_for_lock(partial(client.log_batch, run_id, params=batch, synchronous=True))


def log_tags(client: "MlflowClient", run_id: str, tags: Mapping[str, str]) -> None:
    """Set tags that MLflow takes, in batches. Raises any error of the store."""
    from mlflow.entities import RunTag

    for batch in _batches([RunTag(name, value) for name, value in tags.items()], _PARAMS_PER_BATCH):
        wait_for_lock(partial(client.log_batch, run_id, tags=batch, synchronous=True))


def _batches(items: Sequence[T], size: int) -> Iterator[list[T]]:
    for begin in range(0, len(items), size):
        yield list(items[begin : begin + size])
