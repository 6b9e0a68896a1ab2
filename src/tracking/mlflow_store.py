"""MLflow as this project uses it: imported late and quietly, with short waits, and sqlite stores that many runs may open at once.

Nothing here outlives the process: settings are given by MLflow's in-process defaults, so the environment stays as it was and a
user's own variable still wins.
"""

import fcntl
import functools
import importlib
import logging
import os
import sqlite3
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, TypeVar

from src.errors import ConfigError
from src.tracking.uri import ARTIFACTS, sqlite_path

log = logging.getLogger(__name__)

T = TypeVar("T")

LOCK_SECONDS = 60.0
"""Longest wait for another process that holds the sqlite file; MLflow alone gives up after 20 s."""
_BRIEF = (6, 0)
_PATIENT = (30, 1)
"""Seconds and retries of one request: at start and end, where a person waits, and in between, where only a thread does."""


@functools.cache
def import_mlflow() -> None:
    """Import what a run needs of mlflow (2 s, 170 MB) without its noise."""
    with warnings.catch_warnings():
        # sqlalchemy 2.1 deprecates a loader strategy that MLflow's models use
        warnings.simplefilter("ignore")
        importlib.import_module("mlflow.store.tracking.sqlalchemy_store")
        from mlflow import environment_variables as settings, telemetry

    # Usage reports to a third party are for the user to switch on. Importing mlflow has set a variable for them; this unsets it.
    settings.MLFLOW_DISABLE_TELEMETRY.default = True
    telemetry.set_telemetry_client()  # type: ignore[no-untyped-call]
    settings.MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT.default = True
    _set_request_limits(_PATIENT)
    logging.getLogger("mlflow").setLevel(logging.WARNING)
    # these also print what they raise in the end, and the caller reports that
    logging.getLogger("mlflow.store.db.utils").setLevel(logging.CRITICAL)
    logging.getLogger("urllib3.connectionpool").setLevel(logging.ERROR)


@contextmanager
def brief_requests() -> Iterator[None]:
    """Give up on a server that is away after seconds instead of MLflow's four minutes."""
    _set_request_limits(_BRIEF)
    try:
        yield
    finally:
        _set_request_limits(_PATIENT)


def _set_request_limits(limits: tuple[int, int]) -> None:
    from mlflow import environment_variables as settings

    settings.MLFLOW_HTTP_REQUEST_TIMEOUT.default, settings.MLFLOW_HTTP_REQUEST_MAX_RETRIES.default = limits


def store_errors() -> tuple[type[Exception], ...]:
    """What a store that is away, locked, full or closed to us raises."""
    from mlflow.exceptions import MlflowException
    from sqlalchemy.exc import SQLAlchemyError

    return MlflowException, SQLAlchemyError, sqlite3.Error, OSError


def wait_for_lock(call: Callable[[], T]) -> T:
    """Call until sqlite isn't locked by another process, for at most ``LOCK_SECONDS``; returns what the call returns."""
    deadline = time.monotonic() + LOCK_SECONDS
    while True:
        try:
            return call()
        except store_errors() as error:
            if "database is locked" not in str(error) or time.monotonic() > deadline:
                raise
            time.sleep(0.2)


def prepare_store(uri: str) -> None:
    """Create or upgrade a sqlite store, once, under a lock beside the file; other stores look after themselves.

    A new database is built under another name and renamed, so no process ever meets half of one. An older one is copied to
    ``<file>.backup`` before the upgrade. Raises ConfigError for a database of a newer MLflow.
    """
    database = sqlite_path(uri)
    if database is None:
        return
    import_mlflow()
    database.parent.mkdir(parents=True, exist_ok=True)
    with _file_lock(database.with_name(database.name + ".lock")):
        if not database.exists() or database.stat().st_size == 0:
            _create_database(database)
        else:
            wait_for_lock(lambda: _upgrade_database(uri, database))


@contextmanager
def _file_lock(path: Path) -> Iterator[None]:
    deadline = time.monotonic() + LOCK_SECONDS
    with path.open("w") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)
        yield


def _create_database(database: Path) -> None:
    from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

    building = database.with_name(f"{database.name}.{os.getpid()}.new")
    try:
        # the artifact root is that of MLflow's own experiment "Default", which would be in the current directory otherwise
        artifacts = (database.parent / ARTIFACTS).as_uri()
        SqlAlchemyStore(f"sqlite:///{building}", artifacts).engine.dispose()  # type: ignore[no-untyped-call]
        building.replace(database)
    finally:
        building.unlink(missing_ok=True)


def _upgrade_database(uri: str, database: Path) -> None:
    from alembic.util.exc import CommandError
    from mlflow.store.db import utils

    migrations: Any = utils  # it has no types
    engine = migrations.create_sqlalchemy_engine(uri)
    try:
        if migrations._get_schema_version(engine) == migrations._get_latest_schema_revision():
            return
        backup = database.with_name(database.name + ".backup")
        log.warning("%s is from another MLflow version: upgrading it, with a copy in %s", database, backup)
        with closing(sqlite3.connect(database)) as old, closing(sqlite3.connect(backup)) as copy:
            old.backup(copy)
        migrations._upgrade_db(engine)
    except CommandError as error:
        raise ConfigError(f"tracking.uri={uri} was written by a newer MLflow; upgrade mlflow or choose another file") from error
    finally:
        engine.dispose()
