"""One checkpoint in every precision, and what one rank's inf does to all."""

import json

import pytest

from src.checkpoint.load import load

from .conftest import TINY

NET = """
import torch
from torch import nn


class Fragile(nn.Module):
    \"\"\"Its logits overflow float16 for an image of one single colour.\"\"\"

    def __init__(self, num_classes, channels):
        super().__init__()
        self.hidden, self.head = nn.Linear(channels * 64, 16), nn.Linear(16, num_classes)

    def forward(self, images):
        flat = images.flatten(1)
        channels = images.flatten(2)
        lonely = ((channels.amax(2) - channels.amin(2)).amax(1) < 1e-4).to(flat.dtype)
        return self.head(torch.relu(self.hidden(flat))) * (1 + 1e30 * lonely[:, None])


def net(num_classes, channels):
    return Fragile(num_classes, channels)
"""
MODES = ("fp32", "amp", "bf16", "o2", "o3")


@pytest.fixture(scope="module")
def trained(shell):
    settings = ("precision=o2", "precision.dtype=float16", "precision.scaler.init_scale=256", "tracking=none", "device=cpu")
    return shell.run("src.train", *TINY, *settings, name="o2").ok()


def test_the_checkpoint_of_half_weights_is_float32(trained):
    payload = load(trained.run_dir / "checkpoints" / "best.pt")
    assert {str(tensor.dtype) for tensor in payload["model"].values()} == {"torch.float32"}
    assert (trained.result["precision"]["dtype"], trained.result["precision"]["scaler"]) == ("float16", True)


def test_every_precision_evaluates_it(trained, shell):
    """A sweep over the modes; what was computed is recorded for each, and the losses agree within half's error."""
    process = shell.start(
        "src.evaluate", "-m", "checkpoint=o2", f"precision={','.join(MODES)}", "precision.dtype=auto", "tracking=none", "device=cpu",
        "hydra.sweep.dir=modes",
    )  # fmt: skip
    out, err = process.communicate(timeout=240)
    assert process.returncode == 0, out + err
    results = [json.loads((shell.directory / "modes" / str(number) / "result.json").read_text()) for number in range(len(MODES))]
    assert [result["precision"]["dtype"] for result in results] == ["float32", *["bfloat16"] * 4]
    reference = results[0]["metrics"]["val/loss"]
    for mode, result in zip(MODES, results, strict=True):
        assert result["precision"]["name"] == mode
        assert result["metrics"]["val/loss"] == pytest.approx(reference, rel=0.03)


def test_an_inf_on_one_rank_is_skipped_by_all(shell):
    """A15: one bad image in one rank's data; both ranks skip the same steps, and their scales agree."""
    import numpy as np
    from PIL import Image

    (shell.directory / "fragile.py").write_text(NET)
    random = np.random.default_rng(0)
    for split, count in (("train", 16), ("val", 4)):
        for label in range(2):
            folder = shell.directory / "flat" / split / str(label)
            folder.mkdir(parents=True)
            for number in range(count):
                pixels = random.integers(0, 255, (8, 8, 3), dtype=np.uint8)
                if (split, label, number) == ("train", 0, 3):
                    pixels[:] = 200
                Image.fromarray(pixels).save(folder / f"{number}.png")
    settings = ("model=custom", "model.factory=fragile:net", "data=image_folder", "data.root=flat", "train.batch_size=8", "train.epochs=2")
    half = ("precision=amp", "precision.dtype=float16", "precision.scaler.init_scale=64", "train.log_every=1", "tracking=none")
    two = ("parallel=ddp", "parallel.num_processes=2", "device=cpu")
    run = shell.run("src.train", *settings, *half, *two, name="inf").ok()
    results = [json.loads((run.run_dir / "ranks" / str(rank) / "outcome.json").read_text())["result"] for rank in range(2)]
    assert [result["skipped_updates"] for result in results] == [2, 2]
    assert [result["metrics"]["amp/scale"] for result in results] == [16.0, 16.0]
    assert results[0]["metrics"]["val/loss"] == results[1]["metrics"]["val/loss"]
