"""Write a saved model for other programs and check it: ``python -m src.export checkpoint=PATH|RUN_ID [export.formats=[onnx,...]]``."""

import sys

from src.config.schema import ExportConfig
from src.launch.result import JobResult
from src.sweep.app import Job, launch, run_app


def export(job: Job) -> JobResult:
    """One export job."""
    return launch(job)


def main() -> None:
    """The console entry point."""
    sys.exit(run_app(export, config_name="export", kind=ExportConfig, inherits=True))


if __name__ == "__main__":
    main()
