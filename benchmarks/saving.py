"""How long a checkpoint keeps training waiting, written in the background or not.

``python benchmarks/saving.py [--model alexnet] [--batch-size 64]`` trains with fp16 amp on a GPU (bf16 on a CPU), takes a checkpoint
every ``--every`` steps and times the call; settings are interleaved in rounds, the numbers are medians over all checkpoints but each
run's first, which makes page-locked memory and is told apart. Writes ``benchmarks/results/saving-DEVICE.json``.
"""

import argparse
import json
import re
import sys
import tempfile
import time
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any

import torch
from steps import WARM_UP_STEPS, endless, run

from src import build
from src.config.runfile import to_config
from src.config.schema import FIXED_SIZES
from src.engine.snapshot import save, state_bytes
from src.engine.state import TrainState
from src.runtime import rank as ranks

RESULTS = Path(__file__).resolve().parent / "results"


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="alexnet")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--every", type=int, default=200, help="steps between checkpoints")
    parser.add_argument("--saves", type=int, default=5, help="checkpoints of a run")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args()
    device = ranks.pick_device("auto")
    name = ranks.device_name(device)
    found: dict[bool, list[dict[str, Any]]] = {True: [], False: []}
    for _ in range(args.rounds):
        for background, runs in found.items():
            runs.append(measure(args, background=background, device=device))
            sys.stderr.write(f"background={background}: {runs[-1]}\n")
    record = {
        "suite": "saving",
        "device": name,
        "versions": {"torch": torch.__version__},
        "date": datetime.now(UTC).date().isoformat(),
        "model": args.model,
        "batch_size": args.batch_size,
        "every_steps": args.every,
        "state_bytes": found[True][0]["state_bytes"],
        "saving": [summary(background, runs) for background, runs in found.items()],
    }
    args.out.mkdir(parents=True, exist_ok=True)
    path = args.out / f"saving-{re.sub(r'[^a-z0-9]+', '-', name.lower()).strip('-')}.json"
    path.write_text(json.dumps(record, indent=1) + "\n")


def measure(args: argparse.Namespace, *, background: bool, device: torch.device) -> dict[str, Any]:
    """Milliseconds of each call that saves, and of the steps between, in one run."""
    config = to_config(
        {
            "model": {"name": args.model},
            "precision": {"name": "amp"},
            "tracking": {"name": "none"},
            "schedule": {"name": "constant"},
            "save": {"background": background},
            "optim": {"name": "adamw", "lr": 1e-4},
            "train": {"batch_size": args.batch_size, "epochs": 1_000_000},
            "data": {"name": "synthetic", "size": 2 * args.batch_size, "val_size": 10, "pixels": FIXED_SIZES[args.model][1]},
        }
    )
    with tempfile.TemporaryDirectory() as folder:
        parts = build.train_parts(config, run_dir=Path(folder), rank=ranks.Rank(device=device), stop_requested=lambda: 0)
        assert parts.writer is not None
        parts.writer.start(state_bytes(parts))
        batches = endless(parts)
        run(parts, batches, WARM_UP_STEPS)
        state, blocked, steps = TrainState(), [], []
        for _ in range(args.saves):
            began = time.perf_counter()
            run(parts, islice(batches, args.every), args.every)
            stopped = time.perf_counter()
            state.step += args.every
            save(parts, state, last=False)
            steps.append(1000 * (stopped - began) / args.every)
            blocked.append(1000 * (time.perf_counter() - stopped))
        parts.writer.close()
        return {"blocked_ms": blocked, "step_ms": steps, "state_bytes": state_bytes(parts)}


def summary(background: bool, runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Medians over the rounds; the steps before a run's first checkpoint have none beside them."""
    return {
        "background": background,
        "first_blocked_ms": median(run["blocked_ms"][0] for run in runs),
        "blocked_ms": median(ms for run in runs for ms in run["blocked_ms"][1:]),
        "all_blocked_ms": [run["blocked_ms"] for run in runs],
        "step_ms_before": median(run["step_ms"][0] for run in runs),
        "step_ms_beside": median(ms for run in runs for ms in run["step_ms"][1:]),
    }


if __name__ == "__main__":
    main()
