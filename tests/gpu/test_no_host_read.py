"""On a real GPU: float16 with GradScaler, and not one host read in a step (``set_sync_debug_mode("error")``)."""

import math

import pytest
import torch

from src import build
from src.config.checks import check
from src.config.runfile import to_config
from src.engine import loop
from src.engine.diagnose import examine
from src.engine.state import TrainState
from src.runtime.rank import Rank
from tests.gpu.jobs import forbid_host_reads

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype"),
]

JOBS = {
    "the default main job": {"train": {"epochs": 2}},
    "accumulation, clipping, augmentation": {
        "train": {"epochs": 2, "batch_size": 96, "accumulate": 3, "clip_norm": 1.0},
        "data": {"name": "digits", "augment": {"flip": True, "crop_padding": 1}},
    },
    "fp32": {"train": {"epochs": 2}, "precision": {"name": "fp32"}},
    "every augmentation, average of weights": {
        "train": {"epochs": 2, "batch_size": 64, "ema_decay": 0.99},
        "data": {"name": "digits", "augment": {"flip": True, "random_resized_crop": 0.3, "mixup": 0.2, "cutmix": 1.0}},
        "schedule": {"name": "onecycle"},
    },
    "bf16": {"train": {"epochs": 2}, "precision": {"name": "bf16"}},
    "tf32": {"train": {"epochs": 2}, "precision": {"name": "tf32"}},
    "o2": {"train": {"epochs": 2, "clip_norm": 1.0}, "precision": {"name": "o2"}},
    "o2 with batch norm and overrides": {
        "model": {"name": "resnet18"},
        "data": {"name": "synthetic", "size": 256, "val_size": 64},
        "train": {"epochs": 2},
        "precision": {"name": "o2", "overrides": ["layer4.*=float32"]},
    },
    "o3": {
        "train": {"epochs": 2, "clip_norm": 1.0},
        "optim": {"name": "sgd", "lr": 0.01},
        "precision": {"name": "o3", "scaler": {"dynamic": False, "init_scale": 128.0}},
    },
    "AlexNet at 227": {
        "model": {"name": "alexnet"},
        "data": {"name": "synthetic", "size": 512, "val_size": 128},
        "train": {"epochs": 2, "batch_size": 64},
    },
    "ResNet-18 with SGD": {
        "model": {"name": "resnet18"},
        "data": {"name": "synthetic", "size": 512, "val_size": 128},
        "optim": {"name": "sgd"},
        "train": {"epochs": 2},
    },
}


@pytest.mark.parametrize("name", JOBS)
def test_a_step_never_reads_the_host(name, tmp_path, monkeypatch):
    """G02: only the meter at log points, evaluation's one read and checkpoints wait for the device."""
    overrides = {"device": "cuda", "schedule": {"name": "cosine"}, "tracking": {"name": "none"}} | JOBS[name]
    overrides["train"] = {"log_every": 4} | overrides["train"]
    config = to_config(overrides)
    check(config, cuda_devices=1)
    parts = build.train_parts(config, run_dir=tmp_path, rank=Rank(device=torch.device("cuda", 0)), stop_requested=lambda: 0)
    allowed = forbid_host_reads(monkeypatch)
    state = TrainState()
    torch.cuda.set_sync_debug_mode("error")
    try:
        loop.fit(parts, state)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert state.step == parts.planned_steps
    assert allowed.count("read") <= math.ceil(state.step / 4) + 2
    assert math.isfinite(state.metrics["train/loss"])
    expected = {"fp32": ("float32", False), "tf32": ("tfloat32", False), "bf16": ("bfloat16", False)}.get(name, ("float16", True))
    assert (parts.effective["computed_dtype"], parts.effective["loss_scaling"]) == expected
    assert parts.effective["channels_last"] is True


def test_an_overflow_is_skipped_on_the_device(tmp_path):
    """A scale far too high: the first updates overflow for real, nothing moves, then training goes on."""
    config = to_config(
        {
            "device": "cuda",
            "tracking": {"name": "none"},
            "schedule": {"name": "cosine"},
            "precision": {"name": "amp", "scaler": {"init_scale": 2.0**40, "max_scale": 2.0**40}},
            "train": {"epochs": 3, "log_every": 1},
        }
    )
    parts = build.train_parts(config, run_dir=tmp_path, rank=Rank(device=torch.device("cuda", 0)), stop_requested=lambda: 0)
    state = TrainState()
    loop.fit(parts, state)
    skipped = state.step - state.updates
    assert skipped >= 10
    assert int(parts.schedule.updates) == state.updates
    assert parts.precision.loss_scale().item() == 2.0 ** (40 - skipped)
    assert all(torch.isfinite(p).all() for p in parts.model.parameters())


@pytest.mark.parametrize(("precision", "where"), [("amp", "forward"), ("o2", "forward"), ("bf16", "nowhere")])
def test_a_real_overflow_is_traced_to_its_module(tmp_path, precision, where):
    """Activations beyond 65504: float16 has no room for them, bfloat16 has."""
    settings = {"device": "cuda", "tracking": {"name": "none"}, "model": {"name": "resnet18"}, "precision": {"name": precision}}
    config = to_config(settings | {"data": {"name": "synthetic", "size": 64, "val_size": 16}, "train": {"epochs": 1, "batch_size": 32}})
    parts = build.train_parts(config, run_dir=tmp_path, rank=Rank(device=torch.device("cuda", 0)), stop_requested=lambda: 0)
    with torch.no_grad():
        parts.model.layer2[0].bn1.weight.fill_(1e5)
    parts.precision.refresh()
    report = examine(parts, next(iter(parts.data.train.epoch(0))))
    assert report["where"] == where
    if where == "forward":
        assert report["module"] == "layer2.0.bn1"
        assert report["largest_input"] < 65504
