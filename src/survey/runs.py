"""Runs that the store calls RUNNING: which of them have a process, and the others closed."""

from pathlib import Path

from rich.console import Console

from src.config.schema import Config
from src.launch.abandoned import Finding, look_at
from src.launch.locate import RUN_DIR_TAG, store_uri
from src.survey.console import show_line, show_table, widen
from src.tracking.base import Status
from src.tracking.messages import shown_uri
from src.tracking.mlflow_abandoned import OpenRun, close_abandoned


def examine_runs(config: Config, console: Console) -> None:
    """Close the runs of dead processes with their true status, and show all runs that were RUNNING.

    Raises ``TryAgainError`` for a store that is away.
    """
    widen(console)
    uri = store_uri(config.tracking.uri)
    found: dict[str, Finding] = {}

    def ended(run_dir: str) -> Status | None:
        found[run_dir] = look_at(Path(run_dir))
        return found[run_dir].ended

    runs = close_abandoned(uri, tag=RUN_DIR_TAG, ended=ended)
    show_line(console, f"{len(runs)} runs were RUNNING in {shown_uri(uri)}")
    if runs:
        rows = [(run.run_id, run.name, state(run, found[run.run_dir]), run.host, run.run_dir) for run in runs]
        show_table(console, ("run", "name", "state", "host", "directory"), rows)


def state(run: OpenRun, found: Finding) -> str:
    """What is known of a run, in words."""
    if run.closed is not None:
        return f"its process is gone: closed as {run.closed}"
    if found.process is not None:
        return f"running, process {found.process}"
    return "can't be judged from here: its directory is not on this machine"
