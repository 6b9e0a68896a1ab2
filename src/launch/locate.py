"""From what a user typed for a checkpoint to the file: a path, or the id of an MLflow run on this machine."""

import os
from pathlib import Path

from src.checkpoint import find
from src.config.resolve import RUN_ID
from src.errors import CheckpointError
from src.tracking.uri import resolve_uri

PROJECT_ROOT = Path(__file__).resolve().parents[2]
RUN_DIR_TAG = "halfstep.run_dir"


def store_uri(uri: str | None) -> str:
    """The MLflow store in use: ``tracking.uri``, else MLFLOW_TRACKING_URI, else one file at the project's root."""
    return resolve_uri(uri, env=os.environ.get("MLFLOW_TRACKING_URI"), root=PROJECT_ROOT)


def locate(reference: str, *, best: bool, uri: str | None) -> Path:
    """The checkpoint file behind a file, a run directory or a run id: the run's best one, or its newest.

    Raises ``CheckpointError`` when there is none, or the path can't be looked at.
    """
    try:
        return _locate(reference, best=best, uri=uri)
    except OSError as error:  # a name that is too long, a folder that is closed to us
        raise CheckpointError(f"{reference} can't be read: {error.strerror}; give a checkpoint file or a run directory") from None


def _locate(reference: str, *, best: bool, uri: str | None) -> Path:
    if not RUN_ID.fullmatch(reference) or Path(reference).exists():
        return find.resolve(reference, best=best)
    from src.tracking import mlflow  # late: most command lines name no run

    run_dir = mlflow.read_tag(store_uri(uri), reference, RUN_DIR_TAG)
    if run_dir is None or not Path(run_dir).is_dir():
        where = "has no run directory" if run_dir is None else f"wrote to {run_dir}, which is not on this machine"
        raise CheckpointError(f"MLflow run {reference} {where}; give a checkpoint file instead")
    return find.resolve(run_dir, best=best)
