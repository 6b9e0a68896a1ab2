"""One launched rank: ``python -m src.worker RUN/run.yaml JOB LAUNCHER_PID``. What it does is in ``work.py``.

torch takes seconds to import; a launcher that dies and a signal that arrives meanwhile are dealt with already.
"""

import sys
from pathlib import Path

from src.config import runfile
from src.config.schema import Config, EvaluateConfig
from src.launch import parent
from src.launch.outcome import Outcome
from src.launch.signals import StopSignals


def main() -> None:
    """Run one launched rank to its end."""
    run_file, job, launcher = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    parent.die_with(launcher)
    with StopSignals() as signals:
        outcome = Outcome(rank=parent.global_rank())
        try:
            outcome = run(run_file, job, signals)
        except BaseException as error:  # before the rank could begin
            outcome.blame(error)
            outcome.write(run_file.parent)
    sys.exit(outcome.exit_code)


def run(run_file: Path, job: str, signals: StopSignals) -> Outcome:
    """Load what the launcher wrote and do this rank's share."""
    config = runfile.load(run_file, EvaluateConfig if job == "evaluate" else Config)
    from src import work
    from src.runtime import logs, rank as ranks

    rank = ranks.from_environment(config.device)
    logs.set_up(on_console=rank.is_main)
    if rank.is_main:
        logs.add_file(run_file.parent / f"{job}.log")
    return work.run_rank(config, run_dir=run_file.parent, rank=rank, signals=signals)


if __name__ == "__main__":
    main()
