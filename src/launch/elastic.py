"""torchrun's engine: one group of ranks on this machine, watched until all have ended."""

import logging
import os
import signal
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from src.errors import ExitCode, Stopped
from src.launch.heartbeat import Hang, Watch


@dataclass(frozen=True)
class GroupEnd:
    """How a group of ranks ended: the exit codes of those that failed, negative for a signal, and the order to stop, if any."""

    exit_codes: dict[int, int]
    stopped: Stopped | None = None
    hang: Hang | None = None
    ended: frozenset[int] = frozenset()
    """Ranks that the launcher killed because of another one."""
    memory: dict[int, int] = field(default_factory=dict)
    """Largest resident set of each rank that was seen, in bytes."""


def run_ranks(run_file: Path, *, job: str, num_processes: int, timeout_seconds: int, grace_seconds: int) -> GroupEnd:
    """Start ``python -m src.worker RUN_FILE JOB`` once a rank and wait for all.

    When this process is told to end, the engine passes the signal on and gives the ranks ``grace_seconds`` to write a checkpoint.
    A group that does not get on for ``timeout_seconds`` is ended. SIGUSR2 makes the ranks write their stacks to their logs.
    """
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
    from torch.distributed.launcher.api import LaunchConfig

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
    with _signals_restored(), Watch(run_file, num_processes=num_processes, timeout_seconds=timeout_seconds) as watch:
        signal.signal(signal.SIGUSR2, lambda number, frame: watch.dump_stacks())
        end = _launch(settings, "-m", "src.worker", str(run_file), job, str(os.getpid()))
    return replace(end, hang=watch.hang, ended=frozenset(watch.ended), memory=watch.memory)


def _launch(settings: Any, *command: str) -> GroupEnd:
    from torch.distributed.elastic.multiprocessing import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import elastic_launch

    try:
        elastic_launch(settings, sys.executable)(*command)
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
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
    handlers = {number: signal.getsignal(number) for number in numbers}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
