"""What one rank does: build, train or evaluate, write the outcome."""

import time
from pathlib import Path
from typing import Any

from src import build
from src.checkpoint import load, save
from src.config.schema import Config, EvaluateConfig
from src.engine import loop, snapshot
from src.engine.evaluate import evaluate
from src.engine.state import Parts, TrainState
from src.launch.files import write_json
from src.launch.outcome import Outcome
from src.launch.signals import StopSignals
from src.runtime import logs, memory, rank as ranks
from src.runtime.rank import Rank
from src.tracking.base import Point
from src.tracking.journal import Journal


def run_rank(config: Config, *, run_dir: Path, rank: Rank, signals: StopSignals) -> Outcome:
    """Do this rank's share of the run and write its outcome file, however it ends."""
    outcome = Outcome(rank=rank.rank)
    handler = logs.add_file(run_dir / "ranks" / str(rank.rank) / "rank.log", rank=rank.rank)
    try:
        if isinstance(config, EvaluateConfig):
            run_evaluation(config, run_dir=run_dir, rank=rank, result=outcome.result)
        else:
            run_training(config, run_dir=run_dir, rank=rank, signals=signals, result=outcome.result)
    except BaseException as error:
        # Nothing collective from here on: the other ranks may be stuck, and leaving the group would wait for them.
        outcome.blame(error)
    outcome.write(run_dir)
    logs.remove(handler)
    return outcome


def run_training(config: Config, *, run_dir: Path, rank: Rank, signals: StopSignals, result: dict[str, Any]) -> None:
    """Train; ``result`` holds what was reached even if this raises."""
    payload = load.load(Path(config.resume)) if config.resume else None
    parts = build.train_parts(config, run_dir=run_dir, rank=rank, stop_requested=lambda: signals.requested)
    state = TrainState() if payload is None else snapshot.restore(parts, payload)
    if rank.is_main:
        save.remove_leftovers(run_dir / "checkpoints")
        save.refuse_full_disk(run_dir / "checkpoints", size=snapshot.state_bytes(parts), keep=config.save.keep)
        write_json(run_dir / "data.json", parts.data.describe())
    signals.graceful = True  # from here on there is a step to finish and something to save
    try:
        loop.fit(parts, state)
    finally:
        parts.progress.close()
        result |= training_result(parts, state)
    if parts.best_evaluation is not None and rank.is_main:
        write_json(run_dir / "evaluation.json", parts.best_evaluation.to_dict(parts.data.class_names))
    parts.parallel.exit()


def run_evaluation(config: EvaluateConfig, *, run_dir: Path, rank: Rank, result: dict[str, Any]) -> None:
    """Evaluate a checkpoint and write ``evaluation.json``."""
    assert config.checkpoint is not None
    payload = load.load(Path(config.checkpoint))
    parts = build.evaluation_parts(config, payload, rank=rank)
    evaluation = evaluate(parts.model, parts.feed, num_classes=parts.num_classes, precision=parts.precision, parallel=parts.parallel)
    metrics = evaluation.metrics(config.split.name)
    step = payload["state"]["step"]
    if rank.is_main:
        write_json(run_dir / "evaluation.json", evaluation.to_dict(parts.class_names))
        Journal(run_dir / "metrics.jsonl").write([Point(name, value, step, time.time()) for name, value in metrics.items()])
    objective = config.objective.name.replace("val/", f"{config.split.name}/")
    result |= {
        "objective": {"name": objective, "value": metrics.get(objective)},
        "metrics": metrics,
        "count": evaluation.count,
        "world_size": rank.world_size,
        "precision": {"name": parts.precision.name, "dtype": parts.effective["computed_dtype"], "scaler": False},
        "peak_memory_bytes": memory.peak_bytes(rank.device),
        "effective": parts.effective,
        "device": ranks.device_name(rank.device),
        "step": step,
        "epoch": payload["state"]["epoch"],
    }
    parts.parallel.exit()


def training_result(parts: Parts, state: TrainState) -> dict[str, Any]:
    """What the run reached, under result.json's names; paths relative to the run directory."""
    state.updates = parts.schedule.count()
    return {
        "objective": {"name": parts.config.objective.name, "value": state.best_value},
        "metrics": state.metrics,
        "best": {"step": state.best_step, "epoch": state.best_epoch, "value": state.best_value},
        "epochs": state.epoch,
        "stopped_early": parts.stopped_early(state),
        "steps": state.step,
        "updates": state.updates,
        "skipped_updates": state.step - state.updates,
        "samples_per_second": state.train_images / state.train_seconds if state.train_seconds else None,
        "peak_memory_bytes": memory.peak_bytes(parts.rank.device),
        "world_size": parts.rank.world_size,
        "precision": {
            "name": parts.config.precision.name,
            "dtype": parts.effective["computed_dtype"],
            "scaler": parts.precision.scaled,
        },
        "effective": parts.effective,
        "device": ranks.device_name(parts.rank.device),
    }
