"""On a machine with two GPUs or more: the real commands, NCCL, and the same numbers as one GPU with the same global batch."""

import signal
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from src.checkpoint.load import load
from tests.integration.conftest import Shell
from tests.integration.ends import begin, check_end, end, processes_of, signal_rank

COUNT = torch.cuda.device_count()
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(COUNT < 2, reason="needs two GPUs")]

NETS = """
from torch import nn

def plain(num_classes, channels):
    body = [layer for width in (channels, 32, 64) for layer in (nn.Conv2d(width, max(32, min(64, 2 * width)), 3, padding=1), nn.ReLU())]
    return nn.Sequential(*body, nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(1024, num_classes))
"""
JOB = ("data=synthetic", "data.size=1920", "data.val_size=333", "optim=sgd", "optim.lr=0.05", "schedule=cosine", "train.clip_norm=1.0")
STEPS = ("train.batch_size=192", "train.epochs=2", "train.log_every=1", "tracking=none", "train.channels_last=false")
PLAIN = (*JOB, *STEPS, "train.accumulate=2", "model=custom", "model.factory=nets:plain")
BATCH_NORM = ("model=digits_cnn", "precision=fp32")
FIXED = "precision.scaler.init_scale=1024"
RUNS = {
    "single-fp32": (*PLAIN, "precision=fp32", "parallel=single"),
    "ddp-fp32": (*PLAIN, "precision=fp32", "parallel=ddp"),
    "fsdp-fp32": (*PLAIN, "precision=fp32", "parallel=fsdp"),
    "dp-fp32": (*PLAIN, "precision=fp32", "parallel=dp"),
    "torchrun-fp32": (*PLAIN, "precision=fp32", "parallel=ddp"),
    "single-amp": (*PLAIN, "precision=amp", "parallel=single", FIXED),
    "ddp-amp": (*PLAIN, "precision=amp", "parallel=ddp", FIXED),
    "fsdp-amp": (*PLAIN, "precision=amp", "parallel=fsdp", FIXED),
    "dp-amp": (*PLAIN, "precision=amp", "parallel=dp", FIXED),
    "dp-unscaled": (*PLAIN, "precision=amp", "parallel=dp", "precision.scaler.enabled=false"),
    "fp16-hook": (*PLAIN, "precision=fp32", "parallel=ddp", "parallel.comm_hook=fp16"),
    "bf16-hook": (*PLAIN, "precision=fp32", "parallel=ddp", "parallel.comm_hook=bf16"),
    "single-bn": (*JOB, *STEPS, *BATCH_NORM),
    "ddp-bn": (
        *JOB,
        *STEPS,
        "model=resnet18_cifar",
        "precision=fp32",
        "train.accumulate=1",
        "parallel=ddp",
        "parallel.sync_batchnorm=true",
    ),
}


@pytest.fixture(scope="module")
def shell(tmp_path_factory):
    directory = tmp_path_factory.mktemp("two gpus")
    (directory / "nets.py").write_text(NETS)
    found = Shell(directory)
    found.env["PYTHONPATH"] += f":{directory}"
    return found


@pytest.fixture(scope="module")
def runs(shell):
    """Every run of the table, four at a time."""

    def start(name):
        if name.startswith("torchrun"):
            command = ("--standalone", "--nproc-per-node", str(COUNT), "-m", "src.train", *RUNS[name])
            return shell.run("torch.distributed.run", *command, name=name)
        return shell.run("src.train", *RUNS[name], name=name)

    with ThreadPoolExecutor(4) as pool:
        return dict(zip(RUNS, pool.map(start, RUNS), strict=True))


def losses(run):
    return [value for _, value in run.ok().history("train/loss")]


def weights(run):
    return load(run.run_dir / run.result["checkpoint"]["last"])["model"]


@pytest.mark.parametrize("name", ["ddp-fp32", "ddp-amp", "fsdp-fp32", "torchrun-fp32"])
def test_every_gpu_is_used_without_being_asked_for(runs, name):
    result = runs[name].ok().result
    assert result["world_size"] == COUNT
    assert result["effective"]["backend"] == "nccl"


@pytest.mark.parametrize("name", ["dp-fp32", "dp-amp", "dp-unscaled"])
def test_dp_uses_every_gpu_in_one_process(runs, name):
    result = runs[name].ok().result
    assert result["world_size"] == 1
    assert result["effective"]["num_replicas"] == COUNT
    assert result["precision"]["scaler"] is (name == "dp-amp")
    assert result["precision"]["dtype"] == ("float32" if name == "dp-fp32" else "float16")


@pytest.mark.parametrize(
    ("name", "reference", "tolerance"),
    [
        ("ddp-fp32", "single-fp32", 1e-4),
        ("fsdp-fp32", "single-fp32", 1e-4),
        ("dp-fp32", "single-fp32", 1e-4),
        ("torchrun-fp32", "single-fp32", 1e-4),
        ("ddp-amp", "single-amp", 5e-3),
        ("fsdp-amp", "single-amp", 5e-3),
        ("dp-amp", "single-amp", 5e-3),
        ("dp-unscaled", "single-amp", 5e-3),
        ("fp16-hook", "single-fp32", 5e-3),
        ("bf16-hook", "single-fp32", 2e-2),
        ("ddp-bn", "single-bn", 1e-3),
    ],
)
def test_the_same_losses_as_one_gpu(runs, name, reference, tolerance):
    """A float16 number has 11 significant bits, a bfloat16 number 8; sums over ranks are in another order than over one batch."""
    assert losses(runs[name]) == pytest.approx(losses(runs[reference]), rel=tolerance)
    assert len(losses(runs[name])) == 20


def test_without_synchronisation_batch_statistics_are_those_of_each_gpu(runs):
    assert losses(runs["ddp-local-bn"]) != pytest.approx(losses(runs["single-bn"]), rel=1e-3)


@pytest.mark.parametrize("name", ["ddp-fp32", "fsdp-fp32", "dp-fp32", "torchrun-fp32"])
def test_the_same_weights_as_one_gpu(runs, name):
    expected = weights(runs["single-fp32"])
    found = weights(runs[name])
    assert found.keys() == expected.keys()
    for key in expected:
        torch.testing.assert_close(found[key], expected[key], atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize("name", ["ddp-amp", "fsdp-amp", "single-amp"])
def test_a_checkpoint_is_the_same_network_in_every_mode(runs, shell, name):
    """Saved in one mode, evaluated in the others."""
    checkpoint = f"checkpoint='{runs[name].ok().run_dir}'"

    def measure(mode):
        args = (checkpoint, "trust_code=true", "tracking=none", f"parallel={mode}")
        return shell.run("src.evaluate", *args, name=f"{name}-in-{mode}").ok().result

    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(measure, ("single", "ddp", "fsdp", "dp")))
    assert [result["count"] for result in found] == [333] * 4
    assert len({result["metrics"]["val/accuracy"] for result in found}) == 1
    assert [result["metrics"]["val/loss"] for result in found] == pytest.approx([found[0]["metrics"]["val/loss"]] * 4, rel=1e-3)


@pytest.mark.parametrize(("before", "after"), [("single-amp", "ddp"), ("ddp-amp", "single"), ("ddp-amp", "fsdp"), ("fsdp-amp", "dp")])
def test_a_run_goes_on_in_another_mode(runs, shell, before, after):
    args = [text for text in RUNS[before] if not text.startswith(("parallel=", "train.epochs"))]
    resumed = shell.run(
        "src.train", *args, "train.epochs=3", f"parallel={after}", f"resume='{runs[before].ok().run_dir}'", name=f"{before}-to-{after}"
    ).ok()
    assert resumed.result["steps"] == 30
    assert resumed.history("train/loss")[0][0] == 21


def used_memory():
    query = ("nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits")
    return [int(line) for line in subprocess.run(query, capture_output=True, text=True, check=True).stdout.split()]


AMP_DDP = ("precision=amp", "parallel=ddp", "model=resnet18", "data.pixels=64", "train.batch_size=256", "data.size=2048")


def test_a_killed_rank_ends_the_run(shell):
    """The survivor waits inside an NCCL collective, where no signal is heard."""
    before = used_memory()
    process, run_dir = begin(shell, "killed", *AMP_DDP)
    signal_rank(run_dir, 1, signal.SIGKILL)
    started = time.monotonic()
    run = end(process, run_dir)
    assert time.monotonic() - started < 30
    check_end(run, code=6, status="FAILED", shell=shell)
    assert "rank 1" in run.result["reason"]
    assert "SIGKILL" in run.result["reason"]
    time.sleep(2)
    assert all(now < then + 300 for now, then in zip(used_memory(), before, strict=True))  # MiB


def test_a_hung_rank_is_named(shell):
    process, run_dir = begin(shell, "hung", *AMP_DDP, "parallel.timeout_seconds=10")
    signal_rank(run_dir, 1, signal.SIGSTOP)
    run = end(process, run_dir)
    check_end(run, code=7, status="FAILED", shell=shell)
    assert "rank 1" in run.result["reason"]
    assert not processes_of(run_dir)
