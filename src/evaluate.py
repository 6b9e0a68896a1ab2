"""Measure a saved model exactly: ``python -m src.evaluate checkpoint=PATH|RUN_ID [KEY=VALUE ...]``."""

import sys

from src.config.schema import EvaluateConfig
from src.config.values import show
from src.launch.result import JobResult
from src.sweep.app import Job, run_app


def evaluate(job: Job) -> JobResult:
    """One evaluation job."""
    from src.launch import job as launcher  # late: the pre-flight must not pay for what a run needs

    notes = [f"{d.key}: {show(d.saved)} in the checkpoint, {show(d.used)} here" for d in job.differences]
    return launcher.run_job(job.config, run_dir=job.run_dir, overrides=job.overrides, notes=notes)


def main() -> None:
    """The console entry point."""
    sys.exit(run_app(evaluate, config_name="evaluate", kind=EvaluateConfig, inherits=True))


if __name__ == "__main__":
    main()
