"""The hand-written loop that many tutorials show, timed: the baseline for ``experiment=alexnet_cifar10``.

Images are opened and resized one by one on the CPU for every epoch, the loss is read twice a step, the optimizer is not fused
and the memory format is NCHW: AlexNet on CIFAR-10 files at 227 pixels, AdamW, with autocast + GradScaler or without.

``python benchmarks/articles_loop.py --cifar DIR [--steps 100] [--batch 64] [--workers 0 2]`` writes
``benchmarks/results/articles-loop-DEVICE.json``: median images/s over ``--repeat`` interleaved runs of each setting.
"""

import argparse
import json
import re
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from statistics import median

import torch
import torchvision
from torch import nn
from torch.utils.data import DataLoader
from torchvision import transforms

RESULTS = Path(__file__).resolve().parent / "results"
WARM_UP_STEPS = 10


def main() -> None:
    """Time every setting and write the medians."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cifar", required=True, help="folder with train/CLASS/*.jpg")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--workers", type=int, nargs="+", default=[0, 2])
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    settings = [(mixed, workers) for mixed in (False, True) for workers in args.workers]
    rates: dict[str, list[float]] = {}
    for _ in range(args.repeat):
        for mixed, workers in settings:
            name = f"{'autocast + GradScaler' if mixed else 'fp32'}, {workers} workers"
            rate = images_per_second(Path(args.cifar), device, mixed=mixed, workers=workers, batch=args.batch, steps=args.steps)
            rates.setdefault(name, []).append(rate)
            sys.stderr.write(f"{name}: {rate:,.0f} images/s\n")
    name = torch.cuda.get_device_name() if device.type == "cuda" else "cpu"
    record = {
        "what": "hand-written loop, AlexNet on CIFAR-10 files at 227 pixels",
        "device": name,
        "batch": args.batch,
        "versions": {"torch": torch.__version__, "torchvision": torchvision.__version__},
        "date": datetime.now(UTC).date().isoformat(),
        "images_per_second": rates,
        "median": {setting: median(values) for setting, values in rates.items()},
    }
    args.out.mkdir(parents=True, exist_ok=True)
    slug = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
    (args.out / f"articles-loop-{slug}.json").write_text(json.dumps(record, indent=1) + "\n")


def images_per_second(root: Path, device: torch.device, *, mixed: bool, workers: int, batch: int, steps: int) -> float:
    """Speed of the training loop after a few steps of warm-up."""
    change = transforms.Compose([transforms.Resize((227, 227)), transforms.ToTensor(), transforms.Normalize([0.5] * 3, [0.5] * 3)])
    data = torchvision.datasets.ImageFolder(str(root / "train"), change)
    loader = DataLoader(data, batch_size=batch, shuffle=True, num_workers=workers, pin_memory=device.type == "cuda")
    model = torchvision.models.alexnet(num_classes=10).to(device)
    loss_of, optimizer = nn.CrossEntropyLoss(), torch.optim.AdamW(model.parameters(), lr=1e-4)
    scaler = torch.amp.GradScaler(device.type, enabled=mixed)
    total, started = 0.0, 0.0
    for step, (images, labels) in enumerate(loader):
        if step == WARM_UP_STEPS:
            started = time.perf_counter()
        if step == WARM_UP_STEPS + steps:
            break
        optimizer.zero_grad()
        with torch.autocast(device.type, enabled=mixed, dtype=torch.float16 if device.type == "cuda" else torch.bfloat16):
            loss = loss_of(model(images.to(device)), labels.to(device))
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        total += loss.item()
        last = loss.item()
    assert total >= last
    return steps * batch / (time.perf_counter() - started)


if __name__ == "__main__":
    main()
