"""Timing of whole training steps as the loop does them."""

import gc
import tempfile
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from src import build
from src.config.checks import check
from src.config.schema import Config
from src.data.base import Batch
from src.engine.state import Parts
from src.engine.step import forward_backward, update
from src.runtime import memory
from src.runtime.rank import Rank

WARM_UP_STEPS = 5


def timed(config: Config, *, rank: Rank, steps: int) -> dict[str, Any]:
    """Milliseconds per step, peak memory in bytes, and what was computed in, of a freshly built run; all its ranks call this."""
    check(config, cuda_devices=torch.cuda.device_count())
    with tempfile.TemporaryDirectory() as folder:
        parts = build.train_parts(config, run_dir=Path(folder), rank=rank, stop_requested=lambda: 0)
        batches = endless(parts)
        run(parts, batches, WARM_UP_STEPS)
        started = time.perf_counter()
        run(parts, batches, steps)
        seconds = time.perf_counter() - started
        found = {
            "ms_per_step": 1000 * seconds / steps,
            "peak_memory_bytes": memory.peak_bytes(rank.device),
            "computed_dtype": parts.effective["computed_dtype"],
            "loss_scaling": parts.precision.scaled,
        }
        parts.parallel.exit()
        del parts, batches
    torch.compiler.reset()  # it holds the network
    gc.collect()
    if rank.device.type == "cuda":
        torch.cuda.empty_cache()
    return found


def endless(parts: Parts) -> Iterator[Batch]:
    """The batches of one epoch after the other."""
    epoch = 0
    while True:
        yield from parts.data.train.epoch(epoch)
        epoch += 1


def run(parts: Parts, batches: Iterator[Batch], steps: int) -> None:
    """Whole steps, then wait for the device."""
    parts.wrapped.train()
    for step, batch in enumerate(islice(batches, steps), start=1):
        forward_backward(parts, batch)
        update(parts, step, sample=False)
    if parts.rank.device.type == "cuda":
        torch.cuda.synchronize(parts.rank.device)
