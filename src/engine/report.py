"""Metric points and console lines of the loop; rank 0 writes, every rank keeps the numbers."""

import logging
import math
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import torch

from src.data.base import Batch
from src.engine.diagnose import sentence
from src.engine.evaluate import Evaluation
from src.engine.meter import Reading
from src.engine.state import Parts, TrainState
from src.errors import NonFiniteError
from src.tracking.base import Point

log = logging.getLogger(__name__)


class EpochTotals:
    """Images and times of the training part of one epoch, in this process."""

    def __init__(self, world_size: int = 1) -> None:
        self.images = 0
        """Images of all ranks."""
        self.steps = 0
        self.waited = 0.0
        self.seconds = 0.0
        self.started = time.perf_counter()
        self._world_size = world_size
        self._paused = 0.0

    def timed(self, batches: Iterator[Batch]) -> Iterable[Batch]:
        """The same batches; they are counted, and the time spent waiting for them is added up."""
        while True:
            asked = time.perf_counter()
            batch = next(batches, None)
            self.waited += time.perf_counter() - asked
            if batch is None:
                return
            self.images += batch.labels.numel() * self._world_size
            yield batch

    def elapsed(self) -> float:
        """Seconds since the epoch began, evaluation and checkpoint included."""
        return time.perf_counter() - self.started

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Something that is no part of the training."""
        began = time.perf_counter()
        yield
        self._paused += time.perf_counter() - began

    def mark(self) -> None:
        """The device has been read, so the time until now is the time that the images took."""
        self.seconds = self.elapsed() - self._paused


def log_point(parts: Parts, state: TrainState, totals: EpochTotals, reading: Reading) -> None:
    """Record the steps since the last point and start the meter anew."""
    window = (reading.loss * reading.images, reading.accuracy * reading.images, reading.images)
    state.epoch_sums = [before + new for before, new in zip(state.epoch_sums, window, strict=True)]
    parts.meter.reset()
    values = {
        "train/loss": reading.loss,
        "train/accuracy": reading.accuracy,
        "train/lr": reading.lr,
        "train/grad_norm": reading.grad_norm,
        "amp/skipped_updates": float(state.step - state.updates),
    }
    if parts.precision.scaled:
        values["amp/scale"] = reading.loss_scale
    if parts.precision.dtype != torch.float32:
        values["amp/nonfinite_gradients"] = reading.nonfinite_gradients
        values["amp/underflow_share"] = reading.underflow_share
    record(parts, state, values)
    rate = totals.images / totals.seconds
    parts.progress.step(state.step, f"epoch {state.epoch + 1}  loss {reading.loss:.4f}  lr {reading.lr:.2e}  {rate:,.0f} images/s")


def collapsed(parts: Parts, reading: Reading) -> bool:
    """Whether too many updates in a row were skipped."""
    return reading.consecutive_skips >= parts.config.precision.scaler.max_consecutive_skips


def raise_collapse(parts: Parts, reading: Reading, report: dict[str, Any]) -> NoReturn:
    """Raise ``NonFiniteError`` with the first bad step and what ``diagnose`` found in the last one."""
    limit = parts.config.precision.scaler.max_consecutive_skips
    raise NonFiniteError(
        f"{reading.consecutive_skips} updates in a row were skipped because of inf or NaN, from step {reading.first_bad_step} on "
        f"(precision.scaler.max_consecutive_skips={limit}); nothing of it reached the weights. In step {report['step']} "
        f"{sentence(report)}. {report['advice']}"
    )


def log_epoch(parts: Parts, state: TrainState, totals: EpochTotals, evaluation: Evaluation | None) -> None:
    """Record the epoch's speed and evaluation, feed the schedule, note the best, print the epoch's line."""
    values = {
        "perf/images_per_second": totals.images / totals.seconds,
        "perf/step_ms": 1000 * totals.seconds / totals.steps,
        "perf/data_wait": totals.waited / totals.seconds,
    }
    if parts.rank.device.type == "cuda":
        values["perf/peak_memory_gib"] = torch.cuda.max_memory_allocated(parts.rank.device) / 2**30
    if evaluation is not None:
        values |= evaluation.metrics()
    record(parts, state, values)
    objective = parts.config.objective
    loss, accuracy = train_means(state)
    judged = state.metrics | {"train/loss": loss, "train/accuracy": accuracy}  # those of the epoch, not of the last window
    if evaluation is not None and objective.name in judged:
        value = judged[objective.name]
        parts.schedule.on_evaluation(value, objective.mode)
        state.is_best = math.isfinite(evaluation.loss) and state.improves(value, objective.mode)
        state.bad_evaluations = 0 if state.is_best else state.bad_evaluations + 1
        if state.is_best:
            state.best_value, state.best_step, state.best_epoch = value, state.step, current_epoch(state)
            parts.best_evaluation = evaluation
    else:
        state.is_best = False
    if evaluation is not None and not math.isfinite(evaluation.loss):
        log.warning("val/loss is %s: the network's outputs hold inf or NaN, so this evaluation can't be the best", evaluation.loss)
    parts.progress.epoch(epoch_line(parts, state, totals, evaluation))
    if parts.stopped_early(state):
        log.info(
            "stopped early: no better %s in %d evaluations (train.early_stop_patience); the best is %s of epoch %d",
            objective.name,
            state.bad_evaluations,
            state.best_value,
            state.best_epoch,
        )


def epoch_line(parts: Parts, state: TrainState, totals: EpochTotals, evaluation: Evaluation | None) -> str:
    """One line for one epoch."""
    loss, accuracy = train_means(state)
    line = f"epoch {current_epoch(state):>3}/{parts.config.train.epochs}  step {state.step:>5}  loss {loss:.4f}  accuracy {accuracy:.4f}"
    if evaluation is not None:
        line += f"  val/loss {evaluation.loss:.4f}  val/accuracy {evaluation.accuracy:.4f}{' *' if state.is_best else '  '}"
    line += f"  lr {state.metrics['train/lr']:.2e}  {totals.images / totals.seconds:,.0f} images/s"
    return f"{line}  ETA {eta(parts, state)}"


def train_means(state: TrainState) -> tuple[float, float]:
    """Training loss and accuracy over the epoch that has just ended."""
    loss, hits, images = state.epoch_sums
    return loss / images, hits / images


def current_epoch(state: TrainState) -> int:
    """The number of the epoch under way or just completed, from 1."""
    return state.epoch + (state.epoch_step > 0)


def eta(parts: Parts, state: TrainState) -> str:
    """Time left if the rest goes like the training so far, as [h:]mm:ss."""
    left = parts.planned_steps - state.step
    seconds = round(parts.seconds_since_start() / max(1, state.step - parts.first_step) * left)
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes:02}:{seconds:02}"


def record(parts: Parts, state: TrainState, values: dict[str, float]) -> None:
    """Keep the values as the run's last ones and append them to the journal."""
    state.metrics |= values
    if parts.journal is not None:
        now = time.time()
        parts.journal.write([Point(name, value, state.step, now) for name, value in values.items()])
