"""One launched rank: ``python -m src.worker RUN/run.yaml JOB LAUNCHER_PID``. What it does is in ``work.py``.

By hand, ``[torchrun ...] -m src.worker RUN/run.yaml`` repeats a run in a new directory beside RUN.

torch takes seconds to import; a launcher that dies and a signal that arrives meanwhile are dealt with already.
"""

import faulthandler
import logging
import multiprocessing
import os
import signal
import sys
from pathlib import Path
from typing import NoReturn

from src.config import runfile
from src.config.schema import JOBS
from src.launch.environment import global_rank
from src.launch.outcome import Outcome, a_peer_failed
from src.launch.signals import StopSignals
from src.runtime import parent


def main() -> None:
    """Run one launched rank to its end."""
    if len(sys.argv) == 2:
        from src.launch.repeat import repeat

        sys.exit(repeat(Path(sys.argv[1])))
    run_file, job, launcher = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    parent.die_with(launcher)
    faulthandler.register(signal.SIGUSR2)  # until there is a log to write the stacks to
    own = global_rank()
    with StopSignals(peer_failed=lambda: a_peer_failed(run_file.parent, rank=own)) as signals:
        outcome = Outcome(rank=own)
        try:
            outcome = run(run_file, job, signals)
        except BaseException as error:  # before the rank could begin
            outcome.blame(error)
            outcome.write(run_file.parent)
    leave(outcome.exit_code)


def leave(code: int) -> NoReturn:
    """End this process. After a failure at once: what Python and torch do at exit can wait for ranks that are stuck."""
    if code == 0:
        sys.exit(0)
    for child in multiprocessing.active_children():
        child.kill()
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def run(run_file: Path, job: str, signals: StopSignals) -> Outcome:
    """Load what the launcher wrote and do this rank's share."""
    config = runfile.load(run_file, JOBS[job])
    from src import work
    from src.runtime import logs, rank as ranks

    rank = ranks.from_environment(config.device)
    logs.set_up(on_console=rank.is_main)
    if rank.is_main:
        logs.add_file(run_file.parent / f"{job}.log")
    return work.run_rank(config, run_dir=run_file.parent, rank=rank, signals=signals)


if __name__ == "__main__":
    main()
