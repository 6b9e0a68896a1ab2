"""The table at the end of a sweep."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from src.errors import ExitCode
from src.launch.result import JobResult

PLAIN_WIDTH = 200
"""Columns of the table where the output is not a terminal."""
_OWN_COLUMNS = ("checkpoint", "precision")
_MEASURES = ("accuracy", "top5", "loss", "ece")


@dataclass(frozen=True)
class _Row:
    """One job that ran: its number, the overrides that not all jobs share, its end, and what its ``result.json`` says, if there is one."""

    number: int
    overrides: list[str]
    result: JobResult
    directory: str
    record: Mapping[str, Any]


def show_summary(
    jobs: Sequence[tuple[Sequence[str], JobResult]],
    *,
    planned: int,
    sweep_dir: Path,
    evaluated: bool = False,
    console: Console | None = None,
) -> None:
    """What all jobs have in common, a row for each that ran, then the failed and the killed ones with their reasons.

    ``evaluated``: the jobs measured saved models, and the rows say how good those are; otherwise they give the objective.
    """
    console = console or Console()
    if not console.is_terminal:
        console.width = PLAIN_WIDTH
    common = _common([overrides for overrides, _ in jobs])
    rows = [
        _Row(
            number,
            [text for text in overrides if text not in common],
            result,
            _relative(result.run_dir, sweep_dir),
            _record(result.run_dir),
        )
        for number, (overrides, result) in enumerate(jobs)
    ]
    console.print(Text(f"sweep directory  {sweep_dir}"), soft_wrap=True)
    if common:
        console.print(Text(f"all jobs         {' '.join(common)}"), soft_wrap=True)
    typed = {key: value for key, _, value in (text.partition("=") for text in common)}
    objectives = {row.record["objective"]["name"] for row in rows if row.record.get("objective")}
    best = f"best {objectives.pop()}" if len(objectives) == 1 else "objective"
    _show_table(console, [_evaluation_cells(row, typed) if evaluated else _training_cells(row, best=best) for row in rows])
    bad = [row for row in rows if row.result.exit_code != ExitCode.OK]
    for what, killed in (("failed", False), ("killed", True)):
        listed = [row for row in bad if (row.result.status == "KILLED") is killed]
        if listed:
            console.print(f"{len(listed)} of {planned} jobs {what}")
        for row in listed:
            end = f"exit {int(row.result.exit_code)}, {row.result.reason or 'no reason given'}"
            console.print(Text(f"  job {row.number} ({' '.join(row.overrides)}): {end}"), soft_wrap=True)
    if len(jobs) < planned:
        console.print(f"{planned - len(jobs)} of {planned} jobs did not start")


def _common(overrides: Sequence[Sequence[str]]) -> list[str]:
    """Overrides that all of several jobs have."""
    return [text for text in overrides[0] if all(text in texts for texts in overrides)] if len(overrides) > 1 else []


def _training_cells(row: _Row, *, best: str) -> dict[str, str]:
    """``best`` is the heading of the objective."""
    memory, seconds = row.record.get("peak_memory_bytes"), row.record.get("duration_seconds")
    return {
        "job": str(row.number),
        "overrides": " ".join(row.overrides),
        best: "-" if row.result.objective is None else f"{row.result.objective:.5g}",
        "computed in": (row.record.get("precision") or {}).get("dtype", ""),
        "images/s": _rate(row.record),
        "GiB": "" if memory is None else f"{memory / 2**30:.2f}",
        "seconds": "" if seconds is None else f"{seconds:.0f}",
        "skipped": str(row.record.get("skipped_updates") or ""),
        "status": row.result.status,
        "directory": row.directory,
    }


def _evaluation_cells(row: _Row, common: Mapping[str, str]) -> dict[str, str]:
    """``common`` holds what all jobs' overrides set."""
    typed = dict(common) | {key: value for key, _, value in (text.partition("=") for text in row.overrides)}
    precision = row.record.get("precision") or {"name": typed.get("precision", ""), "dtype": "-"}
    metrics = {name.partition("/")[2]: value for name, value in row.record.get("metrics", {}).items()}
    return {
        "job": str(row.number),
        "checkpoint": typed.get("checkpoint", "").strip("'\""),
        "precision": precision["name"],
        "overrides": " ".join(text for text in row.overrides if text.partition("=")[0] not in _OWN_COLUMNS),
        **{name: "-" if metrics.get(name) is None else f"{metrics[name]:.4f}" for name in _MEASURES},
        "computed in": precision["dtype"],
        "images/s": _rate(row.record),
        "status": row.result.status,
        "directory": row.directory,
    }


def _rate(record: Mapping[str, Any]) -> str:
    speed = record.get("samples_per_second")
    return "" if speed is None else f"{speed:,.0f}"


def _show_table(console: Console, rows: Sequence[Mapping[str, str]]) -> None:
    """A plain table without the columns that are empty in every row."""
    table = Table(box=None, pad_edge=False)
    columns = [column for column in rows[0] if any(row[column] for row in rows)] if rows else []
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*(Text(row[column]) for column in columns))
    console.print(table)


def _record(run_dir: Path) -> dict[str, Any]:
    """The job's ``result.json``; empty for a job that ended before it had one."""
    path = run_dir / "result.json"
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return found


def _relative(path: Path, base: Path) -> str:
    return str(path.relative_to(base)) if path.is_relative_to(base) else str(path)
