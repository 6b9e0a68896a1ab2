"""Small runs in this process on the first GPU."""

from collections.abc import Callable
from typing import Any

import torch

from src import build
from src.config.checks import check
from src.config.runfile import to_config
from src.engine import loop
from src.engine.meter import Meter
from src.engine.state import Parts, TrainState
from src.runtime.rank import Rank

GPU = torch.device("cuda", 0)
JOB = {
    "device": "cuda",
    "schedule": {"name": "cosine"},
    "tracking": {"name": "none"},
    "data": {"name": "digits"},
    "train": {"epochs": 2, "batch_size": 96, "accumulate": 2, "clip_norm": 1.0, "log_every": 4},
}


def make(run_dir, **sections):
    """The parts of a run."""
    config = to_config(JOB | sections)
    check(config, cuda_devices=torch.cuda.device_count())
    run_dir.mkdir()
    return build.train_parts(config, run_dir=run_dir, rank=Rank(device=GPU), stop_requested=lambda: 0)


def fit(parts):
    """Train to the end."""
    state = TrainState()
    loop.fit(parts, state)
    return state


def forbid_host_reads(monkeypatch, *, from_now: Callable[[], bool] = lambda: True) -> list[str]:
    """Every wait for the device is an error, but for those of log points, evaluations and checkpoints, whose names are returned."""
    called = []

    def relaxed(function):
        def call(*args: Any, **kwargs: Any) -> Any:
            torch.cuda.set_sync_debug_mode("default")
            called.append(function.__name__)
            try:
                return function(*args, **kwargs)
            finally:
                if from_now():
                    torch.cuda.set_sync_debug_mode("error")

        return call

    for owner, name in ((Meter, "read"), (loop, "evaluate"), (loop, "save"), (Parts, "evaluated")):
        monkeypatch.setattr(owner, name, relaxed(getattr(owner, name)))
    return called
