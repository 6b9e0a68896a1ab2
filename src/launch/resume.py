"""Where a resumed run goes on, and whether it may."""

import json
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

from src.checkpoint import find, manifest
from src.checkpoint.drift import drift, tell
from src.config import runfile
from src.config.schema import Config
from src.errors import CheckpointError
from src.launch.files import write_json
from src.tracking import journal

log = logging.getLogger(__name__)

DRIFT = "drift.json"
"""File of a run directory: at each resume, the step and the config keys that had another value before."""


def settle(config: Config, run_dir: Path) -> tuple[Config, str | None]:
    """The config with ``resume`` as a checkpoint file or null, and the MLflow run to continue.

    ``resume=auto`` is the newest valid checkpoint of this very directory, or a fresh start. Raises ``CheckpointError`` when
    there is no checkpoint to go on from or it belongs to another model.
    """
    if config.resume is None:
        return config, None
    if config.resume == "auto":
        path = find.newest_valid(run_dir / "checkpoints")
        if path is None:  # ended before its first checkpoint: the same run begins again
            journal.truncate_after(run_dir / "metrics.jsonl", step=0)
            return replace(config, resume=None), saved_run_id(run_dir)
    else:
        path = Path(config.resume)
    about = manifest.verify(path)
    found = drift(path, about["config"], runfile.to_dict(config))
    for line in tell(found):
        log.warning("resume: %s", line)
    if path.is_relative_to(run_dir):  # steps after the checkpoint were computed once, and will be again
        journal.truncate_after(run_dir / "metrics.jsonl", step=about["step"])
        find.set_aside(path.parent, after=about["step"])
    else:
        inherit_best(path, about, run_dir)
    if found:
        record(run_dir, {"step": about["step"], "checkpoint": str(path), "keys": found})
    log.info("resuming from %s at step %d", path, about["step"])
    return replace(config, resume=str(path.absolute())), run_id(path, about)


def record(run_dir: Path, resumed: dict[str, Any]) -> None:
    """Add one resume to ``drift.json``."""
    path = run_dir / DRIFT
    before = json.loads(path.read_text(encoding="utf-8"))["resumes"] if path.exists() else []
    write_json(path, {"resumes": [*before, resumed]})


def run_id(path: Path, about: dict[str, Any]) -> str | None:
    """The MLflow run a checkpoint belongs to; a first checkpoint can be older than the run, which opens while ranks train."""
    tracking = about.get("tracking") or {}
    return tracking.get("run_id") or saved_run_id(path.parent.parent)


def saved_run_id(run_dir: Path) -> str | None:
    """The MLflow run of a run directory."""
    path = run_dir / "tracking.json"
    return json.loads(path.read_text()).get("run_id") if path.exists() else None


def inherit_best(path: Path, about: dict[str, Any], run_dir: Path) -> None:
    """Carry the best checkpoint until that at ``path`` over into a new run directory, where it may stay the best.

    One that came later belongs to a future that this run may not have.
    """
    source, target = path.parent / find.BEST, run_dir / "checkpoints" / find.BEST
    if not source.is_file():
        return
    try:
        best = manifest.verify(source)
        if best["step"] > about["step"] or best["value"] != about["value"]:
            log.warning("resume: %s is of step %d, after the checkpoint resumed, and stays where it is", source, best["step"])
            return
        target.parent.mkdir(parents=True, exist_ok=True)
        find.give_name(source, target)
    except (OSError, CheckpointError) as error:
        log.warning("resume: the best checkpoint so far can't be taken over: %s", error)
