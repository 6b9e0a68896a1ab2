"""The launcher's side of tracking: the store is opened while the ranks start, and fed from the journal while they train."""

import json
import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from src.config import runfile
from src.config.schema import Config
from src.launch.files import write_json
from src.launch.locate import PROJECT_ROOT, RUN_DIR_TAG, store_uri
from src.tracking import journal, mlflow, plots, system
from src.tracking.base import Status, Tracker
from src.tracking.null import NullTracker
from src.tracking.sender import Sender

log = logging.getLogger(__name__)

DRAIN_SECONDS = 60.0
"""Longest wait at the end for a slow store; the journal keeps what it did not take."""


class RunTracking:
    """One run in the tracker, for the life of one job."""

    def __init__(self, config: Config, *, run_dir: Path) -> None:
        self._config = config
        self._run_dir = run_dir
        self._tracker: Tracker = NullTracker()
        self._sender: Sender | None = None
        self._opening: threading.Thread | None = None
        self._error: Exception | None = None

    def open(self, *, overrides: list[str], resume_run_id: str | None) -> None:
        """Begin to open the run, in a thread; with ``tracking.required`` wait for it and raise what is wrong."""
        settings = self._config.tracking
        if settings.name == "none":
            return
        uri = store_uri(settings.uri)
        self._opening = threading.Thread(target=self._open, args=(uri, overrides, resume_run_id), name="open-tracker", daemon=True)
        self._opening.start()
        if settings.required:
            self.wait()
            if self._error is not None:
                raise self._error

    def _open(self, uri: str, overrides: list[str], resume_run_id: str | None) -> None:
        config = self._config
        about = system.run_tags() | {"halfstep.overrides": " ".join(overrides), RUN_DIR_TAG: str(self._run_dir)}
        about |= {str(key): str(value) for key, value in config.tags.items()}
        try:
            self._tracker = mlflow.start(
                config.tracking,
                uri=uri,
                root=PROJECT_ROOT,
                run_name=config.tracking.run_name or config.name or "run",
                params=runfile.flatten(config),
                tags=about,
                resume_run_id=resume_run_id,
            )
        except Exception as error:
            self._error = error
            if not config.tracking.required:
                log.warning("%s; the run goes on without tracking", error)
            return
        if self._tracker.ref is not None:
            write_json(self._run_dir / "tracking.json", asdict(self._tracker.ref))
            self._tracker.log_artifacts({"run.yaml": self._run_dir / "run.yaml"})
        self._sender = Sender(self._run_dir / "metrics.jsonl")
        self._sender.attach(self._tracker)
        self._sender.start()

    def wait(self) -> None:
        """Wait until the run is open, or known to be out of reach."""
        if self._opening is not None:
            self._opening.join()

    @property
    def ref(self) -> dict[str, str | None]:
        """The run's address for result.json."""
        ref = self._tracker.ref
        return {"uri": None, "experiment_id": None, "run_id": None} if ref is None else asdict(ref)

    def close(self, status: Status, *, result: Mapping[str, Any], load_best: Callable[[], tuple[Any, Any]] | None) -> tuple[str, ...]:
        """Send what is left, plots, files and the best model, then set the true status; returns the artifacts that failed.

        ``load_best`` gives the best model and a small batch of images, if there is a model to log.
        """
        self.wait()
        if self._sender is not None:
            report = self._sender.close(timeout=DRAIN_SECONDS)
            if report.failed:
                log.warning("%d metric points could not be sent; %s holds them", report.failed, self._run_dir / "metrics.jsonl")
        if self._tracker.ref is None:
            return ()
        failed: tuple[str, ...] = ()
        try:
            self._tracker.set_tags({f"effective.{key}": value for key, value in result.get("effective", {}).items()} | outcome_tags(result))
            failed = self._tracker.log_artifacts(self._files())
            if load_best is not None and status == "FINISHED":
                self._tracker.log_model(*load_best())
        except Exception:  # the run has ended; a plot or an upload must not keep its status from being set
            log.exception("not everything could be recorded in MLflow")
        finally:
            self._tracker.finish(status)
        return failed

    def _files(self) -> dict[str, Path]:
        run_dir = self._run_dir
        files = {name: run_dir / name for name in ("run.yaml", "result.json", "train.log", "evaluate.log", "evaluation.json")}
        points, _ = journal.read_points(run_dir / "metrics.jsonl") if (run_dir / "metrics.jsonl").exists() else ([], 0)
        if points:
            plots.curves(points, run_dir / "curves.png")
            files["plots/curves.png"] = run_dir / "curves.png"
        if files["evaluation.json"].exists():
            evaluation = json.loads(files["evaluation.json"].read_text(encoding="utf-8"))
            plots.confusion(np.asarray(evaluation["confusion"]), evaluation["class_names"], run_dir / "confusion.png")
            files["plots/confusion.png"] = run_dir / "confusion.png"
        return {name: path for name, path in files.items() if path.exists()}


def outcome_tags(result: Mapping[str, Any]) -> dict[str, str]:
    """Tags that say how the run ended and what it computed in."""
    found = {"exit_code": str(result["exit_code"])}
    if result["reason"]:
        found["reason"] = result["reason"]
    if result["precision"]:
        found |= {"computed_dtype": result["precision"]["dtype"], "loss_scaling": str(result["precision"]["scaler"])}
    if result["device"]:
        found["device"] = result["device"]
    return found
