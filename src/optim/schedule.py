"""The learning rate as a table over real updates, looked up on the device.

An update that the gate skips (inf or NaN in a gradient) moves neither the counter nor the learning rate, and nothing of it
is known to the host: the counter, the table and the rate are device tensors.
"""

import math
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from src.config.schema import CosineConfig, Mode, MultiStepConfig, OneCycleConfig, OptimConfig, PlateauConfig, ScheduleConfig

_ONE_CYCLE_START, _ONE_CYCLE_END = 25.0, 1e4
"""Peak over first and first over last learning rate, as torch's OneCycleLR has them by default."""


def table(config: ScheduleConfig, *, lr: float, total_updates: int, updates_per_epoch: int) -> Tensor:
    """Learning rate of each update, float64, shape [total_updates + 1]; the last entry serves whatever comes after.

    The schedule's own factor, times a linear warm-up to 1 over the first ``warmup_steps`` updates.
    """
    update = torch.arange(total_updates + 1, dtype=torch.float64)
    factor = _factor(config, update, total_updates=total_updates, updates_per_epoch=updates_per_epoch)
    if config.warmup_steps:
        factor = torch.minimum((update + 1) / config.warmup_steps, torch.ones_like(update)) * factor
    return lr * factor


def _factor(config: ScheduleConfig, update: Tensor, *, total_updates: int, updates_per_epoch: int) -> Tensor:
    """Share of the peak learning rate at each update; constant also for plateau, which lowers the table later."""
    if isinstance(config, CosineConfig):
        progress = (update - config.warmup_steps) / max(1, total_updates - config.warmup_steps)
        return _cosine(1.0, config.min_factor, progress)
    if isinstance(config, OneCycleConfig):
        start, end = 1 / _ONE_CYCLE_START, 1 / (_ONE_CYCLE_START * _ONE_CYCLE_END)
        peak, last = max(0.0, config.peak_fraction * total_updates - 1), max(1, total_updates - 1)
        rising = _cosine(start, 1.0, update / max(peak, 1e-9))
        return torch.where(update <= peak, rising, _cosine(1.0, end, (update - peak) / (last - peak)))
    if isinstance(config, MultiStepConfig):
        milestones = torch.tensor(config.milestones, dtype=torch.float64) * updates_per_epoch
        drops = (update[:, None] >= milestones).sum(dim=1)
        return config.gamma ** drops.double()
    return torch.ones_like(update)


def _cosine(start: float, end: float, progress: Tensor) -> Tensor:
    """Half a cosine from ``start`` to ``end`` while ``progress`` goes from 0 to 1."""
    return end + (start - end) * 0.5 * (1 + torch.cos(math.pi * progress.clamp(0, 1)))


class Schedule:
    """Sets the learning rate before each update and counts the updates that really happened.

    It hangs on the optimizer's step hooks, so the rate and the count move exactly when the optimizer does, whoever calls
    it: GradScaler or the gate of ``precision.base``.
    """

    def __init__(
        self, config: ScheduleConfig, optimizer: Optimizer, *, optim: OptimConfig, total_updates: int, updates_per_epoch: int
    ) -> None:
        self._config = config
        self._optimizer = optimizer
        self._peak_lr = optim.lr
        self._updates_per_epoch = updates_per_epoch
        self._fused = bool(optimizer.defaults.get("fused"))
        device = optimizer.param_groups[0]["params"][0].device
        self._device = device
        self._factor = 1.0
        self.plan(total_updates)
        self.updates = torch.zeros(1, dtype=torch.int64, device=device)
        self.lr = self._full[0].clone()
        self._best: float | None = None
        self._bad_evaluations = 0
        self._bind()
        optimizer.register_step_pre_hook(self._before_step)
        optimizer.register_step_post_hook(self._after_step)

    def plan(self, total_updates: int, *, ahead: int = 0) -> None:
        """Make the table for a plan of so many updates in which the count of updates has come ``ahead`` (or, below 0, behind).

        A resumed run with epochs of another length is at the place of the new plan where its epoch is, not its count.
        """
        full = table(self._config, lr=self._peak_lr, total_updates=total_updates, updates_per_epoch=self._updates_per_epoch)
        place = (torch.arange(max(1, total_updates + 1 - ahead)) + ahead).clamp(0, total_updates)
        self._full = full[place].to(torch.float32).to(self._device)
        self._table = self._full.clone()
        self._lower(1.0)

    def _bind(self) -> None:
        # One lr tensor shared by all groups; load_state_dict puts copies in its place, so it is bound again afterwards.
        for group in self._optimizer.param_groups:
            group["lr"] = self.lr if self._fused else float(self.lr)

    def _before_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        last = self._table.numel() - 1
        # index_select with a 1-d index stays on the device; table[counter] would read the host.
        self.lr.copy_(self._table.index_select(0, self.updates.clamp(max=last))[0])
        if not self._fused:
            for group in optimizer.param_groups:
                group["lr"] = float(self.lr)

    def _after_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        found_inf = getattr(optimizer, "found_inf", None)
        self.updates.add_(1 if found_inf is None else (found_inf == 0).to(torch.int64))

    def count(self) -> int:
        """Real updates so far; reads the host."""
        return int(self.updates)

    def on_evaluation(self, value: float, mode: Mode) -> None:
        """Plateau only: lower the rest of the table after more than ``patience`` evaluations without improvement.

        ``value`` is the objective reduced over all ranks, so every rank takes the same decision.
        """
        if not isinstance(self._config, PlateauConfig):
            return
        better = self._best is None or (value > self._best if mode == Mode.max else value < self._best)
        better = better and math.isfinite(value)
        if better:
            self._best, self._bad_evaluations = value, 0
            return
        self._bad_evaluations += 1
        if self._bad_evaluations > self._config.patience:
            self._bad_evaluations = 0
            self._lower(self._config.factor)

    def _lower(self, factor: float) -> None:
        self._factor *= factor
        floor = self._config.min_lr if isinstance(self._config, PlateauConfig) else 0.0
        self._table.copy_(torch.maximum(self._full * self._factor, self._full.clamp(max=floor)))

    def forget_best(self) -> None:
        """Plateau only: judge by what comes from now on, since the objective is another."""
        self._best, self._bad_evaluations = None, 0

    def state_dict(self) -> dict[str, Any]:
        """Counter, rate of the last update and plateau memory as tensors and plain types; the table follows from the config."""
        return {
            "updates": self.updates.cpu(),
            "lr": self.lr.cpu(),
            "factor": self._factor,
            "best": self._best,
            "bad_evaluations": self._bad_evaluations,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore after the optimizer's own state was loaded."""
        self.updates.copy_(state["updates"])
        self.lr.copy_(state["lr"])  # an update that is skipped records the rate of the last one
        if isinstance(self._config, PlateauConfig):
            self._lower(state["factor"])
            self._best = state["best"]
            self._bad_evaluations = state["bad_evaluations"]
        self._bind()
