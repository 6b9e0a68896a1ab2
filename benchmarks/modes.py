"""Every precision mode's training step on this device: milliseconds, images/s, peak memory.

``python benchmarks/modes.py [--models alexnet:512 resnet50:256 ...] [--modes fp32 amp ...] [--rounds 3] [--steps 20]`` builds each
run as the command does, on synthetic images that lie on the device, and times whole steps (batch, forward, backward, update).
A mode may have options of training: ``--modes "amp compile=default" "tf32 channels_last=false"``.
Modes are interleaved in rounds; the numbers are medians over the rounds. Writes ``benchmarks/results/modes-DEVICE.json``; rows of
an earlier file that are not measured anew stay.
"""

import argparse
import json
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
MODES = ("fp32", "tf32", "amp", "bf16", "o2", "o3")
O3 = {"scaler": {"dynamic": False, "init_scale": 1.0}}


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="+", default=["alexnet:64", "alexnet:512", "resnet50:256", "vit_b_16:256"], help="MODEL:BATCH")
    parser.add_argument("--modes", nargs="+", default=list(MODES))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args()
    device = ranks.pick_device("auto")
    name = ranks.device_name(device)
    record: dict[str, Any] = {
        "suite": "modes",
        "device": name,
        "versions": {"torch": torch.__version__, "torchvision": torchvision.__version__},
        "date": datetime.now(UTC).date().isoformat(),
        "steps": args.steps,
        "rows": [],
    }
    args.out.mkdir(parents=True, exist_ok=True)
    path = args.out / f"modes-{re.sub(r'[^a-z0-9]+', '-', name.lower()).strip('-')}.json"
    for text in args.models:
        model, _, batch_size = text.partition(":")
        rows: dict[str, list[dict[str, Any]]] = {mode: [] for mode in args.modes}
        for _ in range(args.rounds):
            for mode in args.modes:
                rows[mode].append(measure(model, mode, batch_size=int(batch_size), steps=args.steps))
                sys.stderr.write(f"{text} {mode}: {rows[mode][-1]}\n")
        measured = [summary(model, int(batch_size), mode, found) for mode, found in rows.items()]
        record["rows"] = merged(path, measured)
        path.write_text(json.dumps(record, indent=1) + "\n")


def merged(path: Path, measured: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows of ``path`` with ``measured`` in place of those for the same network, batch and mode."""

    def key(row: dict[str, Any]) -> tuple[str, int, int, str]:
        mode, _, options = row["mode"].partition(" ")
        return row["model"], row["batch_size"], MODES.index(mode), options

    old = json.loads(path.read_text())["rows"] if path.exists() else []
    return sorted({key(row): row for row in old + measured}.values(), key=key)


def measure(model: str, mode: str, *, batch_size: int, steps: int) -> dict[str, Any]:
    """Milliseconds per step and peak memory of one freshly built run."""
    precision, *options = mode.split()
    config = to_config(
        {
            "model": {"name": model},
            "precision": {"name": precision} | (O3 if precision == "o3" else {}),
            "tracking": {"name": "none"},
            "schedule": {"name": "constant"},
            "optim": {"name": "adamw", "lr": 1e-4},
            "train": {"batch_size": batch_size, "epochs": 1_000_000} | dict(option.split("=") for option in options),
            "data": {"name": "synthetic", "size": 2 * batch_size, "val_size": 10, "pixels": FIXED_SIZES[model][1]},
        }
    )
    return timed(config, rank=ranks.Rank(device=ranks.pick_device("auto")), steps=steps)


def summary(model: str, batch_size: int, mode: str, found: list[dict[str, Any]]) -> dict[str, Any]:
    """Medians over the rounds."""
    ms = median(row["ms_per_step"] for row in found)
    return {
        "model": model,
        "batch_size": batch_size,
        "mode": mode,
        "computed_dtype": found[0]["computed_dtype"],
        "loss_scaling": found[0]["loss_scaling"],
        "ms_per_step": ms,
        "all_ms_per_step": [row["ms_per_step"] for row in found],
        "images_per_second": 1000 * batch_size / ms,
        "peak_memory_bytes": max(row["peak_memory_bytes"] for row in found),
    }


if __name__ == "__main__":
    main()
