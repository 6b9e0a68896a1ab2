"""What is recorded of a run besides its metrics: how it was started, with which data, how it ended, and its files."""

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from src.config import runfile
from src.config.schema import Config, EvaluateConfig, Split
from src.errors import ExitCode
from src.launch.locate import PROJECT_ROOT, RUN_DIR_TAG
from src.tracking import journal, mlflow, plots, system
from src.tracking.base import Point, Tracker
from src.tracking.describe import description
from src.tracking.messages import shown_uri

_FILES = ("run.yaml", "result.json", "data.json", "train.log", "evaluate.log", "evaluation.json", "overflow.json", "drift.json")
_OUTCOME_TAGS = ("reason", "preempted", "restarts", "failed_rank", "failed_step")
"""Tags of ``outcome_tags`` that a later, better end doesn't replace."""
_CONTEXTS = {Split.train: "training", Split.val: "validation", Split.test: "test"}


def open_run(config: Config, *, run_dir: Path, uri: str, overrides: list[str], resume_run_id: str | None) -> Tracker:
    """A new run in the MLflow store ``uri``, or the one to continue; raises what ``mlflow.start`` raises."""
    about = system.run_tags() | {"halfstep.overrides": shown_uri(" ".join(overrides)), RUN_DIR_TAG: str(run_dir)}
    params = runfile.flatten(config)
    if config.tracking.uri:
        params["tracking.uri"] = shown_uri(config.tracking.uri)
    return mlflow.start(
        config.tracking,
        uri=uri,
        root=PROJECT_ROOT,
        run_name=config.tracking.run_name or config.name or "run",
        params=params,
        tags=about | config.tags,
        description=config.tracking.description or description(config, overrides=overrides),
        resume_run_id=resume_run_id,
        outdated=_OUTCOME_TAGS,
    )


def record_end(tracker: Tracker, config: Config, *, run_dir: Path, overrides: list[str], result: Mapping[str, Any]) -> None:
    """Tags, data set and description, as far as the run came."""
    tracker.set_tags({f"effective.{key}": value for key, value in result.get("effective", {}).items()} | outcome_tags(result))
    if (run_dir / "data.json").exists():
        context = _CONTEXTS[config.split] if isinstance(config, EvaluateConfig) else "training"
        tracker.log_dataset(json.loads((run_dir / "data.json").read_text(encoding="utf-8")), context=context)
    if not config.tracking.description:
        tracker.describe(description(config, overrides=overrides, result=result))


def record_whole(run_dir: Path, result: Mapping[str, Any]) -> None:
    """Add what sums up the run to its journal, so that a tracker's table can be sorted by it."""
    memory = result["peak_memory_bytes"]
    whole = {
        f"best/{result['objective']['name']}": result["objective"]["value"],
        "perf/run_images_per_second": result["samples_per_second"],
        "perf/run_peak_memory_gib": None if memory is None else memory / 2**30,
        "perf/run_seconds": result["duration_seconds"],
    }
    now = time.time()
    writer = journal.Journal(run_dir / "metrics.jsonl")
    writer.write([Point(name, value, result["steps"], now) for name, value in whole.items() if value is not None])
    writer.close()


def outcome_tags(result: Mapping[str, Any]) -> dict[str, str]:
    """Tags that say how the run ended and what it computed in."""
    found = {"exit_code": str(result["exit_code"])}
    if result["reason"]:
        found["reason"] = result["reason"]
    if result["exit_code"] == ExitCode.TERMINATED:
        found["preempted"] = "True"
    if result.get("restarts"):
        found["restarts"] = str(result["restarts"])
    if failure := result.get("failure"):
        found |= {"failed_rank": str(failure["rank"]), "failed_step": str(failure["step"])}
    if result["precision"]:
        found |= {"computed_dtype": result["precision"]["dtype"], "loss_scaling": str(result["precision"]["scaler"])}
    if result["device"]:
        found["device"] = result["device"]
    return found


def files(run_dir: Path) -> dict[str, Path]:
    """The files of a run that a tracker keeps, by their names there; plots are drawn here."""
    found = {name: run_dir / name for name in _FILES}
    points, _ = journal.read_points(run_dir / "metrics.jsonl")
    if points:
        plots.curves(points, run_dir / "curves.png")
        found["plots/curves.png"] = run_dir / "curves.png"
    if found["evaluation.json"].exists():
        evaluation = json.loads(found["evaluation.json"].read_text(encoding="utf-8"))
        plots.confusion(np.asarray(evaluation["confusion"]), evaluation["class_names"], run_dir / "confusion.png")
        found["plots/confusion.png"] = run_dir / "confusion.png"
        if evaluation.get("ece") is not None:  # null if a logit was NaN; missing in files of earlier versions
            plots.reliability(evaluation["reliability"], run_dir / "reliability.png", error=evaluation["ece"])
            found["plots/reliability.png"] = run_dir / "reliability.png"
    return {name: path for name, path in found.items() if path.exists()}
