"""Runs whose launcher was killed: they stay RUNNING in the store until somebody closes them."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from src.errors import TryAgainError
from src.tracking.base import Status
from src.tracking.messages import brief, shown_uri
from src.tracking.mlflow_store import brief_requests, import_mlflow, prepare_store, store_errors, wait_for_lock
from src.tracking.uri import sqlite_path

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run


@dataclass(frozen=True)
class OpenRun:
    """A run that the store called RUNNING."""

    run_id: str
    name: str
    host: str
    run_dir: str
    closed: Status | None
    """What it was closed as; None for a run that was left alone."""


def close_abandoned(uri: str, *, tag: str, ended: Callable[[str], Status | None], experiment_id: str | None = None) -> list[OpenRun]:
    """Close the RUNNING runs of an experiment (None: of all) for whose value of ``tag`` a status is known, and list all of them.

    Raises ``TryAgainError`` for a store that is away or isn't there; none is created.
    """
    database = sqlite_path(uri)
    if database is not None and not database.is_file():
        raise TryAgainError(f"tracking.uri={shown_uri(uri)}: there is no such store; name the right one, or train first")
    import_mlflow()
    from mlflow import MlflowClient

    try:
        with brief_requests():
            prepare_store(uri)
            client = wait_for_lock(lambda: MlflowClient(tracking_uri=uri))
            experiments = [experiment_id] if experiment_id else [e.experiment_id for e in _pages(client.search_experiments)]
            query = f"attributes.status = 'RUNNING' and tags.`{tag}` LIKE '%'"
            runs = list(_pages(partial(client.search_runs, experiments, filter_string=query)))
            return [_close(client, run, run_dir=run.data.tags[tag], status=ended(run.data.tags[tag])) for run in runs]
    except store_errors() as error:
        raise TryAgainError(f"tracking.uri={shown_uri(uri)} can't be used: {brief(error)}") from error


def _pages(search: Callable[..., Any]) -> Iterator[Any]:
    """Everything that a search finds, page after page."""
    token = None
    while True:
        page = wait_for_lock(partial(search, page_token=token))
        yield from page
        token = page.token
        if not token:
            return


def _close(client: "MlflowClient", run: "Run", *, run_dir: str, status: Status | None) -> OpenRun:
    if status is not None:
        reason = "its launcher was gone without a word" if status == "KILLED" else "it ended while the store was away"
        wait_for_lock(lambda: client.set_tag(run.info.run_id, "reason", reason))
        wait_for_lock(lambda: client.set_terminated(run.info.run_id, status=status))
    host = run.data.tags.get("host.name", "unknown")
    return OpenRun(run.info.run_id, str(run.info.run_name), host, run_dir, status)
