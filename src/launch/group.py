"""A launched group of ranks, and a fresh one in its place as often as ``parallel.max_restarts`` allows."""

import logging
from dataclasses import replace
from pathlib import Path

from src.checkpoint import find, manifest
from src.config import runfile
from src.config.schema import CheckpointConfig, Config, GroupConfig
from src.errors import CheckpointError, ExitCode
from src.launch import elastic, outcome as outcomes
from src.launch.card import card_lines, failure_card
from src.launch.heartbeat import heartbeat_file
from src.launch.outcome import Outcome
from src.runtime import fault
from src.tracking import journal

log = logging.getLogger(__name__)

MAY_PASS = (ExitCode.ERROR, ExitCode.RANK_LOST, ExitCode.HANG)
"""Ends that another attempt may not meet again; a wrong config, missing data or NaN would only come back."""


def run_group(config: Config, *, run_dir: Path, job: str, world_size: int) -> Outcome:
    """Run all ranks to their end, in a new group after a failure that may pass: new processes, a new rendezvous, the last checkpoint."""
    parallel = config.parallel
    assert isinstance(parallel, GroupConfig)
    fault.from_environment(run_dir, rank=0, world_size=world_size)  # refuses a wrong value before anything starts
    for restarts in range(parallel.max_restarts + 1):
        forget(run_dir)
        end = elastic.run_ranks(
            run_dir / "run.yaml",
            job=job,
            num_processes=world_size,
            timeout_seconds=parallel.timeout_seconds,
            grace_seconds=parallel.grace_seconds,
        )
        outcome = outcomes.combine(run_dir, world_size, exit_codes=end.exit_codes, stopped=end.stopped, hang=end.hang, ended=end.ended)
        outcome.restarts = restarts
        outcome.failure = failure_card(outcome, run_dir=run_dir, memory=end.memory)
        for rank in range(world_size):
            heartbeat_file(run_dir, rank).unlink(missing_ok=True)
        if outcome.status != "FAILED" or outcome.exit_code not in MAY_PASS or restarts == parallel.max_restarts:
            break
        for line in card_lines(outcome, run_dir=run_dir):
            log.warning(line)
        try:
            attempt = next_attempt(config, run_dir)
        except CheckpointError as error:
            log.warning("no restart: %s", error)
            break
        runfile.save(attempt, run_dir / "run.yaml")
        log.warning("restart %d of %d, from %s", restarts + 1, parallel.max_restarts, attempt.resume or "the start")
    return outcome


def next_attempt(config: Config, run_dir: Path) -> Config:
    """The config that goes on from the newest valid checkpoint of this run directory, or begins like the first attempt.

    Raises ``CheckpointError`` if every checkpoint there is damaged.
    """
    if isinstance(config, CheckpointConfig):
        return config
    path = find.newest_valid(run_dir / "checkpoints")
    start = str(path) if path is not None else config.resume
    step = 0 if start is None else manifest.verify(Path(start))["step"]
    journal.truncate_after(run_dir / "metrics.jsonl", step=step)
    if path is not None:
        find.set_aside(path.parent, after=step)
    return replace(config, resume=start)


def forget(run_dir: Path) -> None:
    """Remove what the ranks of an earlier group left to say."""
    for pattern in ("*/outcome.json", "*/heartbeat"):
        for stale in (run_dir / "ranks").glob(pattern):
            stale.unlink()
