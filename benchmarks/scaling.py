"""Weak scaling: whole training steps on one GPU and, with the same batch on each, on all of them; synthetic images, fp16 amp.

``torchrun --nproc-per-node N benchmarks/scaling.py [--models resnet50:256 ...] [--settings single ddp ddp:comm_hook=bf16 ...]``
times each setting's steps as the training loop does them, in interleaved rounds; the numbers are medians over the rounds. A setting
is a parallel mode with its options; ``single`` and ``dp`` run in rank 0 alone. Speed-up is images/s over those of ``single``.
Writes ``benchmarks/results/scaling-N-DEVICE.json``; rows of an earlier file that are not measured anew stay.
"""

import argparse
import json
import os
import re
import sys
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torchvision
from steps import timed

from src.config.runfile import to_config
from src.config.schema import FIXED_SIZES
from src.runtime import rank as ranks

RESULTS = Path(__file__).resolve().parent / "results"
MODELS = ("resnet50:256", "alexnet:512", "alexnet:64")
SETTINGS = (
    "single",
    "ddp",
    "ddp:comm_hook=bf16",
    "ddp:comm_hook=fp16",
    "ddp:bucket_cap_mb=100",
    "ddp:static_graph=true",
    "ddp:gradient_as_bucket_view=false",
    "fsdp",
    "dp",
)
LONE = ("single", "dp")


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="+", default=list(MODELS), help="MODEL:BATCH of one GPU")
    parser.add_argument("--settings", nargs="+", default=list(SETTINGS), help="MODE[:KEY=VALUE,...]")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args()
    rank = ranks.from_environment("auto")
    name = f"{rank.world_size} x {ranks.device_name(rank.device)}"
    record = {
        "suite": "scaling",
        "device": name,
        "versions": {"torch": torch.__version__, "torchvision": torchvision.__version__},
        "date": datetime.now(UTC).date().isoformat(),
        "steps": args.steps,
    }
    path = args.out / f"scaling-{re.sub(r'[^a-z0-9]+', '-', name.lower()).strip('-')}.json"
    os.environ["TORCHELASTIC_USE_AGENT_STORE"] = "False"  # each setting's group of ranks gets a store of its own, at the next port
    for text in args.models:
        model, _, batch_size = text.partition(":")
        found: dict[str, list[float]] = {setting: [] for setting in args.settings}
        for _ in range(args.rounds):
            for setting in args.settings:
                os.environ["MASTER_PORT"] = str(int(os.environ["MASTER_PORT"]) + 1)
                if rank.is_main or setting not in LONE:
                    found[setting].append(measure(model, setting, batch_size=int(batch_size), rank=rank, steps=args.steps))
        if rank.is_main:
            rows = [summary(model, int(batch_size), setting, ms, world_size=rank.world_size) for setting, ms in found.items()]
            write(path, record, rows)


def measure(model: str, setting: str, *, batch_size: int, rank: ranks.Rank, steps: int) -> float:
    """Milliseconds per step with ``batch_size`` images on each device."""
    mode, _, options = setting.partition(":")
    num_devices = 1 if mode == "single" else rank.world_size
    parallel = dict(option.split("=") for option in options.split(",")) if options else {}
    config = to_config(
        {
            "model": {"name": model},
            "precision": {"name": "amp"},
            "parallel": {"name": mode} | parallel | ({} if mode in LONE else {"num_processes": rank.world_size}),
            "tracking": {"name": "none"},
            "schedule": {"name": "constant"},
            "optim": {"name": "adamw", "lr": 1e-4},
            "train": {"batch_size": batch_size * num_devices, "epochs": 1_000_000},
            "data": {"name": "synthetic", "size": 2 * batch_size * num_devices, "val_size": 10, "pixels": FIXED_SIZES[model][1]},
        }
    )
    found = timed(config, rank=ranks.Rank(device=rank.device) if mode in LONE else rank, steps=steps)
    if rank.is_main:
        sys.stderr.write(f"{model}:{batch_size} {setting}: {found}\n")
    return float(found["ms_per_step"])


def summary(model: str, batch_size: int, setting: str, ms: list[float], *, world_size: int) -> dict[str, Any]:
    """The median over the rounds."""
    num_devices = 1 if setting == "single" else world_size
    return {
        "model": model,
        "batch_size_per_device": batch_size,
        "setting": setting,
        "devices": num_devices,
        "ms_per_step": median(ms),
        "all_ms_per_step": ms,
        "images_per_second": 1000 * batch_size * num_devices / median(ms),
    }


def write(path: Path, record: dict[str, Any], rows: list[dict[str, Any]]) -> None:
    """Write the rows, each with its speed-up, and keep the other rows of an earlier file."""
    old = json.loads(path.read_text())["rows"] if path.exists() else []
    merged = {(row["model"], row["batch_size_per_device"], row["setting"]): row for row in old + rows}
    for (model, batch_size, _), row in merged.items():
        if (single := merged.get((model, batch_size, "single"))) is not None:
            row["speedup"] = row["images_per_second"] / single["images_per_second"]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(record | {"rows": list(merged.values())}, indent=1) + "\n")


if __name__ == "__main__":
    main()
