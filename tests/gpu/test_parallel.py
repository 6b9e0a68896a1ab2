"""On a real GPU: fsdp over NCCL in a group of one, and dp on every visible GPU."""

import copy
import math

import pytest
import torch
import torch.distributed as dist

from src import build
from src.config.checks import check
from src.config.runfile import to_config
from src.engine import loop
from src.engine.meter import Meter
from src.engine.state import TrainState
from src.parallel import probe
from src.runtime.rank import Rank

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype"),
    pytest.mark.filterwarnings("ignore:.*imbalance between your GPUs"),
]

GPU = torch.device("cuda", 0)
JOB = {
    "device": "cuda",
    "schedule": {"name": "cosine"},
    "tracking": {"name": "none"},
    "data": {"name": "digits"},
    "train": {"epochs": 2, "batch_size": 96, "accumulate": 2, "clip_norm": 1.0, "log_every": 4},
}
RESNET = {"model": {"name": "resnet18"}, "data": {"name": "synthetic", "size": 256, "val_size": 64}, "optim": {"name": "sgd", "lr": 0.01}}


@pytest.fixture
def group(monkeypatch):
    """NCCL in a group of one, over a store in this process."""
    original = dist.init_process_group

    def init_process_group(backend, **kwargs):
        original(backend, store=dist.HashStore(), rank=0, world_size=1, **{name: kwargs[name] for name in ("timeout", "device_id")})

    monkeypatch.setattr(dist, "init_process_group", init_process_group)
    yield
    if dist.is_initialized():
        dist.destroy_process_group()


def make(run_dir, **sections):
    config = to_config(JOB | sections)
    check(config, cuda_devices=torch.cuda.device_count())
    run_dir.mkdir()
    return build.train_parts(config, run_dir=run_dir, rank=Rank(device=GPU), stop_requested=lambda: 0)


def fit(parts):
    state = TrainState()
    loop.fit(parts, state)
    return state


@pytest.mark.parametrize("precision", ["fp32", "tf32", "amp", "bf16"])
@pytest.mark.parametrize("network", ["digits_cnn", "resnet18"])
def test_fsdp_never_reads_the_host_in_a_step(group, tmp_path, monkeypatch, precision, network):
    """Shards, the norm of all shares, the scaler's common flag and the fused update stay on the device."""
    sections = {"parallel": {"name": "fsdp", "num_processes": 1}, "precision": {"name": precision, "scaler": {"init_scale": 1024}}}
    parts = make(tmp_path / "run", **sections, **(RESNET if network == "resnet18" else {}))

    def relaxed(function):
        def call(*args, **kwargs):
            torch.cuda.set_sync_debug_mode("default")
            try:
                return function(*args, **kwargs)
            finally:
                torch.cuda.set_sync_debug_mode("error")

        return call

    monkeypatch.setattr(Meter, "read", relaxed(Meter.read))
    monkeypatch.setattr(loop, "evaluate", relaxed(loop.evaluate))
    monkeypatch.setattr(loop, "save", relaxed(loop.save))
    monkeypatch.setattr(type(parts), "evaluated", relaxed(type(parts).evaluated))
    torch.cuda.set_sync_debug_mode("error")
    try:
        state = fit(parts)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert state.step == parts.planned_steps == state.updates
    assert math.isfinite(state.metrics["train/loss"])
    assert parts.effective["backend"] == "nccl"
    assert parts.effective["fused"] is True


@pytest.mark.parametrize(("precision", "tolerance"), [("fp32", 1e-4), ("amp", 2e-2)])
def test_fsdp_trains_as_single_does(group, tmp_path, precision, tolerance):
    single = fit(make(tmp_path / "single", precision={"name": precision}))
    fsdp = fit(make(tmp_path / "fsdp", precision={"name": precision}, parallel={"name": "fsdp", "num_processes": 1}))
    for name in ("train/loss", "val/loss"):
        assert fsdp.metrics[name] == pytest.approx(single.metrics[name], rel=tolerance)


@pytest.mark.parametrize("precision", ["fp32", "amp", "bf16"])
def test_dp_trains_as_single_does(tmp_path, precision):
    """On one GPU it is single; on more the replicas compute in the mode's dtype and the gradients are those of the whole batch."""
    count = torch.cuda.device_count()
    size = {"train": JOB["train"] | {"batch_size": 48 * count}}
    single = fit(make(tmp_path / "single", precision={"name": precision}, **size))
    parts = make(tmp_path / "dp", precision={"name": precision}, parallel={"name": "dp"}, **size)
    dp = fit(parts)
    assert parts.effective["num_replicas"] == count
    assert dp.metrics["train/loss"] == pytest.approx(single.metrics["train/loss"], rel=1e-3 if precision == "fp32" else 5e-2)
    assert not any(name.startswith("module.") for name in parts.model.state_dict())


def test_the_probe_ends_within_seconds():
    """Either it answers or it says why not; it never hangs."""
    probe.refuse_stuck_replicas(1)


def test_the_probe_compares_gradients(monkeypatch):
    """Replicas that compute something else are found."""

    class Wrong(torch.nn.Module):
        def __init__(self, module, device_ids):
            super().__init__()
            self.inner = copy.copy(module)

        def forward(self, images):
            return 2 * self.inner(images)

    monkeypatch.setattr(probe, "DataParallel", Wrong)
    with pytest.raises(AssertionError):
        probe.replicate(1)
