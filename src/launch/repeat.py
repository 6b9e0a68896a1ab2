"""A run once more, by hand: ``python -m src.worker RUN/run.yaml``, with or without torchrun before it."""

import sys
from dataclasses import replace
from pathlib import Path

from src.config import runfile
from src.config.checks import check
from src.config.schema import JOBS, OPTIONS, Config
from src.errors import ConfigError, HalfstepError
from src.launch import adopt
from src.sweep.directory import claim_new


def repeat(run_file: Path) -> int:
    """Run what ``run_file`` says in a new directory beside its own and without a tracker; returns the exit code."""
    return adopt.together(lambda: _repeat(run_file))


def _repeat(run_file: Path) -> int:
    try:
        config = replace(read(run_file), tracking=OPTIONS["tracking"]["none"](name="none"))
        check(adopt.as_started(config), cuda_devices=adopt.num_cuda_devices())
        run_dir = run_file.absolute().parent
        claim = claim_new(run_dir.with_name(f"{run_dir.name}-repeat"))
    except HalfstepError as error:
        sys.stderr.write(f"error: {error}\n")
        return int(error.exit_code)
    from src.launch.job import run_job  # late: a mistake is told before anything slow is imported

    with claim:
        return run_job(config, run_dir=claim.path, overrides=[]).exit_code


def read(run_file: Path) -> Config:
    """The config of a run; it tells itself of which kind. Raises ``ConfigError`` if it is none."""
    first: ConfigError | None = None
    for kind in JOBS.values():
        try:
            return runfile.load(run_file, kind)
        except ConfigError as error:
            first = first or error
    assert first is not None
    raise first
