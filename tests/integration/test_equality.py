"""Two and three gloo ranks train what one process trains, in every precision and with every way to exchange gradients."""

import json
import os
import socket
import subprocess
import sys

import pytest
import torch

from src.runtime.rank import Rank

from .conftest import PROJECT
from .ranks import train

BATCH, ACCUMULATE, STEPS = 24, 2, 20
PRECISIONS = {
    "fp32": {"name": "fp32"},
    "bf16": {"name": "amp"},
    "fp16": {"name": "amp", "dtype": "float16", "scaler": {"init_scale": 1024.0}},
}
SGD = {"name": "sgd", "lr": 0.05}
ADAMW = {"name": "adamw", "lr": 1e-3}


def job(precision, parallel, *, accumulate=ACCUMULATE, optim=SGD):
    return {
        "device": "cpu",
        "model": {"name": "custom", "factory": "tests.integration.ranks:plain"},
        "data": {"name": "synthetic", "size": BATCH * STEPS // 2, "val_size": 47, "classes": 4, "pixels": 8},
        "train": {"epochs": 2, "batch_size": BATCH, "accumulate": accumulate, "clip_norm": 1.0, "log_every": 1, "ema_decay": 0.9},
        "optim": optim,
        "schedule": {"name": "cosine"},
        "precision": PRECISIONS[precision],
        "parallel": parallel,
        "tracking": {"name": "none"},
    }


def jobs(world_size):
    """Everything that a group of this size trains."""
    ddp = {"name": "ddp", "num_processes": world_size}
    found = {f"ddp-{precision}": job(precision, ddp) for precision in PRECISIONS}
    found |= {"ddp-adamw": job("fp32", ddp, optim=ADAMW), "ddp-whole": job("fp32", ddp, accumulate=1)}
    if world_size == 2:
        fsdp = {"name": "fsdp", "num_processes": world_size}
        found |= {f"hook-{hook}": job("fp32", ddp | {"comm_hook": hook}) for hook in ("fp16", "bf16")}
        found |= {f"fsdp-{precision}": job(precision, fsdp) for precision in PRECISIONS}
        found |= {"fsdp-adamw": job("fp32", fsdp, optim=ADAMW)}
    return found


@pytest.fixture(scope="module")
def groups(tmp_path_factory):
    """World size -> job -> what rank 0 found."""
    folder = tmp_path_factory.mktemp("groups")
    found = {}
    for world_size in (2, 3):
        described, out = folder / f"jobs-{world_size}.json", folder / f"found-{world_size}.pt"
        described.write_text(json.dumps(jobs(world_size)))
        with socket.create_server(("localhost", 0)) as free:
            port = free.getsockname()[1]
        common = {"WORLD_SIZE": str(world_size), "LOCAL_WORLD_SIZE": str(world_size), "MASTER_ADDR": "localhost", "MASTER_PORT": str(port)}
        processes = [
            subprocess.Popen(
                [sys.executable, "-m", "tests.integration.ranks", str(described), str(out)],
                cwd=PROJECT,
                env=os.environ | common | {"RANK": str(rank), "LOCAL_RANK": str(rank), "OMP_NUM_THREADS": "1"},
                stderr=subprocess.PIPE,
                text=True,
            )
            for rank in range(world_size)
        ]
        ends = [process.communicate(timeout=200)[1] for process in processes]
        assert all(process.returncode == 0 for process in processes), "\n".join(ends)
        found[world_size] = torch.load(out)
    return found


@pytest.fixture(scope="module")
def single():
    """What one process computes, by precision, accumulation and optimizer; each trained once."""
    found = {}

    def run(precision, *, accumulate, optim=SGD):
        key = (precision, accumulate, optim["name"])
        if key not in found:
            found[key] = train(job(precision, {"name": "single"}, accumulate=accumulate, optim=optim), rank=Rank())
        return found[key]

    return run


def assert_same(one, other, *, tolerance):
    """Weights, losses, gradient norms and evaluations, within ``tolerance``."""
    assert one["steps"] == other["steps"] == one["updates"] == other["updates"] == STEPS
    assert one["dtype"] == other["dtype"]
    for name in ("train/loss", "train/grad_norm", "val/loss"):
        assert one["metrics"][name] == pytest.approx(other["metrics"][name], abs=tolerance, rel=tolerance)
    for name in ("train/accuracy", "val/accuracy", "train/lr"):
        assert one["metrics"][name] == other["metrics"][name]
    assert one["weights"].keys() == other["weights"].keys()
    for name, tensor in one["weights"].items():
        torch.testing.assert_close(other["weights"][name], tensor, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("world_size", [2, 3])
@pytest.mark.parametrize("precision", PRECISIONS)
def test_ddp_equals_one_process(groups, single, world_size, precision):
    """With accumulation, clipping and the loss scaler, after 20 steps.

    One process with as many micro-batches computes the same products, so only the order of float32 sums differs, in half precision
    too; but three ranks divide the loss by another number that is no power of two, which rounds half gradients differently.
    """
    one, other = single(precision, accumulate=ACCUMULATE * world_size), groups[world_size][f"ddp-{precision}"]
    exact = world_size == 2 or precision == "fp32"
    assert_same(one, other, tolerance=1e-6 if exact else 4 * torch.finfo(getattr(torch, one["dtype"])).eps)


@pytest.mark.parametrize("world_size", [2, 3])
def test_the_number_of_micro_batches_changes_nothing_in_fp32(groups, single, world_size):
    for name, accumulate in (("ddp-fp32", 1), ("ddp-whole", 1), ("ddp-whole", ACCUMULATE)):
        assert_same(single("fp32", accumulate=accumulate), groups[world_size][name], tolerance=1e-6)


@pytest.mark.parametrize("world_size", [2, 3])
def test_ddp_with_adamw(groups, single, world_size):
    """AdamW divides by the root of tiny second moments, which magnifies the rounding of a sum."""
    assert_same(single("fp32", accumulate=1, optim=ADAMW), groups[world_size]["ddp-adamw"], tolerance=1e-5)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_fsdp_equals_one_process(groups, single, precision):
    assert_same(single(precision, accumulate=2 * ACCUMULATE), groups[2][f"fsdp-{precision}"], tolerance=1e-6)


def test_fsdp_with_adamw(groups, single):
    assert_same(single("fp32", accumulate=1, optim=ADAMW), groups[2]["fsdp-adamw"], tolerance=1e-5)


@pytest.mark.parametrize(("hook", "dtype"), [("fp16", torch.float16), ("bf16", torch.bfloat16)])
def test_a_compressed_exchange_is_within_its_formats_error(groups, single, hook, dtype):
    """20 clipped steps of lr 0.05 with momentum 0.9 move a weight by at most 10 in all; each gradient is off by at most its last digit."""
    exact, found = single("fp32", accumulate=1)["weights"], groups[2][f"hook-{hook}"]["weights"]
    off = max(float((found[name] - exact[name]).abs().max()) for name in exact)
    assert 0 < off < 10 * torch.finfo(dtype).eps
