"""Train one model, or sweep over several: ``python -m src.train [-m] KEY=VALUE ...``."""

import sys

from src.launch.result import JobResult
from src.sweep.app import Job, run_app


def train(job: Job) -> JobResult:
    """One training job."""
    from src.launch import job as launcher  # late: the pre-flight must not pay for what a run needs

    return launcher.run_job(job.config, run_dir=job.run_dir, overrides=job.overrides)


def main() -> None:
    """The console entry point."""
    sys.exit(run_app(train, config_name="config"))


if __name__ == "__main__":
    main()
