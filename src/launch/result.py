"""What a job tells its caller."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class JobResult:
    """The end of one job: ``status`` FINISHED, FAILED or KILLED, the exit code of the contract, and the objective's best value."""

    status: str
    exit_code: int
    reason: str | None
    objective: float | None
    run_dir: Path
    stop: int = 0
    """The exit code a signal asked for at any time, also when the job had its result already; a sweep ends there."""
