"""Runs of the real command, repeated and summed up: the source of README's results table.

``python benchmarks/runs.py SUITE [--repeat N] [--cifar DIR]`` runs every command of the suite N times, interleaved, and writes
``benchmarks/results/SUITE-DEVICE.json``: command, hardware, versions and, from each run's result.json, accuracy, images/s,
duration and memory. ``python benchmarks/table.py`` turns all results into Markdown, and ``benchmarks/seeds.py`` runs a suite's commands
over many seeds for their accuracies alone.
"""

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

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
    "alexnet-each-64": [f"{ALEXNET} precision=amp parallel=ddp train.batch_size=128"],
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
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args()
    commands = [command.format(cifar=args.cifar) for command in SUITES[args.suite]]
    shown = [command.format(cifar="DIR") for command in SUITES[args.suite]]
    runs: dict[str, list[dict[str, object]]] = {command: [] for command in shown}
    plan = [(command, name, args.seed + number) for number in range(args.repeat) for command, name in zip(commands, shown, strict=True)]
    for command, name, seed in plan:
        runs[name].append(run(command, seed=seed))
        sys.stderr.write(f"{name}: {runs[name][-1]}\n")
        write(args.suite, runs, folder=args.out)


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


def run(command: str, *, seed: int) -> dict[str, object]:
    """One run of the command; what its result.json says."""
    with tempfile.TemporaryDirectory() as folder:
        run_dir = Path(folder) / "run"
        arguments = [*command.split(), f"seed={seed}", "tracking.log_model=false", f"tracking.uri=sqlite:///{folder}/store.db"]
        process = subprocess.run(
            [sys.executable, "-m", "src.train", *arguments, f"hydra.run.dir={run_dir}"], cwd=PROJECT, capture_output=True, text=True
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


if __name__ == "__main__":
    main()
