"""The table at the end of a sweep."""

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from src.errors import ExitCode
from src.launch.result import JobResult

PLAIN_WIDTH = 200
"""Columns of the table where the output is not a terminal."""


def show_summary(jobs: Sequence[tuple[Sequence[str], JobResult]], *, planned: int, console: Console | None = None) -> None:
    """Number, overrides, objective and status of every job that ran, then the failed and the killed ones with their reasons."""
    console = console or Console()
    if not console.is_terminal:
        console.width = PLAIN_WIDTH
    table = Table(box=None, pad_edge=False)
    for column in ("job", "overrides", "objective", "status"):
        table.add_column(column, overflow="fold")
    for number, (overrides, result) in enumerate(jobs):
        objective = "-" if result.objective is None else f"{result.objective:.5g}"
        table.add_row(str(number), Text(" ".join(overrides)), objective, result.status)
    console.print(table)
    bad = [(number, *job) for number, job in enumerate(jobs) if job[1].exit_code != ExitCode.OK]
    for what, killed in (("failed", False), ("killed", True)):
        listed = [(number, overrides, result) for number, overrides, result in bad if (result.status == "KILLED") is killed]
        if listed:
            console.print(f"{len(listed)} of {planned} jobs {what}")
        for number, overrides, result in listed:
            line = f"  job {number} ({' '.join(overrides)}): exit {int(result.exit_code)}, {result.reason or 'no reason given'}"
            console.print(Text(line), soft_wrap=True)
    if len(jobs) < planned:
        console.print(f"{planned - len(jobs)} of {planned} jobs did not start")
