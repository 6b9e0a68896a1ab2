"""Classify images with a saved model: ``python -m src.predict checkpoint=PATH|RUN_ID predict.input=FOLDER [KEY=VALUE ...]``."""

import sys

from src.config.schema import PredictConfig
from src.launch.result import JobResult
from src.sweep.app import Job, launch, run_app


def predict(job: Job) -> JobResult:
    """One prediction job."""
    return launch(job)


def main() -> None:
    """The console entry point."""
    sys.exit(run_app(predict, config_name="predict", kind=PredictConfig, inherits=True))


if __name__ == "__main__":
    main()
