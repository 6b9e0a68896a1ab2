"""Optimizers and learning-rate schedules that follow real updates on the device."""

from src.optim.groups import build_optimizer
from src.optim.schedule import Schedule

__all__ = ["Schedule", "build_optimizer"]
