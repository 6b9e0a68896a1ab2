"""Measure a saved model exactly: ``python -m src.evaluate checkpoint=PATH|RUN_ID [KEY=VALUE ...]``."""

import sys

from src.config.schema import EvaluateConfig
from src.launch.result import JobResult
from src.sweep.app import Job, launch, run_app


def evaluate(job: Job) -> JobResult:
    """One evaluation job."""
    return launch(job)


def main() -> None:
    """The console entry point."""
    sys.exit(run_app(evaluate, config_name="evaluate", kind=EvaluateConfig, inherits=True))


if __name__ == "__main__":
    main()
