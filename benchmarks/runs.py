"""Runs of the real command, repeated and summed up: the source of README's results table.

``python benchmarks/runs.py SUITE [--repeat N] [--cifar DIR]`` runs every command of the suite N times, interleaved, and writes
``benchmarks/results/SUITE-DEVICE.json``: command, hardware, versions and, from each run's result.json, accuracy, images/s,
duration and memory. ``--jobs J`` runs J of them at once, spread over the GPUs, which is quick and says nothing about speed:
``SUITE-seeds-DEVICE.json`` holds the accuracies only. ``python benchmarks/table.py`` turns all results into Markdown.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from importlib.metadata import version
from itertools import cycle, islice
from pathlib import Path
from queue import SimpleQueue

import torch

PROJECT = Path(__file__).resolve().parents[1]
RESULTS = PROJECT / "benchmarks" / "results"

CIFAR = (
    "data=image_folder data.root={cifar} model=resnet18 optim=sgd train.batch_size=128 data.augment.flip=true data.augment.crop_padding=4"
)
FILES = "data=image_folder data.root={cifar}"
ALEXNET = f"experiment=alexnet_cifar10 {FILES}"
MODES = ("fp32", "tf32", "amp", "bf16", "o2", "o3")
SUITES = {
    "digits": ["", "parallel=ddp", "precision=fp32", "precision=fp32 parallel=ddp"],
    "digits-modes": [f"precision={mode}" for mode in MODES],
    "cifar-modes": [f"experiment=cifar10_resnet18 {FILES} train.epochs=8 precision={mode}" for mode in MODES],
    "cifar-subset": [
        f"{CIFAR} data.subset=384 train.epochs=1 {mode}"
        for mode in ("precision=fp32", "precision=amp", "precision=fp32 parallel=ddp", "precision=amp parallel=ddp")
    ],
    "cifar-full": [
        f"{CIFAR} train.epochs=15 {mode}"
        for mode in ("precision=fp32", "precision=amp", "precision=fp32 parallel=ddp", "precision=amp parallel=ddp")
    ],
    "alexnet": [f"{ALEXNET} precision={mode}" for mode in ("fp32", "amp")],
    "alexnet-ddp": [f"{ALEXNET} precision={mode} parallel=ddp" for mode in ("fp32", "amp")],
    "alexnet-512": [f"{ALEXNET} train.batch_size=512 optim.lr=4e-4 precision={mode}" for mode in ("fp32", "amp")],
    "resnet18-cifar": [f"experiment=cifar10_resnet18 {FILES} precision={mode}" for mode in ("amp", "bf16", "o2", "o3", "fp32")],
}


def main() -> None:
    """Run one suite and write its results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("suite", choices=SUITES)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--cifar", default="datasets/cifar10-jpg", help="folder with train/ and test/ of CIFAR-10 as JPEG")
    parser.add_argument("--seed", type=int, default=0, help="seed of the first repetition")
    parser.add_argument("--jobs", type=int, default=1, help="runs at once; more than one is for accuracies only")
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args()
    commands = [command.format(cifar=args.cifar) for command in SUITES[args.suite]]
    shown = [command.format(cifar="DIR") for command in SUITES[args.suite]]
    runs: dict[str, list[dict[str, object]]] = {command: [] for command in shown}
    plan = [(command, name, args.seed + number) for number in range(args.repeat) for command, name in zip(commands, shown, strict=True)]
    suite = args.suite if args.jobs == 1 else f"{args.suite}-seeds"
    slots: SimpleQueue[str] = SimpleQueue()
    for device in islice(cycle(range(max(1, torch.cuda.device_count()))), args.jobs):
        slots.put(str(device))

    def measure(job: tuple[str, str, int]) -> dict[str, object]:
        if args.jobs == 1:
            return run(job[0], seed=job[2])
        device = slots.get()
        try:
            return accuracy(job[0], seed=job[2], device=device)
        finally:
            slots.put(device)

    with ThreadPoolExecutor(args.jobs) as pool:
        for (_, name, _), result in zip(plan, pool.map(measure, plan), strict=True):
            runs[name].append(result)
            sys.stderr.write(f"{name}: {result}\n")
            write(suite, runs, folder=args.out)


def write(suite: str, runs: dict[str, list[dict[str, object]]], *, folder: Path) -> None:
    """Write what there is so far."""
    device = str(next(results[0]["device"] for results in runs.values() if results))
    record = {
        "suite": suite,
        "device": device,
        "versions": {package: version(package) for package in ("torch", "torchvision", "mlflow", "hydra-core")},
        "date": datetime.now(UTC).date().isoformat(),
        "runs": {name: results for name, results in runs.items() if results},
    }
    folder.mkdir(parents=True, exist_ok=True)
    slug = re.sub(r"[^a-z0-9]+", "-", device.lower()).strip("-")
    (folder / f"{suite}-{slug}.json").write_text(json.dumps(record, indent=1) + "\n")


def run(command: str, *, seed: int, device: str | None = None) -> dict[str, object]:
    """One run of the command, on the GPU ``device`` alone if it is given; what its result.json says."""
    environment = dict(os.environ) if device is None else os.environ | {"CUDA_VISIBLE_DEVICES": device}
    with tempfile.TemporaryDirectory() as folder:
        run_dir = Path(folder) / "run"
        arguments = [*command.split(), f"seed={seed}", "tracking.log_model=false", f"tracking.uri=sqlite:///{folder}/store.db"]
        process = subprocess.run(
            [sys.executable, "-m", "src.train", *arguments, f"hydra.run.dir={run_dir}"],
            cwd=PROJECT,
            env=environment,
            capture_output=True,
            text=True,
        )
        if process.returncode:
            raise SystemExit(f"{command}: exit {process.returncode}\n{process.stdout[-3000:]}\n{process.stderr[-3000:]}")
        result = json.loads((run_dir / "result.json").read_text())
        points = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
        shutil.rmtree(run_dir)
    rates = [p["value"] for p in points if p["name"] == "perf/images_per_second"]
    return {
        "seed": seed,
        "best_accuracy": result["best"]["value"],
        "last_accuracy": result["metrics"]["val/accuracy"],
        "images_per_second": rates,
        "duration_seconds": result["duration_seconds"],
        "peak_memory_bytes": result["peak_memory_bytes"],
        "dtype": result["precision"]["dtype"],
        "scaler": result["precision"]["scaler"],
        "world_size": result["world_size"],
        "skipped_updates": result["skipped_updates"],
        "device": result["device"],
    }


def accuracy(command: str, *, seed: int, device: str) -> dict[str, object]:
    """What a run that shared its device can tell."""
    kept = ("seed", "best_accuracy", "last_accuracy", "dtype", "scaler", "world_size", "skipped_updates", "device")
    result = run(command, seed=seed, device=device)
    return {key: result[key] for key in kept}


if __name__ == "__main__":
    main()
