"""One job from config to result: prepare the directory and the tracker, run the ranks, close everything with the true status."""

import logging
import time
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from src.checkpoint import find
from src.config import runfile
from src.config.check_devices import num_processes
from src.config.schema import JOBS, CheckpointConfig, Config, CustomDataConfig, CustomModelConfig, GroupConfig
from src.launch import adopt, group, resume
from src.launch.card import card_lines, failure_card
from src.launch.devices import visible_cuda_devices
from src.launch.environment import environment_restored, set_library_variables
from src.launch.files import release, reserve, write_json
from src.launch.outcome import Outcome, a_peer_failed
from src.launch.record import record_whole
from src.launch.result import JobResult
from src.launch.signals import StopSignals
from src.launch.summary import closing_lines, config_lines, go_on
from src.launch.track import RunTracking
from src.runtime import logs

log = logging.getLogger(__name__)


def run_job(config: Config, *, run_dir: Path, overrides: list[str], notes: Sequence[str] = ()) -> JobResult:
    """Run a checked config (of any kind in ``JOBS``) in its own, already claimed directory.

    ``notes`` are logged at the start.

    Whatever happens, the run directory gets its ``result.json`` and the tracker the true status; nothing is raised.
    """
    started = time.monotonic()
    logs.set_up(on_console=True)
    handler = logs.add_file(run_dir / f"{job_name(config)}.log")
    tracking = RunTracking(config, run_dir=run_dir)
    with environment_restored(), StopSignals(peer_failed=lambda: a_peer_failed(run_dir, rank=0)) as signals:
        set_library_variables(deterministic=config.deterministic)
        try:
            reserve(run_dir)
            config, resume_run_id = resume.settle(config, run_dir)
            runfile.save(config, run_dir / "run.yaml")
            logs.console.print(config_lines(runfile.to_dict(config)), soft_wrap=True)
            log.info("run directory %s", run_dir)
            for note in notes:
                log.info(note)
            _import_torch(config)
            tracking.open(overrides=overrides, resume_run_id=resume_run_id)
            outcome = run_ranks(config, run_dir=run_dir, tracking=tracking, signals=signals)
            outcome.failure = outcome.failure or failure_card(outcome, run_dir=run_dir)
        except BaseException as error:
            outcome = Outcome()
            outcome.blame(error)
        signals.closing = True
        result = finish(config, outcome, run_dir=run_dir, tracking=tracking, overrides=overrides, seconds=time.monotonic() - started)
    logs.remove(handler)
    objective = result["objective"]["value"]
    return JobResult(outcome.status, int(outcome.exit_code), outcome.reason, objective, run_dir, stop=int(signals.requested))


def job_name(config: Config) -> str:
    """The entry point this config belongs to."""
    return next(name for name, kind in JOBS.items() if type(config) is kind)


def _import_torch(config: Config) -> None:
    # Before the tracker's thread imports mlflow: both tamper with Python's warning filters while they are imported.
    launches = isinstance(config.parallel, GroupConfig) and adopt.outer() is None
    import_module("torch.distributed.launcher.api" if launches else "src.work")


def run_ranks(config: Config, *, run_dir: Path, tracking: RunTracking, signals: StopSignals) -> Outcome:
    """One rank in this process, a group of processes under torchrun's engine, or rank 0 of the group that an outer torchrun started."""
    group.forget(run_dir)
    if not isinstance(config.parallel, GroupConfig):
        from src import work
        from src.runtime import rank

        tracking.wait()  # both import half of Python here; in a launched group the ranks do it meanwhile
        place = rank.Rank(device=rank.pick_device(config.device))
        return work.run_rank(config, run_dir=run_dir, rank=place, signals=signals)
    if (outer := adopt.outer()) is not None:
        return adopt.lead(outer, config, job=job_name(config), run_dir=run_dir, ready=tracking.wait, signals=signals)
    world_size = num_processes(config, visible_cuda_devices())
    return group.run_group(config, run_dir=run_dir, job=job_name(config), world_size=world_size)


def finish(
    config: Config, outcome: Outcome, *, run_dir: Path, tracking: RunTracking, overrides: Sequence[str], seconds: float
) -> dict[str, Any]:
    """Write ``result.json``, close the tracker's run with the true status, and say how it ended and how to go on, once."""
    tracking.wait()
    find.remove_leftovers(run_dir / "checkpoints")  # of a writer that was killed
    release(run_dir)
    result = final_result(config, outcome, run_dir=run_dir, seconds=seconds) | {"tracking": tracking.ref}
    write_json(run_dir / "result.json", result)
    if outcome.status == "FINISHED" and not isinstance(config, CheckpointConfig):
        record_whole(run_dir, result)
    if outcome.status != "FINISHED":
        for line in card_lines(outcome, run_dir=run_dir):
            log.error(line)
    best = result["checkpoint"]["best"] or result["checkpoint"]["last"]
    loader = best_model_loader(run_dir / best) if best and config.tracking.log_model and not isinstance(config, CheckpointConfig) else None
    failed = tracking.close(outcome.status, result=result, load_best=loader)
    if failed:
        result["artifacts_not_uploaded"] = list(failed)
        write_json(run_dir / "result.json", result)
    own_code = isinstance(config.model, CustomModelConfig) or isinstance(config.data, CustomDataConfig)
    unfinished = outcome.status != "FINISHED" and result["checkpoint"]["last"] is not None and not isinstance(config, CheckpointConfig)
    again = go_on(overrides, run_dir) if unfinished else None
    for line in closing_lines(result, run_dir=run_dir, own_code=own_code, again=again):
        log.info(line)
    return result


def final_result(config: Config, outcome: Outcome, *, run_dir: Path, seconds: float) -> dict[str, Any]:
    """The content of ``result.json``: rank 0's result, or as much as is known if it has none."""
    directory = run_dir / "checkpoints"
    files = find.step_files(directory)
    best = directory / find.BEST
    defaults: dict[str, Any] = {
        "objective": {"name": config.objective.name, "value": None},
        "metrics": {},
        "best": None,
        "epochs": 0,
        "steps": 0,
        "updates": 0,
        "skipped_updates": 0,
        "samples_per_second": None,
        "peak_memory_bytes": None,
        "world_size": None,
        "precision": None,
        "effective": {},
        "device": None,
    }
    return {
        "status": outcome.status,
        "reason": outcome.reason,
        "exit_code": int(outcome.exit_code),
        "failure": outcome.failure,
        "restarts": outcome.restarts,
        **defaults,
        **outcome.result,
        "checkpoint": {
            "best": str(best.relative_to(run_dir)) if best.exists() else None,
            "last": str(files[0].relative_to(run_dir)) if files else None,
        },
        "resumed_from": config.resume,
        "duration_seconds": seconds,
    }


def best_model_loader(path: Path) -> Callable[[], tuple[Any, Any]]:
    """A function that loads the network of a checkpoint and a small batch of its input shape."""

    def load_best() -> tuple[Any, Any]:
        import torch

        from src import network
        from src.checkpoint.load import load

        payload = load(path)
        # the user's own function built this network a moment ago
        return network.load_model(payload, trust_code=True), torch.zeros(*network.example_shape(payload)).numpy()

    return load_best
