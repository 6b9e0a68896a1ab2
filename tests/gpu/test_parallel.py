"""On a real GPU: fsdp over NCCL in a group of one, and dp on every visible GPU."""

import copy
import math

import pytest
import torch

from src.parallel import probe
from tests.gpu.jobs import JOB, fit, forbid_host_reads, make

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype"),
    pytest.mark.filterwarnings("ignore:.*imbalance between your GPUs"),
]

RESNET = {"model": {"name": "resnet18"}, "data": {"name": "synthetic", "size": 256, "val_size": 64}, "optim": {"name": "sgd", "lr": 0.01}}


@pytest.mark.parametrize("precision", ["fp32", "tf32", "amp", "bf16"])
@pytest.mark.parametrize("network", ["digits_cnn", "resnet18"])
def test_fsdp_never_reads_the_host_in_a_step(group, tmp_path, monkeypatch, precision, network):
    """Shards, the norm of all shares, the scaler's common flag and the fused update stay on the device."""
    sections = {"parallel": {"name": "fsdp", "num_processes": 1}, "precision": {"name": precision, "scaler": {"init_scale": 1024}}}
    parts = make(tmp_path / "run", **sections, **(RESNET if network == "resnet18" else {}))

    forbid_host_reads(monkeypatch)
    torch.cuda.set_sync_debug_mode("error")
    try:
        state = fit(parts)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert state.step == parts.planned_steps == state.updates
    assert math.isfinite(state.metrics["train/loss"])
    assert parts.effective["backend"] == "nccl"
    assert parts.effective["fused"] is True


@pytest.mark.parametrize(("precision", "tolerance"), [("fp32", 1e-3), ("amp", 2e-2)])
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
