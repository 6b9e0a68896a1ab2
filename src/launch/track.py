"""The launcher's side of tracking: trackers are opened while the ranks start, and fed from the journal while they train."""

import logging
import os
import threading
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from src.config.schema import Config
from src.errors import TryAgainError
from src.launch.abandoned import look_at
from src.launch.files import write_json
from src.launch.locate import RUN_DIR_TAG, store_uri
from src.launch.record import files, open_run, outcome_tags, record_end
from src.tracking import journal
from src.tracking.base import Status, Tracker
from src.tracking.load import LoadSampler
from src.tracking.mlflow_abandoned import close_abandoned
from src.tracking.null import NullTracker
from src.tracking.sender import Sender
from src.tracking.tensorboard import TensorBoardTracker

__all__ = ["RunTracking", "outcome_tags"]

log = logging.getLogger(__name__)

DRAIN_SECONDS = 60.0
"""Longest wait at the end for a slow store; the journal keeps what it did not take."""
RETRY_SECONDS = 60.0
"""Pause between attempts to open a store that was away at start."""


class RunTracking:
    """One run in its trackers, for the life of one job."""

    def __init__(self, config: Config, *, run_dir: Path) -> None:
        self._config = config
        self._run_dir = run_dir
        self._journals = (run_dir / "metrics.jsonl", run_dir / "system.jsonl")
        self._overrides: list[str] = []
        self._mlflow: Tracker = NullTracker()
        self._tensorboard: Tracker = NullTracker()
        self._senders: list[Sender] = []
        self._sampler: LoadSampler | None = None
        self._opening: threading.Thread | None = None
        self._tried = threading.Event()
        self._closing = threading.Event()
        self._error: Exception | None = None

    def open(self, *, overrides: list[str], resume_run_id: str | None) -> None:
        """Begin to open the trackers, in a thread; with ``tracking.required`` wait for MLflow and raise what is wrong.

        Otherwise a store that is away is tried again now and then, and a last time by ``close``; the journals wait for it.
        """
        settings = self._config.tracking
        if settings.name == "none":
            return
        self._overrides = overrides
        metrics, load = self._journals
        journal.truncate_after(load, step=journal.last_step(metrics))  # a resumed run has cut its metrics already
        uri = store_uri(settings.uri) if settings.name in ("mlflow", "both") else None
        self._opening = threading.Thread(target=self._open, args=(uri, resume_run_id), name="open-tracker", daemon=True)
        self._opening.start()
        if settings.required:
            self.wait()
            if self._error is not None:
                raise self._error
        if settings.system_metrics:
            self._sampler = LoadSampler(load, run_journal=metrics, visible=os.environ.get("CUDA_VISIBLE_DEVICES"))
            self._sampler.start()

    def _open(self, uri: str | None, resume_run_id: str | None) -> None:
        try:
            if self._config.tracking.name in ("tensorboard", "both"):
                self._open_tensorboard()
            away = uri is not None and not self._open_mlflow(uri, resume_run_id)
        finally:
            self._tried.set()
        while uri is not None and away:
            closing = self._closing.wait(RETRY_SECONDS)
            away = not self._open_mlflow(uri, resume_run_id) and not closing

    def _open_tensorboard(self) -> None:
        try:
            self._tensorboard = TensorBoardTracker(self._run_dir / "tensorboard")
        except Exception as error:
            log.warning("TensorBoard files can't be written: %s; the run goes on without them", error)
        else:
            self._send_to(self._tensorboard)

    def _open_mlflow(self, uri: str, resume_run_id: str | None) -> bool:
        """Open the run; False if the store is away and may be tried again."""
        run_dir, config = self._run_dir, self._config
        try:
            self._mlflow = open_run(config, run_dir=run_dir, uri=uri, overrides=self._overrides, resume_run_id=resume_run_id)
            write_json(run_dir / "tracking.json", self.ref)
        except Exception as error:
            return self._go_on_without_mlflow(error)
        if self._tried.is_set():
            log.info("the MLflow store is there now, and gets the run from its start")
        self._mlflow.log_artifacts({"run.yaml": run_dir / "run.yaml"})
        self._send_to(self._mlflow)
        self._close_abandoned(uri)
        return True

    def _close_abandoned(self, uri: str) -> None:
        try:
            runs = close_abandoned(
                uri, tag=RUN_DIR_TAG, ended=lambda run_dir: look_at(Path(run_dir)).ended, experiment_id=self.ref["experiment_id"]
            )
        except TryAgainError as error:
            log.warning("runs of killed launchers can't be closed now: %s", error)
            return
        for run in runs:
            if run.closed is not None:
                log.info("MLflow run %s is closed as %s: its launcher was gone", run.run_id, run.closed)

    def _go_on_without_mlflow(self, error: Exception) -> bool:
        away = isinstance(error, TryAgainError)
        if self._config.tracking.required:
            fix = "start that store, or train without it by tracking.required=false"
            self._error = TryAgainError(f"{error}; {fix}") if away else error
            return True
        if not self._tried.is_set() or not away:
            log.warning("%s; the run goes on without MLflow and keeps every point in its metrics.jsonl", error)
        return not away

    def _send_to(self, tracker: Tracker) -> None:
        sender = Sender(*self._journals)
        sender.attach(tracker)
        sender.start()
        self._senders.append(sender)

    def wait(self) -> None:
        """Wait until the trackers are open, or known to be out of reach."""
        if self._opening is not None:
            self._tried.wait()

    @property
    def ref(self) -> dict[str, str | None]:
        """The MLflow run's address for result.json."""
        ref = self._mlflow.ref
        return {"uri": None, "experiment_id": None, "run_id": None} if ref is None else asdict(ref)

    def close(self, status: Status, *, result: dict[str, Any], load_best: Callable[[], tuple[Any, Any]] | None) -> tuple[str, ...]:
        """Send what is left, plots, files and the best model, then set the true status; returns the artifacts that failed.

        ``load_best`` gives the best model and a small batch of images, if there is a model to log. A store that was away has its
        last chance here; if the run can be opened only now, ``result`` and result.json get its address.
        """
        self._closing.set()
        if self._opening is not None:
            self._opening.join()
        if self._sampler is not None:
            self._sampler.close()
        if result["tracking"] != self.ref:
            result["tracking"] = self.ref
            write_json(self._run_dir / "result.json", result)
        for sender in self._senders:
            report = sender.close(timeout=DRAIN_SECONDS)
            if report.failed:
                log.warning("%d metric points could not be sent; %s and %s hold them", report.failed, *self._journals)
        if not self._senders:
            return ()
        failed: tuple[str, ...] = ()
        try:
            kept = files(self._run_dir)
            self._tensorboard.log_artifacts(kept)
            if self._mlflow.ref is not None:
                record_end(self._mlflow, self._config, run_dir=self._run_dir, overrides=self._overrides, result=result)
                failed = self._mlflow.log_artifacts(kept)
                if load_best is not None and status == "FINISHED":
                    self._mlflow.log_model(*load_best())
        except Exception:  # the run has ended; a plot or an upload must not keep its status from being set
            log.exception("not everything could be recorded by the tracker")
        finally:
            self._tensorboard.finish(status)
            self._mlflow.finish(status)
        return failed
