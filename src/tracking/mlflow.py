"""MLflow behind the tracker protocol: a run is opened in a store, or found there again.

mlflow is imported inside functions, in the modules ``mlflow*`` of this package and nowhere else in the project.
"""

import contextlib
import getpass
from collections.abc import Collection, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from src.config.schema import TrackingConfig
from src.errors import CheckpointError, ConfigError, TryAgainError
from src.tracking.base import Param, RunRef
from src.tracking.describe import NOTE_TAG, is_generated
from src.tracking.messages import brief, shown_uri
from src.tracking.mlflow_store import brief_requests, import_mlflow, prepare_store, store_errors, wait_for_lock
from src.tracking.mlflow_tracker import MlflowTracker, log_tags
from src.tracking.names import param_texts, tag_texts
from src.tracking.uri import artifact_location, sqlite_path

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run


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
    outdated: Collection[str] = (),
) -> MlflowTracker:
    """Open the store at ``uri`` (from ``resolve_uri``) and a new run in it, or go on with the run ``resume_run_id``.

    ``root`` takes the artifacts of a database that isn't a sqlite file. On resume the ``outdated`` tags go, params that differ become tags
    ``drift.<name>``, and a description that a person has edited stays. Raises TryAgainError, within 10 s, for a store that can't be
    used, and ConfigError for a deleted experiment and an unknown or deleted run.
    """
    import_mlflow()
    try:
        with brief_requests():
            prepare_store(uri)
            client = wait_for_lock(lambda: _open_client(uri))
            texts = tag_texts(_reserved_tags(tags, description) | dict(tags))
            if resume_run_id:
                return _resume_run(client, resume_run_id, uri=uri, params=params, tags=texts, outdated=outdated)
            location = artifact_location(uri, experiment=settings.experiment_name, root=root)
            experiment_id = wait_for_lock(lambda: _experiment_id(client, settings.experiment_name, location))
            return _new_run(client, experiment_id, uri=uri, run_name=run_name, params=params, tags=texts)
    except ImportError as error:
        raise ConfigError(f"tracking.uri={shown_uri(uri)} needs a package that isn't installed: {error}") from error
    except store_errors() as error:
        raise TryAgainError(f"tracking.uri={shown_uri(uri)} can't be used: {brief(error)}") from error


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


def _open_client(uri: str) -> "MlflowClient":
    from mlflow import MlflowClient

    return MlflowClient(tracking_uri=uri)


def _new_run(
    client: "MlflowClient", experiment_id: str, *, uri: str, run_name: str, params: Mapping[str, Param], tags: Mapping[str, str]
) -> MlflowTracker:
    run = wait_for_lock(lambda: client.create_run(experiment_id, run_name=run_name, tags=dict(tags)))
    tracker = MlflowTracker(client, RunRef(shown_uri(uri), experiment_id, run.info.run_id))
    tracker.log_params(params)
    return tracker


def _resume_run(
    client: "MlflowClient", run_id: str, *, uri: str, params: Mapping[str, Param], tags: Mapping[str, str], outdated: Collection[str]
) -> MlflowTracker:
    """Go on with a run. A store never changes a param, so a different value is recorded as the tag ``drift.<name>``."""
    run = wait_for_lock(lambda: _resumable_run(client, run_id, uri))
    old = run.data.params
    new = param_texts(params)
    changed = [name for name in new if old.get(name, new[name]) != new[name] and name != "resume"]
    drift = {f"drift.{name}": f"{old[name]} -> {new[name]}" for name in changed}
    kept = () if is_generated(run.data.tags.get(NOTE_TAG)) else (NOTE_TAG,)
    wait_for_lock(lambda: client.update_run(run_id, status="RUNNING"))
    for tag in run.data.tags.keys() & set(outdated):
        wait_for_lock(partial(client.delete_tag, run_id, tag))
    log_tags(client, run_id, tag_texts(drift) | {name: text for name, text in tags.items() if name not in kept})
    tracker = MlflowTracker(client, RunRef(shown_uri(uri), run.info.experiment_id, run_id), resumed_tags=run.data.tags)
    tracker.log_params({name: value for name, value in new.items() if name not in old})
    return tracker


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


def _reserved_tags(tags: Mapping[str, Any], description: str | None) -> dict[str, str]:
    """The tags behind columns of MLflow's UI, which only its fluent API would set."""
    reserved = {"mlflow.source.name": "halfstep", "mlflow.source.type": "LOCAL"}
    with contextlib.suppress(OSError, KeyError):  # a container's user need not have a name
        reserved["mlflow.user"] = getpass.getuser()
    if description:
        reserved[NOTE_TAG] = description
    if "git.commit" in tags:
        reserved["mlflow.source.git.commit"] = tags["git.commit"]
    return reserved
