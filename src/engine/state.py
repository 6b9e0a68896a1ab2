"""What a run is made of (Parts) and how far it is (TrainState)."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import nn
from torch.optim import Optimizer

from src.checkpoint.writer import Writer
from src.config.schema import Config, Mode, TrainConfig
from src.data.base import Data
from src.engine.buffers import HeldBuffers
from src.engine.ema import WeightAverage
from src.engine.evaluate import Evaluation
from src.engine.forward import Forward
from src.engine.meter import Meter
from src.optim.schedule import Schedule
from src.parallel.base import Parallel
from src.precision.base import Precision
from src.runtime.progress import Progress
from src.runtime.pulse import SILENT, Pulse
from src.runtime.rank import Rank
from src.tracking.journal import Journal

CHECK_SECONDS = 2.0
"""Longest time between two decisions of ranks together, if a step is not longer: a signal leaves them ``parallel.grace_seconds``."""


@dataclass
class TrainState:
    """Position and memory of a run: plain types, saved in every checkpoint."""

    epoch: int = 0
    """Epochs completed."""
    epoch_step: int = 0
    """Optimizer steps done in the epoch under way."""
    step: int = 0
    """Optimizer steps tried; ``step - updates`` were skipped."""
    updates: int = 0
    """Real updates, as of the last log point."""
    best_value: float | None = None
    best_step: int = 0
    best_epoch: int = 0
    is_best: bool = False
    """Whether the last evaluation is the best so far."""
    bad_evaluations: int = 0
    """Evaluations in a row that were no better than the best."""
    metrics: dict[str, float] = field(default_factory=dict)
    """Last value of every metric."""
    epoch_sums: list[float] = field(default_factory=lambda: [0.0, 0.0, 0.0])
    """Training loss times images, hits and images of the epoch under way, as of the last log point."""
    train_seconds: float = 0.0
    """Time in the training part of epochs: data and logging included, evaluation and checkpoints not."""
    train_images: int = 0
    """Images trained on in ``train_seconds``, over all ranks."""

    def improves(self, value: float, mode: Mode) -> bool:
        """Whether ``value`` is finite and better than the best so far."""
        if not math.isfinite(value):
            return False
        return self.best_value is None or (value > self.best_value if mode == Mode.max else value < self.best_value)


def planned_steps(train: TrainConfig, steps_per_epoch: int, state: TrainState) -> int:
    """Optimizer steps of the whole plan, seen from ``state``: epochs may have had another length before it."""
    left = (train.epochs - state.epoch) * steps_per_epoch - state.epoch_step
    planned = state.step + max(0, left)
    return min(planned, train.max_steps or planned)


@dataclass
class Parts:
    """Everything one rank trains with, put together by ``src.build``."""

    config: Config
    run_dir: Path
    rank: Rank
    data: Data
    model: nn.Module
    """The weights that are optimised and saved."""
    working: nn.Module
    """The bare module that computes: ``model`` itself, or its half copy where the precision mode keeps master weights."""
    wrapped: nn.Module
    """``working`` as it is called in training, under the parallel mode."""
    forward: Forward
    """``wrapped``, compiled if asked for."""
    buffers: HeldBuffers
    """Those of ``working``, which a skipped update leaves where they were."""
    average: WeightAverage | None
    """The moving average of the weights, if there is one: what is then evaluated."""
    precision: Precision
    parallel: Parallel
    optimizer: Optimizer
    schedule: Schedule
    meter: Meter
    writer: Writer | None
    """Rank 0's writer of checkpoints."""
    journal: Journal | None
    """Rank 0's metric journal."""
    progress: Progress
    stop_requested: Callable[[], int]
    """The exit code that a signal to this rank asked for, or 0."""
    planned_steps: int
    """Optimizer steps of the whole plan."""
    effective: dict[str, Any]
    """What every ``auto`` of the config became."""
    pulse: Pulse = SILENT
    """This rank's sign of life for the launcher."""
    next_check: int = 0
    """The step after which several ranks decide together at the latest."""
    first_step: int = 0
    """Where this process started: 0, or the step of the checkpoint resumed."""
    best_evaluation: Evaluation | None = None
    started: float = field(default_factory=time.perf_counter)

    @property
    def num_classes(self) -> int:
        """Outputs of the head, which may exceed the classes of the data."""
        return int(self.effective["num_classes"])

    def evaluated(self) -> nn.Module:
        """The bare module to evaluate: the average of the weights if there is one. All ranks call it."""
        if self.average is None:
            return self.parallel.whole(self.working)
        return self.precision.evaluable(self.parallel.whole(self.average.model))

    def finished(self, state: TrainState) -> bool:
        """Whether the plan is done or ended early."""
        return state.step >= self.planned_steps or self.stopped_early(state)

    def stopped_early(self, state: TrainState) -> bool:
        """Whether the objective has not become better for ``train.early_stop_patience`` evaluations."""
        patience = self.config.train.early_stop_patience
        return patience is not None and state.bad_evaluations >= patience

    def save_due(self, step: int) -> bool:
        """Whether ``save.every_steps`` asks for a checkpoint of this step."""
        every = self.config.save.every_steps
        return every is not None and step % every == 0

    def sync_buffers(self) -> None:
        """Make the batch statistics of the weights and of their average equal on all ranks."""
        for module in self.networks():
            self.parallel.sync_buffers(module)

    def networks(self) -> list[nn.Module]:
        """What has batch statistics of its own: the network, and the average of its weights."""
        return [self.working] if self.average is None else [self.working, self.average.model]

    def check_due(self, step: int) -> bool:
        """Whether ranks decide together after this step; a lone rank looks for signals after every step, since it costs nothing."""
        if self.stop_requested() if self.rank.world_size == 1 else step >= self.next_check:
            return True
        return step % (self.config.train.check_every or self.config.train.log_every) == 0

    def plan_check(self, step: int, step_seconds: float) -> None:
        """After the reading of this step: the next one is due within ``CHECK_SECONDS``, so that slow steps leave time to save.

        ``step_seconds`` is the same on all ranks, so they plan the same.
        """
        self.next_check = step + max(1, int(CHECK_SECONDS / max(step_seconds, 1e-9)))

    def seconds_since_start(self) -> float:
        """Time since the loop could start."""
        return time.perf_counter() - self.started
