"""What one rank does: build, train or evaluate, write the outcome."""

import faulthandler
import logging
import signal
import time
from pathlib import Path
from typing import Any

from src import build
from src.checkpoint import find, load, save
from src.config.check_saved import refuse_existing
from src.config.schema import Config, EvaluateConfig, ExportConfig, PredictConfig
from src.data.build import split_files
from src.data.decode import printable
from src.data.listing import find_images
from src.engine import loop, snapshot
from src.engine.evaluate import evaluate
from src.engine.state import Parts, TrainState
from src.launch.files import release, write_json
from src.launch.heartbeat import heartbeat_file
from src.launch.outcome import Outcome, rank_log
from src.launch.signals import StopSignals
from src.runtime import fault, logs, memory, rank as ranks
from src.runtime.pulse import Pulse
from src.runtime.rank import Rank
from src.serving.predictions import NUM_SHOWN, predict, write
from src.tracking.base import Point
from src.tracking.journal import Journal

log = logging.getLogger(__name__)


def run_rank(config: Config, *, run_dir: Path, rank: Rank, signals: StopSignals) -> Outcome:
    """Do this rank's share of the run and write its outcome file, however it ends."""
    outcome = Outcome(rank=rank.rank)
    path = rank_log(run_dir, rank.rank)
    handler = logs.add_file(path, rank=rank.rank)
    heartbeat = heartbeat_file(run_dir, rank.rank)
    with path.open("a", encoding="utf-8") as file:
        faulthandler.register(signal.SIGUSR2, file=file)  # answers also where no Python code runs
        try:
            wrong = fault.from_environment(run_dir, rank=rank.rank, world_size=rank.world_size)
            pulse = Pulse(heartbeat if rank.world_size > 1 else None, fault=wrong)
            if isinstance(config, PredictConfig):
                run_prediction(config, run_dir=run_dir, rank=rank, pulse=pulse, result=outcome.result)
            elif isinstance(config, ExportConfig):
                run_export(config, run_dir=run_dir, result=outcome.result)
            elif isinstance(config, EvaluateConfig):
                run_evaluation(config, run_dir=run_dir, rank=rank, pulse=pulse, result=outcome.result)
            else:
                run_training(config, run_dir=run_dir, rank=rank, signals=signals, pulse=pulse, result=outcome.result)
        except BaseException as error:
            # Nothing collective from here on: the other ranks may be stuck, and leaving the group would wait for them.
            outcome.blame(error)
            release(run_dir)
            outcome.memory = memory.summary(rank.device)
            file.write(f"{outcome.trace or outcome.reason}\n")  # not to the console: the launcher knows whose error is the cause
        outcome.write(run_dir)
        faulthandler.unregister(signal.SIGUSR2)
    heartbeat.unlink(missing_ok=True)
    logs.remove(handler)
    return outcome


def run_training(config: Config, *, run_dir: Path, rank: Rank, signals: StopSignals, pulse: Pulse, result: dict[str, Any]) -> None:
    """Train; ``result`` holds what was reached even if this raises."""
    payload = load.load(Path(config.resume)) if config.resume else None
    parts = build.train_parts(config, run_dir=run_dir, rank=rank, stop_requested=lambda: signals.requested, pulse=pulse)
    state = TrainState() if payload is None else snapshot.restore(parts, payload)
    size = snapshot.state_bytes(parts)
    if rank.is_main:
        find.remove_leftovers(run_dir / "checkpoints")
        save.refuse_full_disk(run_dir / "checkpoints", size=size, keep=config.save.keep)
        write_json(run_dir / "data.json", parts.data.describe())
        log.info("data           %s", parts.data.sentence())
    if parts.finished(state):
        log.warning("nothing is left to train: the checkpoint is at epoch %d of train.epochs=%d", state.epoch, config.train.epochs)
    signals.graceful = True  # from here on there is a step to finish and something to save
    try:
        if parts.writer is not None:
            on_gpu = rank.device.type == "cuda" and not parts.parallel.shares  # shares are gathered on the host
            parts.writer.start(size if on_gpu else 0)
        loop.fit(parts, state)
    finally:
        signals.closing = True  # what was reached is written down, whoever is impatient
        parts.progress.close()
        if parts.writer is not None:
            parts.writer.close()
        result |= training_result(parts, state)
        write_best_evaluation(parts)
    parts.parallel.exit()


def write_best_evaluation(parts: Parts) -> None:
    """Write ``evaluation.json``, if there is something to tell; a full disk ends nothing here."""
    if parts.best_evaluation is None or not parts.rank.is_main:
        return
    path = parts.run_dir / "evaluation.json"
    try:
        write_json(path, parts.best_evaluation.to_dict(parts.data.class_names))
    except OSError as error:
        log.warning("%s could not be written: %s", path, error)


def run_evaluation(config: EvaluateConfig, *, run_dir: Path, rank: Rank, pulse: Pulse, result: dict[str, Any]) -> None:
    """Evaluate a checkpoint and write ``evaluation.json``."""
    assert config.checkpoint is not None
    payload = load.load(Path(config.checkpoint))
    parts = build.evaluation_parts(config, payload, rank=rank)
    began = time.perf_counter()
    evaluation = evaluate(
        parts.model, parts.feed, num_classes=parts.num_classes, precision=parts.precision, parallel=parts.parallel, pulse=pulse
    )
    seconds = time.perf_counter() - began
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
        "samples_per_second": evaluation.count / seconds,
    }
    result |= saved_result(parts, payload, rank=rank)
    parts.parallel.exit()


def run_prediction(config: PredictConfig, *, run_dir: Path, rank: Rank, pulse: Pulse, result: dict[str, Any]) -> None:
    """Classify images and write the table of predictions."""
    assert config.checkpoint is not None
    output = run_dir / config.predict.output
    refuse_existing(output)  # a run directory that the user chose may hold files of their own
    payload = load.load(Path(config.checkpoint))
    if config.predict.input:
        paths = find_images(config.predict.input)
    else:
        paths = split_files(config.data, split=config.split, class_names=payload["class_names"])
    parts = build.prediction_parts(config, payload, paths, rank=rank)
    began = time.perf_counter()
    predictions = predict(
        parts.model,
        parts.feed,
        [printable(path) for path in paths],
        class_names=parts.class_names,
        allowed_errors=config.data.skip_broken,
        precision=parts.precision,
        parallel=parts.parallel,
        pulse=pulse,
    )
    seconds = time.perf_counter() - began
    broken = [prediction for prediction in predictions if prediction.error is not None]
    if rank.is_main:
        write(output, predictions)
        for prediction in broken[:NUM_SHOWN]:
            log.warning("no prediction: %s", prediction.error)
        if len(broken) > NUM_SHOWN:
            log.warning("no prediction for %d unreadable images in all; the table names each", len(broken))
    result |= {
        "objective": {"name": None, "value": None},
        "predictions": {"path": relative(output, run_dir), "count": len(predictions), "broken": len(broken)},
        "samples_per_second": len(predictions) / seconds,
    }
    result |= saved_result(parts, payload, rank=rank)
    parts.parallel.exit()


def run_export(config: ExportConfig, *, run_dir: Path, result: dict[str, Any]) -> None:
    """Write the network in other formats, each checked on real images."""
    from src.serving.export import export  # late: its packages are slow to import, and optional

    assert config.checkpoint is not None
    payload = load.load(Path(config.checkpoint))
    result |= {"objective": {"name": None, "value": None}, "step": payload["state"]["step"], "epoch": payload["state"]["epoch"]}
    result |= export(config, payload, run_dir=run_dir)


def saved_result(parts: build.Evaluable[Any], payload: dict[str, Any], *, rank: Rank) -> dict[str, Any]:
    """What the work with a saved network was done in, under result.json's names."""
    return {
        "world_size": rank.world_size,
        "precision": {"name": parts.precision.name, "dtype": parts.effective["computed_dtype"], "scaler": False},
        "peak_memory_bytes": memory.peak_bytes(rank.device),
        "effective": parts.effective,
        "device": ranks.device_name(rank.device),
        "step": payload["state"]["step"],
        "epoch": payload["state"]["epoch"],
    }


def relative(path: Path, run_dir: Path) -> str:
    """The path as result.json holds it: relative where it lies inside the run directory."""
    return str(path.relative_to(run_dir) if path.is_relative_to(run_dir) else path)


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
        "effective": parts.effective | {"compile": parts.forward.mode.value},
        "device": ranks.device_name(parts.rank.device),
        "dropped_points": 0 if parts.journal is None else parts.journal.dropped,
    }
