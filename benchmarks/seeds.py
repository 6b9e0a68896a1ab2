"""The accuracies of a suite's commands over many seeds: several runs at once, spread over the GPUs, so nothing is said about speed.

``python benchmarks/seeds.py SUITE [--repeat N] [--seed FIRST] [--only MODE] [--jobs J] [--cifar DIR]`` takes the suites of
``benchmarks/runs.py`` and writes ``benchmarks/results/SUITE-seeds-DEVICE.json``; what an earlier file has and isn't measured anew
stays. A run that fails is a result too: its exit code and reason stand in place of the accuracy.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor, as_completed
from datetime import UTC, datetime
from importlib.metadata import version
from itertools import cycle, islice
from pathlib import Path
from queue import SimpleQueue

import torch
from runs import PROJECT, RESULTS, SUITES


def main() -> None:
    """Run one suite and write what there is after each run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("suite", choices=SUITES)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=2, help="runs at once")
    parser.add_argument("--cifar", default="datasets/cifar10-jpg", help="folder with train/ and test/ of CIFAR-10 as JPEG")
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--only", default="", help="only commands that end so, for example precision=o3")
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args()
    slots: SimpleQueue[str] = SimpleQueue()
    for device in islice(cycle(range(max(1, torch.cuda.device_count()))), args.jobs):
        slots.put(str(device))

    def measure(command: str, seed: int) -> dict[str, object]:
        device = slots.get()
        try:
            return accuracy(command.format(cifar=args.cifar), seed=seed, device=device)
        finally:
            slots.put(device)

    commands = [command for command in SUITES[args.suite] if command.endswith(args.only)]
    plan = [(command, seed) for seed in range(args.seed, args.seed + args.repeat) for command in commands]
    found: dict[str, list[dict[str, object]]] = {command.format(cifar="DIR"): [] for command in SUITES[args.suite]}
    with ThreadPoolExecutor(args.jobs) as pool:
        jobs = {pool.submit(measure, command, seed): command.format(cifar="DIR") for command, seed in plan}
        for job in as_completed(jobs):
            found[jobs[job]].append(job.result())
            sys.stderr.write(f"{jobs[job]}: {job.result()}\n")
            write(args.suite, found, folder=args.out)


def accuracy(command: str, *, seed: int, device: str) -> dict[str, object]:
    """One run of the command on the GPU ``device`` alone, if there is one; what its result.json says about accuracy."""
    with tempfile.TemporaryDirectory() as folder:
        arguments = [*command.split(), f"seed={seed}", "tracking=none", f"hydra.run.dir={folder}/run"]
        done = subprocess.run(
            [sys.executable, "-m", "src.train", *arguments],
            cwd=PROJECT,
            env=os.environ | {"CUDA_VISIBLE_DEVICES": device},
            capture_output=True,
            text=True,
            check=False,
        )
        path = Path(folder, "run", "result.json")
        if not path.exists():  # refused before it was created
            return {"seed": seed, "exit_code": done.returncode, "reason": done.stderr.strip()[-300:], "best_accuracy": None, "device": None}
        result = json.loads(path.read_text())
    return {
        "seed": seed,
        "exit_code": result["exit_code"],
        "reason": result["reason"],
        "best_accuracy": (result["best"] or {}).get("value"),
        "last_accuracy": result["metrics"].get("val/accuracy"),
        "precision": result["precision"],
        "skipped_updates": result["skipped_updates"],
        "device": result["device"],
    }


def write(suite: str, found: dict[str, list[dict[str, object]]], *, folder: Path) -> None:
    """Write what there is so far, by seed."""
    devices = [run["device"] for runs in found.values() for run in runs if run["device"]]
    if not devices:  # nothing has run yet, so nobody knows where this is
        return
    device = str(devices[0])
    slug = re.sub(r"[^a-z0-9]+", "-", device.lower()).strip("-")
    path = folder / f"{suite}-seeds-{slug}.json"
    old = json.loads(path.read_text())["seeds"] if path.exists() else {}
    seeds = {command: sorted(merged(old.get(command, []), runs), key=lambda run: int(str(run["seed"]))) for command, runs in found.items()}
    record = {
        "suite": f"{suite}-seeds",
        "device": device,
        "versions": {package: version(package) for package in ("torch", "torchvision", "hydra-core")},
        "date": datetime.now(UTC).date().isoformat(),
        "seeds": {command: runs for command, runs in seeds.items() if runs},
    }
    folder.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(record, indent=1) + "\n")


def merged(old: list[dict[str, object]], new: list[dict[str, object]]) -> list[dict[str, object]]:
    """``new``, and the ``old`` runs of other seeds."""
    return [run for run in old if run["seed"] not in [other["seed"] for other in new]] + new


if __name__ == "__main__":
    main()
