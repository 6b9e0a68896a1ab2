"""The text on top of a run's page: what was typed, what it composed, and how it ended."""

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from src.config.schema import JOBS, Config
from src.tracking.messages import shown_uri

NOTE_TAG = "mlflow.note.content"
"""The tag behind MLflow's description."""

_MARK = "*Written by Halfstep; take this line out to keep changes of your own.*"
_SHOWN = ("model", "data", "optim", "schedule", "precision", "parallel")


def description(config: Config, *, overrides: Sequence[str], result: Mapping[str, Any] | None = None) -> str:
    """Markdown for people; ``result`` is the content of result.json once the run has ended. Passwords in addresses are left out."""
    entry_point = next(job for job, kind in JOBS.items() if type(config) is kind)
    names = [getattr(config, group).name for group in _SHOWN]
    lines = [
        "```sh",
        shown_uri(shlex.join(["python", "-m", f"src.{entry_point}", *overrides])),
        "```",
        "",
        f"| {' | '.join(_SHOWN)} |",
        "|" + "---|" * len(_SHOWN),
        f"| {' | '.join(names)} |",
        "",
        *(_ending(result) if result is not None else []),
        _MARK,
    ]
    return "\n".join(lines)


def is_generated(note: str | None) -> bool:
    """Whether a note may be replaced: there is none, or no person has claimed it."""
    return note is None or _MARK in note


def _ending(result: Mapping[str, Any]) -> list[str]:
    lines = []
    if precision := result["precision"]:
        scaling = "with" if precision["scaler"] else "without"
        lines += [f"Computed in {precision['dtype']} on {result['device']}, {scaling} loss scaling, ranks: {result['world_size']}.", ""]
    ended = result["status"]
    if result["objective"]["value"] is not None:
        best = result.get("best")
        where = f" at epoch {best['epoch']}, step {best['step']}" if best else ""
        ended += f": **{result['objective']['name']} {result['objective']['value']:.4f}**{where}"
    if result["reason"]:
        ended += f" ({result['reason']})"
    return [*lines, ended, ""]
