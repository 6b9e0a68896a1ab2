"""What ``experiment=image_folder_finetune`` gains: from another run's weights, and from random ones, on few images.

``python benchmarks/finetune.py --cifar DIR`` trains a ResNet-18 on five of CIFAR-10's classes, then runs the experiment on 100 images
of each of the other five with those weights and without any, interleaved, and writes ``benchmarks/results/finetune-DEVICE.json``.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

PROJECT = Path(__file__).resolve().parents[1]
RESULTS = PROJECT / "benchmarks" / "results"
IMAGES_PER_CLASS = 100
PRETRAIN = "model=resnet18 optim=sgd schedule=onecycle optim.lr=0.2 train.batch_size=256 data=image_folder data.augment.flip=true"
STARTS = {"another run's weights": "", "random weights": "model.pretrained=null model.reset_head=false"}


def main() -> None:
    """Pretrain once, fine-tune twice a repetition, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cifar", type=Path, required=True, help="folder with train/ and test/ of CIFAR-10 as JPEG")
    parser.add_argument("--epochs", type=int, default=8, help="epochs of the first training")
    parser.add_argument("--repeat", type=int, default=2)
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args()
    classes = sorted(path.name for path in (args.cifar / "train").iterdir())
    with tempfile.TemporaryDirectory() as folder:
        first, few = Path(folder, "first"), Path(folder, "few")
        link(args.cifar, first, classes[:5], limit=None)
        link(args.cifar, few, classes[5:], limit=IMAGES_PER_CLASS)
        pretrained = train(f"{PRETRAIN} data.image_size=112 train.epochs={args.epochs} data.root={first}", Path(folder, "pretrained"))
        runs: dict[str, list[dict[str, Any]]] = {start: [] for start in STARTS}
        for seed in range(args.repeat):
            for number, (start, settings) in enumerate(STARTS.items()):
                settings = settings or f"model.pretrained={folder}/pretrained"
                command = f"experiment=image_folder_finetune data.root={few} seed={seed} {settings}"
                runs[start].append(summary(train(command, Path(folder, f"run-{seed}-{number}"))))
                sys.stderr.write(f"{start}: {runs[start][-1]}\n")
    record = {
        "what": f"fine-tuning a ResNet-18 on {IMAGES_PER_CLASS} images of each of 5 classes",
        "device": pretrained["device"],
        "versions": {package: version(package) for package in ("torch", "torchvision")},
        "date": datetime.now(UTC).date().isoformat(),
        "pretrained": summary(pretrained),
        "runs": runs,
    }
    args.out.mkdir(parents=True, exist_ok=True)
    slug = re.sub(r"[^a-z0-9]+", "-", str(pretrained["device"]).lower()).strip("-")
    (args.out / f"finetune-{slug}.json").write_text(json.dumps(record, indent=1) + "\n")


def link(cifar: Path, root: Path, classes: list[str], *, limit: int | None) -> None:
    """``root`` with links to the first ``limit`` training images of each class, and to all test images as validation."""
    for split, target, most in (("train", "train", limit), ("test", "val", None)):
        for name in classes:
            folder = root / target / name
            folder.mkdir(parents=True)
            for path in sorted((cifar / split / name).iterdir())[:most]:
                os.symlink(path.resolve(), folder / path.name)


def train(command: str, run_dir: Path) -> dict[str, Any]:
    """One run of the real command; its result.json."""
    arguments = [*command.split(), "tracking=none", f"hydra.run.dir={run_dir}"]
    process = subprocess.run([sys.executable, "-m", "src.train", *arguments], cwd=PROJECT, capture_output=True, text=True)
    if process.returncode:
        raise SystemExit(f"{command}: exit {process.returncode}\n{process.stdout[-3000:]}\n{process.stderr[-3000:]}")
    result: dict[str, Any] = json.loads((run_dir / "result.json").read_text())
    return result


def summary(result: dict[str, Any]) -> dict[str, Any]:
    """What is kept of a run."""
    return {
        "best_accuracy": result["best"]["value"],
        "best_epoch": result["best"]["epoch"],
        "epochs": result["epochs"],
        "stopped_early": result["stopped_early"],
        "images_per_second": result["samples_per_second"],
        "duration_seconds": result["duration_seconds"],
    }


if __name__ == "__main__":
    main()
