"""The training loop. Log, evaluate, checkpoint and stop are explicit lines of ``fit`` and ``train_epoch``."""

import logging

from src.data.base import Batch
from src.engine.diagnose import diagnose
from src.engine.evaluate import evaluate
from src.engine.report import EpochTotals, collapsed, log_epoch, log_point, raise_collapse, record
from src.engine.snapshot import mean_buffers, save
from src.engine.state import Parts, TrainState
from src.engine.step import forward_backward, update
from src.errors import ExitCode, Stopped

log = logging.getLogger(__name__)


def fit(parts: Parts, state: TrainState) -> None:
    """Train from ``state`` to the end of the plan.

    Raises ``Stopped`` after a signal, with a checkpoint of that very step, and ``NonFiniteError`` when updates keep being
    skipped. Both follow from values reduced over ranks, so all ranks raise together.
    """
    train, steps_per_epoch = parts.config.train, parts.data.train.steps_per_epoch
    while not parts.finished(state):
        totals = EpochTotals(parts.rank.world_size)
        if state.epoch_step == 0:
            state.epoch_sums = [0.0, 0.0, 0.0]
        state.is_best = False
        stop = train_epoch(parts, state, totals)
        epoch_complete = state.epoch_step == steps_per_epoch
        if epoch_complete:
            state.epoch, state.epoch_step = state.epoch + 1, 0
        if epoch_complete or parts.finished(state):
            evaluation = None
            with mean_buffers(parts, state):
                if parts.finished(state) or state.epoch % train.eval_every == 0:
                    evaluation = evaluate(
                        parts.evaluated(),
                        parts.data.val,
                        num_classes=parts.num_classes,
                        precision=parts.precision,
                        parallel=parts.parallel,
                        pulse=parts.pulse,
                    )
            log_epoch(parts, state, totals, evaluation)
        last = bool(stop) or parts.finished(state)
        if stop and not parts.finished(state):
            log.info("a signal asks to stop: saving a checkpoint of step %d", state.step)
        if last or state.is_best or parts.save_due(state.step) or state.epoch % parts.config.save.every_epochs == 0:
            save(parts, state, last=last)
        if epoch_complete or parts.finished(state):
            record(parts, state, {"perf/epoch_seconds": totals.elapsed()})
        if stop and not parts.finished(state):
            raise Stopped(f"stopped by a signal after step {state.step}; the checkpoint holds this step", exit_code=ExitCode(stop))


def train_epoch(parts: Parts, state: TrainState, totals: EpochTotals) -> int:
    """Train to the end of the epoch, to ``train.max_steps`` or to an agreed stop; returns the exit code of the stop or 0."""
    train, feed = parts.config.train, parts.data.train
    parts.wrapped.train()
    parts.buffers.hold()
    window: list[Batch] = []
    for batch in totals.timed(parts.pulse.follow(feed.epoch(state.epoch, start_step=state.epoch_step), state)):
        forward_backward(parts, batch)
        window = [*window, batch] if parts.config.precision.diagnose and window and not window[-1].last else [batch]
        if not batch.last:
            continue
        state.step, state.epoch_step = state.step + 1, state.epoch_step + 1
        ends = state.epoch_step == feed.steps_per_epoch or state.step == train.max_steps
        log_due = ends or state.step % train.log_every == 0
        update(parts, state.step, sample=log_due)
        totals.steps += 1
        if parts.config.precision.diagnose and parts.meter.last_was_skipped():
            diagnose(parts, window, step=state.step)
        save_due = parts.save_due(state.step)
        if log_due or save_due or parts.check_due(state.step):
            reading = parts.meter.read(stop=parts.stop_requested())
            totals.mark()
            state.updates = reading.updates
            parts.plan_check(state.step, reading.step_seconds)
            if log_due:
                log_point(parts, state, totals, reading)
            if collapsed(parts, reading):
                raise_collapse(parts, reading, diagnose(parts, window, step=state.step))
            if ends or reading.stop:
                break
            if save_due:
                with totals.paused():
                    save(parts, state, last=False)
    state.train_seconds, state.train_images = state.train_seconds + totals.seconds, state.train_images + totals.images
    return reading.stop
