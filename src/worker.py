"""One rank: load run.yaml, build, work, write the outcome. Launched as ``python -m src.worker RUN/run.yaml JOB``."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from src import build
from src.checkpoint import load, save
from src.config import runfile
from src.config.schema import Config, EvaluateConfig
from src.engine import loop, snapshot
from src.engine.evaluate import evaluate
from src.engine.state import Parts, TrainState
from src.launch.files import write_json
from src.launch.outcome import Outcome
from src.launch.signals import StopSignals
from src.runtime import logs, rank as ranks
from src.runtime.rank import Rank


def main() -> None:
    """Run one launched rank to its end."""
    run_file, job = Path(sys.argv[1]), sys.argv[2]
    ranks.die_with_parent()
    with StopSignals() as signals:
        signals.graceful = True
        config = runfile.load(run_file, EvaluateConfig if job == "evaluate" else Config)
        rank = ranks.from_environment(config.device)
        logs.set_up(on_console=rank.is_main)
        if rank.is_main:
            logs.add_file(run_file.parent / f"{job}.log")
        outcome = run_rank(config, run_dir=run_file.parent, rank=rank, stop_requested=lambda: signals.requested)
    sys.exit(outcome.exit_code)


def run_rank(config: Config, *, run_dir: Path, rank: Rank, stop_requested: Callable[[], int]) -> Outcome:
    """Do this rank's share of the run and write its outcome file, however it ends."""
    outcome = Outcome(rank=rank.rank)
    handler = logs.add_file(run_dir / "ranks" / str(rank.rank) / "rank.log", rank=rank.rank)
    try:
        if isinstance(config, EvaluateConfig):
            run_evaluation(config, run_dir=run_dir, rank=rank, result=outcome.result)
        else:
            run_training(config, run_dir=run_dir, rank=rank, stop_requested=stop_requested, result=outcome.result)
    except BaseException as error:
        # Nothing collective from here on: the other ranks may be stuck, and leaving the group would wait for them.
        outcome.blame(error)
    outcome.write(run_dir)
    logs.remove(handler)
    return outcome


def run_training(config: Config, *, run_dir: Path, rank: Rank, stop_requested: Callable[[], int], result: dict[str, Any]) -> None:
    """Train; ``result`` holds what was reached even if this raises."""
    payload = load.load(Path(config.resume)) if config.resume else None
    parts = build.train_parts(config, run_dir=run_dir, rank=rank, stop_requested=stop_requested)
    state = TrainState()
    try:
        if payload is not None:
            state = snapshot.restore(parts, payload)
        save.remove_leftovers(run_dir / "checkpoints")
        if rank.is_main:
            write_json(run_dir / "effective.json", parts.effective)
        loop.fit(parts, state)
    finally:
        parts.progress.close()
        result |= training_result(parts, state)
    parts.parallel.exit()


def run_evaluation(config: EvaluateConfig, *, run_dir: Path, rank: Rank, result: dict[str, Any]) -> None:
    """Evaluate a checkpoint and write ``evaluation.json``."""
    assert config.checkpoint is not None
    payload = load.load(Path(config.checkpoint))
    parts = build.evaluation_parts(config, payload, rank=rank)
    evaluation = evaluate(parts.model, parts.feed, num_classes=parts.num_classes, precision=parts.precision, parallel=parts.parallel)
    if rank.is_main:
        write_json(run_dir / "evaluation.json", evaluation.to_dict(parts.class_names))
    result |= {
        "metrics": evaluation.metrics(),
        "count": evaluation.count,
        "world_size": rank.world_size,
        "precision": {"name": parts.precision.name, "dtype": parts.effective["computed_dtype"], "scaler": False},
        "effective": parts.effective,
        "device": ranks.device_name(rank.device),
        "step": payload["state"]["step"],
        "epoch": payload["state"]["epoch"],
    }
    parts.parallel.exit()


def training_result(parts: Parts, state: TrainState) -> dict[str, Any]:
    """What the run reached, under result.json's names; paths relative to the run directory."""
    cuda = parts.rank.device.type == "cuda"
    if parts.rank.is_main and parts.best_evaluation is not None:
        names = parts.data.class_names + [f"unused {i}" for i in range(len(parts.data.class_names), parts.num_classes)]
        write_json(parts.run_dir / "evaluation.json", parts.best_evaluation.to_dict(names))
    return {
        "objective": {"name": parts.config.objective.name, "value": state.best_value},
        "metrics": state.metrics,
        "best": {"step": state.best_step, "epoch": state.best_epoch, "value": state.best_value},
        "epochs": state.epoch,
        "steps": state.step,
        "updates": state.updates,
        "skipped_updates": state.step - state.updates,
        "samples_per_second": state.train_images / state.train_seconds if state.train_seconds else None,
        "peak_memory_bytes": torch.cuda.max_memory_allocated(parts.rank.device) if cuda else ranks.peak_memory_bytes(),
        "world_size": parts.rank.world_size,
        "precision": {
            "name": parts.config.precision.name,
            "dtype": parts.effective["computed_dtype"],
            "scaler": parts.precision.scaled,
        },
        "effective": parts.effective,
        "device": ranks.device_name(parts.rank.device),
    }


if __name__ == "__main__":
    main()
