"""What this machine can do, what a run computes in, whether it resumes exactly, which runs are dead: ``python -m src.doctor
[doctor.check=machine|coverage|resume_proof|runs] [KEY=VALUE ...]``.
"""

import sys
from collections.abc import Sequence

from src.config.schema import Check, DoctorConfig
from src.errors import ExitCode
from src.sweep.app import run_plain


def examine(config: DoctorConfig, overrides: Sequence[str]) -> int:
    """One examination; it leaves nothing behind but what it shows, and the true status of dead runs."""
    from src.runtime import logs  # late: the pre-flight must not pay for torch

    logs.set_up(on_console=True)
    match config.doctor.check:
        case Check.machine:
            from src.survey import report

            report.examine_machine(config, logs.console)
        case Check.coverage:
            from src.survey import report

            report.examine_coverage(config, logs.console)
        case Check.runs:
            from src.survey import runs

            runs.examine_runs(config, logs.console)
        case Check.resume_proof:
            from src.survey import proof

            proof.prove_resume(config, logs.console, overrides=overrides)
    return int(ExitCode.OK)


def main() -> None:
    """The console entry point."""
    sys.exit(run_plain(examine, config_name="doctor", kind=DoctorConfig))


if __name__ == "__main__":
    main()
