"""MLflow behind the tracker protocol: one run in one store, opened and closed by the launcher.

mlflow is imported inside functions, here and in ``mlflow_store`` and ``mlflow_model``, and nowhere else in the project.
"""

import contextlib
import getpass
import logging
import math
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from src.config.schema import TrackingConfig
from src.errors import CheckpointError, ConfigError, TryAgainError
from src.tracking.base import Param, Point, RunRef, Status, Tracker
from src.tracking.messages import brief, first_line, shown_uri
from src.tracking.mlflow_model import log_model
from src.tracking.mlflow_store import brief_requests, import_mlflow, prepare_store, store_errors, wait_for_lock
from src.tracking.names import clean_name, param_texts, tag_texts
from src.tracking.null import NullTracker
from src.tracking.uri import artifact_location, sqlite_path

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run
    from torch import nn

    from src.tracking.base import Images

log = logging.getLogger(__name__)

T = TypeVar("T")

_PARAMS_PER_BATCH = 100
_METRICS_PER_BATCH = 1000


def start(
    settings: TrackingConfig,
    *,
    uri: str,
    root: Path,
    run_name: str,
    params: Mapping[str, Param],
    tags: Mapping[str, Any],
    description: str | None = None,
    resume_run_id: str | None = None,
) -> Tracker:
    """Open the store at ``uri`` (from ``resolve_uri``) and a new run in it, or go on with the run ``resume_run_id``.

    ``root`` takes the artifacts of a database that isn't a sqlite file. On resume, params that differ become tags
    ``drift.<name>``. A store that can't be used raises TryAgainError within 10 s if ``tracking.required``; otherwise it costs a
    warning, and a tracker that keeps nothing comes back. Raises ConfigError for a deleted experiment and an unknown or deleted run.
    """
    import_mlflow()
    try:
        with brief_requests():
            prepare_store(uri)
            client = wait_for_lock(lambda: _open_client(uri))
            texts = tag_texts(_reserved_tags(tags, description) | dict(tags))
            if resume_run_id:
                return _resume_run(client, resume_run_id, uri=uri, params=param_texts(params), tags=texts)
            location = artifact_location(uri, experiment=settings.experiment_name, root=root)
            experiment_id = wait_for_lock(lambda: _experiment_id(client, settings.experiment_name, location))
            return _new_run(client, experiment_id, uri=uri, run_name=run_name, params=param_texts(params), tags=texts)
    except ImportError as error:
        raise ConfigError(f"tracking.uri={shown_uri(uri)} needs a package that isn't installed: {error}") from error
    except store_errors() as error:
        message = f"tracking.uri={shown_uri(uri)} can't be used: {brief(error)}"
        if settings.required:
            raise TryAgainError(f"{message}; start that store, or train without it by tracking.required=false") from error
        log.warning("%s; the run goes on without it and keeps every point in its metrics.jsonl", message)
        return NullTracker()


def read_tag(uri: str, run_id: str, tag: str) -> str | None:
    """A tag of a run, None if the run has no such tag.

    Raises CheckpointError if the store can't be read or has no such run.
    """
    database = sqlite_path(uri)
    if database is not None and not database.is_file():  # opening it would create it
        raise CheckpointError(
            f"MLflow run {run_id} can't be found: there is no store {database}; give a checkpoint file, or the right tracking.uri"
        )
    import_mlflow()
    from mlflow import MlflowClient

    try:
        with brief_requests():
            prepare_store(uri)
            run = MlflowClient(tracking_uri=uri).get_run(run_id)
    except store_errors() as error:
        raise CheckpointError(f"MLflow run {run_id} can't be read from {shown_uri(uri)}: {brief(error)}; give a checkpoint file") from None
    return run.data.tags.get(tag)


class MlflowTracker:
    """One run in an MLflow store. Use ``start``. ``log_points`` may be called from another thread than the rest."""

    def __init__(self, client: "MlflowClient", ref: RunRef, *, resumed_tags: Mapping[str, str] | None = None) -> None:
        self._client = client
        self._ref = ref
        self._resumed = resumed_tags is not None
        self._nonfinite_before = int((resumed_tags or {}).get("nonfinite_points", 0))
        self._nonfinite: set[tuple[str, int]] = set()
        self._stored: dict[str, frozenset[int]] = {}

    @property
    def ref(self) -> RunRef:
        """The run's address, without a password."""
        return self._ref

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
            _log_tags(self._client, self._ref.run_id, tag_texts(tags))
        except store_errors() as error:
            log.warning("tags can't be set in MLflow: %s", brief(error))

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


def _open_client(uri: str) -> "MlflowClient":
    from mlflow import MlflowClient

    return MlflowClient(tracking_uri=uri)


def _new_run(
    client: "MlflowClient", experiment_id: str, *, uri: str, run_name: str, params: Mapping[str, str], tags: Mapping[str, str]
) -> MlflowTracker:
    run = wait_for_lock(lambda: client.create_run(experiment_id, run_name=run_name, tags=dict(tags)))
    _log_params(client, run.info.run_id, params)
    return MlflowTracker(client, RunRef(shown_uri(uri), experiment_id, run.info.run_id))


def _resume_run(client: "MlflowClient", run_id: str, *, uri: str, params: Mapping[str, str], tags: Mapping[str, str]) -> MlflowTracker:
    """Go on with a run. A store never changes a param, so a different value is recorded as the tag ``drift.<name>``."""
    run = wait_for_lock(lambda: _resumable_run(client, run_id, uri))
    old = run.data.params
    drift = {f"drift.{name}": f"{old[name]} -> {value}" for name, value in params.items() if old.get(name, value) != value}
    wait_for_lock(lambda: client.update_run(run_id, status="RUNNING"))
    _log_tags(client, run_id, tag_texts(drift) | dict(tags))
    _log_params(client, run_id, {name: value for name, value in params.items() if name not in old})
    return MlflowTracker(client, RunRef(shown_uri(uri), run.info.experiment_id, run_id), resumed_tags=run.data.tags)


def _experiment_id(client: "MlflowClient", name: str, location: str | None) -> str:
    """The experiment's id; it is created if need be, also while another process creates it."""
    from mlflow.exceptions import MlflowException

    experiment = client.get_experiment_by_name(name)
    if experiment is None:
        try:
            return str(client.create_experiment(name, artifact_location=location))
        except MlflowException as error:
            if error.error_code == "INVALID_PARAMETER_VALUE":
                raise ConfigError(f"tracking.experiment_name={name}: {brief(error)}") from error
            if error.error_code != "RESOURCE_ALREADY_EXISTS":
                raise
            return _experiment_id(client, name, location)
    if experiment.lifecycle_stage != "active":
        fix = f"restore it with `mlflow experiments restore --experiment-id {experiment.experiment_id}` or choose another name"
        raise ConfigError(f"tracking.experiment_name={name} was deleted from the store; {fix}")
    return str(experiment.experiment_id)


def _resumable_run(client: "MlflowClient", run_id: str, uri: str) -> "Run":
    from mlflow.exceptions import MlflowException

    where = f"MLflow run {run_id}, which this run continues,"
    choice = "name the store that has it by tracking.uri=..., or go on without MLflow by tracking=none"
    try:
        run = client.get_run(run_id)
    except MlflowException as error:
        if error.error_code not in ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE"):
            raise
        raise ConfigError(f"{where} is not in tracking.uri={shown_uri(uri)}; {choice}") from error
    if run.info.lifecycle_stage != "active":
        raise ConfigError(f"{where} was deleted; restore it with `mlflow runs restore --run-id {run_id}`, {choice}")
    return run


def _log_params(client: "MlflowClient", run_id: str, params: Mapping[str, str]) -> None:
    from mlflow.entities import Param as MlflowParam

    for batch in _batches([MlflowParam(name, value) for name, value in params.items()], _PARAMS_PER_BATCH):
        wait_for_lock(partial(client.log_batch, run_id, params=batch, synchronous=True))


def _log_tags(client: "MlflowClient", run_id: str, tags: Mapping[str, str]) -> None:
    from mlflow.entities import RunTag

    for batch in _batches([RunTag(name, value) for name, value in tags.items()], _PARAMS_PER_BATCH):
        wait_for_lock(partial(client.log_batch, run_id, tags=batch, synchronous=True))


def _reserved_tags(tags: Mapping[str, Any], description: str | None) -> dict[str, str]:
    """The tags behind columns of MLflow's UI, which only its fluent API would set."""
    reserved = {"mlflow.source.name": "halfstep", "mlflow.source.type": "LOCAL"}
    with contextlib.suppress(OSError, KeyError):  # a container's user need not have a name
        reserved["mlflow.user"] = getpass.getuser()
    if description:
        reserved["mlflow.note.content"] = description
    if "git.commit" in tags:
        reserved["mlflow.source.git.commit"] = tags["git.commit"]
    return reserved


def _batches(items: Sequence[T], size: int) -> Iterator[list[T]]:
    for begin in range(0, len(items), size):
        yield list(items[begin : begin + size])
