"""torchrun's engine: one group of ranks on this machine, watched until all have ended."""

import logging
import os
import signal
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from src.errors import ExitCode, Stopped


@dataclass(frozen=True)
class GroupEnd:
    """How a group of ranks ended: the exit codes of those that failed, negative for a signal, and the order to stop, if any."""

    exit_codes: dict[int, int]
    stopped: Stopped | None = None


def run_ranks(run_file: Path, *, job: str, num_processes: int, grace_seconds: int) -> GroupEnd:
    """Start ``python -m src.worker RUN_FILE JOB`` once a rank and wait for all.

    When this process is told to end, the engine passes the signal on and gives the ranks ``grace_seconds`` to write a checkpoint.
    """
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    # The engine reports on a group's end in its own words; outcome files say it better.
    for name in list(logging.root.manager.loggerDict):
        if name.startswith("torch.distributed.elastic"):
            logging.getLogger(name).setLevel(logging.CRITICAL)
    settings = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=num_processes,
        run_id=uuid.uuid4().hex,
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",  # the system picks a free port, so that no two launches can clash
        local_addr="localhost",
        max_restarts=0,
        logs_specs=DefaultLogsSpecs(log_dir=os.devnull),
        signals_to_handle="SIGTERM,SIGINT,SIGHUP,SIGQUIT,SIGUSR1",
    )
    if hasattr(settings, "shutdown_timeout"):  # torch 2.11 waits 30 s
        settings.shutdown_timeout = grace_seconds
    with _signals_restored():
        try:
            elastic_launch(settings, sys.executable)("-m", "src.worker", str(run_file), job, str(os.getpid()))
        except ChildFailedError as error:
            return GroupEnd({rank: failure.exitcode for rank, failure in error.failures.items()})
        except SignalException as error:
            interrupted = error.sigval == signal.SIGINT
            code = ExitCode.INTERRUPTED if interrupted else ExitCode.TERMINATED
            return GroupEnd({}, Stopped(f"stopped by {error.sigval.name}", exit_code=code))
    return GroupEnd({})


@contextmanager
def _signals_restored() -> Iterator[None]:
    # The engine leaves its handlers behind.
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1)
    handlers = {number: signal.getsignal(number) for number in numbers}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
