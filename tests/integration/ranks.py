"""``python -m tests.integration.ranks JOBS.json OUT`` in each of several processes: trains every job in one group of gloo ranks.

Importing torch takes seconds, so all jobs of a world size share their processes. Rank 0 writes weights and losses to ``OUT``.
"""

import json
import sys
import tempfile
import warnings
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

from src import build
from src.config.checks import check
from src.config.runfile import to_config
from src.engine import loop
from src.engine.state import TrainState
from src.runtime import rank as ranks


def plain(num_classes, channels):
    """A network without batch norm, for images of 8 x 8 pixels."""
    return nn.Sequential(
        nn.Conv2d(channels, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(72, num_classes)
    )  # fmt: skip


def train(sections, *, rank):
    """The final weights, every logged loss and gradient norm, and the evaluations of one job."""
    config = to_config(sections)
    check(config, cuda_devices=0)
    with tempfile.TemporaryDirectory() as folder:
        parts = build.train_parts(config, run_dir=Path(folder), rank=rank, stop_requested=lambda: 0)
        state = TrainState()
        loop.fit(parts, state)
        weights = {name: tensor.clone() for name, tensor in parts.parallel.model_state(parts.model).items()}
        lines = Path(folder, "metrics.jsonl").read_text().splitlines() if rank.is_main else []
    points = [json.loads(line) for line in lines]
    metrics = {}
    for point in points:
        metrics.setdefault(point["name"], []).append(point["value"])
    return {
        "weights": weights,
        "metrics": metrics,
        "steps": state.step,
        "updates": state.updates,
        "dtype": parts.effective["computed_dtype"],
    }


def main():
    jobs, out = json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2])
    rank = ranks.from_environment("cpu")
    enter = dist.init_process_group
    dist.init_process_group = lambda *args, **kwargs: None if dist.is_initialized() else enter(*args, **kwargs)
    results = {name: train(sections, rank=rank) for name, sections in jobs.items()}
    if rank.is_main:
        torch.save(results, out)
    dist.destroy_process_group()


if __name__ == "__main__":
    warnings.simplefilter("error")
    main()
