"""What this machine can do, or what a run would compute in: ``python -m src.doctor [doctor.check=machine|coverage] [KEY=VALUE ...]``."""

import sys

from src.config.schema import Check, DoctorConfig
from src.errors import ExitCode
from src.sweep.app import run_plain


def examine(config: DoctorConfig) -> int:
    """One examination; it writes nothing but what it shows."""
    from src.runtime import logs  # late: the pre-flight must not pay for torch
    from src.survey import report

    logs.set_up(on_console=True)
    if config.doctor.check is Check.machine:
        report.examine_machine(config, logs.console)
    else:
        report.examine_coverage(config, logs.console)
    return int(ExitCode.OK)


def main() -> None:
    """The console entry point."""
    sys.exit(run_plain(examine, config_name="doctor", kind=DoctorConfig))


if __name__ == "__main__":
    main()
