"""Measure a saved model exactly: ``python -m src.evaluate checkpoint=PATH|RUN_ID [KEY=VALUE ...]``."""

import logging
import sys

from src.config.schema import EvaluateConfig
from src.config.values import show
from src.launch.result import JobResult
from src.runtime import logs
from src.sweep.app import Job, run_app

log = logging.getLogger("src.evaluate")


def evaluate(job: Job) -> JobResult:
    """One evaluation job."""
    from src.launch import job as launcher  # late: the pre-flight must not pay for what a run needs

    logs.set_up(on_console=True)
    for difference in job.differences:
        log.info("%s: %s in the checkpoint, %s here", difference.key, show(difference.saved), show(difference.used))
    return launcher.run_job(job.config, run_dir=job.run_dir, overrides=job.overrides)


def main() -> None:
    """The console entry point."""
    sys.exit(run_app(evaluate, config_name="evaluate", kind=EvaluateConfig, inherits=True))


if __name__ == "__main__":
    main()
