"""Runs whose launcher was killed: they stay RUNNING in the store until somebody closes them."""

import logging
from collections.abc import Callable

from src.tracking.messages import brief
from src.tracking.mlflow_store import store_errors

log = logging.getLogger(__name__)


def close_abandoned(uri: str, experiment_id: str, *, tag: str, is_abandoned: Callable[[str], bool]) -> None:
    """Set runs of the experiment that are RUNNING to KILLED if ``is_abandoned`` says so of their value of ``tag``.

    A store that is away is left to the next start.
    """
    from mlflow import MlflowClient

    away: tuple[type[BaseException], ...] = (*store_errors(), OSError)
    try:
        client = MlflowClient(tracking_uri=uri)
        for run in client.search_runs([experiment_id], filter_string=f"attributes.status = 'RUNNING' and tags.`{tag}` LIKE '%'"):
            if is_abandoned(run.data.tags[tag]):
                client.set_tag(run.info.run_id, "reason", "its launcher was gone without a word")
                client.set_terminated(run.info.run_id, status="KILLED")
                log.info("MLflow run %s is closed as KILLED: its launcher was gone", run.info.run_id)
    except away as error:
        log.warning("runs of killed launchers can't be closed now: %s", brief(error))
