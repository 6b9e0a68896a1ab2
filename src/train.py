"""Train one model, or sweep over several: ``python -m src.train [-m] KEY=VALUE ...``."""

import sys

from src.launch.result import JobResult
from src.sweep.app import Job, launch, run_app


def train(job: Job) -> JobResult:
    """One training job."""
    return launch(job)


def main() -> None:
    """The console entry point."""
    sys.exit(run_app(train, config_name="config"))


if __name__ == "__main__":
    main()
