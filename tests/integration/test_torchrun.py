"""Ranks started by somebody else's torchrun: the same numbers and the same files as when the program starts them."""

import os
import re
import signal
import socket
import subprocess

import psutil
import pytest
import yaml

from .conftest import TINY, Finished, Shell
from .ends import LONG, wait_for

ARGS = (*TINY, "precision=fp32", "optim=sgd", "optim.lr=0.02", "parallel=ddp", "device=cpu", "tracking.log_model=false")
CORES = len(os.sched_getaffinity(0))
TORCHRUN = ("--nproc-per-node", "2")
TRACKERS_FILES = {"confusion.png", "curves.png", "reliability.png", "system.jsonl", "tracking.json"}


def torchrun(shell: Shell, *args: str, name: str, torchrun: tuple[str, ...] = TORCHRUN, **env: str) -> Finished:
    return shell.run("torch.distributed.run", *torchrun, "-m", *args, name=name, **env)


def files(run: Finished) -> set[str]:
    return {path.relative_to(run.run_dir).as_posix() for path in run.run_dir.rglob("*")}


def errors(run: Finished) -> list[str]:
    return [line for line in run.err.splitlines() if line.startswith("error: ")]


@pytest.fixture(scope="module")
def own(shell):
    return shell.run("src.train", *ARGS, "tracking=none", name="own").ok()


@pytest.fixture(scope="module")
def adopted(shell):
    return torchrun(shell, "src.train", *ARGS, name="adopted").ok()


def test_the_same_numbers_and_files_as_with_our_own_ranks(own, adopted, shell):
    """C06, D01: its numbers bit for bit, one run in the store."""
    for metric in ("train/loss", "train/grad_norm", "val/loss", "val/accuracy", "train/lr"):
        assert adopted.history(metric) == own.history(metric)
    assert files(adopted) - TRACKERS_FILES == files(own)
    differing = {key for key, value in own.result.items() if value != adopted.result[key]}
    assert differing <= {"duration_seconds", "metrics", "peak_memory_bytes", "samples_per_second", "tracking"}
    assert [(run.info.run_id, run.info.status) for run in shell.runs()] == [(adopted.result["tracking"]["run_id"], "FINISHED")]
    configs = [yaml.safe_load((run.run_dir / "run.yaml").read_text()) | {"tracking": None} for run in (own, adopted)]
    assert configs[0] == configs[1]
    assert adopted.out.count("epoch   1/2") == adopted.out.count("run directory  ") == 1


@pytest.mark.slow
def test_two_machines(adopted, shell):
    """Two agents with a rank each: local ranks and threads are the machine's, the run directory is one."""
    with socket.create_server(("localhost", 0)) as free:
        port = free.getsockname()[1]
    agents = ("--nnodes", "2", "--nproc-per-node", "1", "--rdzv-backend", "c10d", "--rdzv-endpoint", f"localhost:{port}")
    command = ("torch.distributed.run", *agents, "-m", "src.train", *ARGS, "tracking=none", "hydra.run.dir=machines")
    processes = [shell.start(*command, OMP_NUM_THREADS="") for _ in range(2)]
    ends = [(process.communicate(timeout=120), process.returncode) for process in processes]
    assert [code for _, code in ends] == [0, 0], ends
    run = Finished(0, "", "", shell.directory / "machines")
    assert run.result["effective"]["threads_per_rank"] == CORES
    assert run.result["world_size"] == 2
    assert sorted(path.name for path in (run.run_dir / "ranks").iterdir()) == ["0", "1"]
    for metric in ("train/loss", "val/loss"):
        assert [value for _, value in run.history(metric)] == pytest.approx([value for _, value in adopted.history(metric)], abs=1e-5)


@pytest.mark.slow
def test_a_run_repeated_by_hand(adopted, shell):
    """From its run.yaml alone, into a directory of its own, and not into the store."""
    before = len(shell.runs())
    process = shell.start("torch.distributed.run", *TORCHRUN, "-m", "src.worker", str(adopted.run_dir / "run.yaml"))
    out, err = process.communicate(timeout=120)
    run = Finished(process.returncode, out, err, shell.directory / "adopted-repeat").ok()
    assert run.history("train/loss") == adopted.history("train/loss")
    assert run.result["tracking"]["run_id"] is None
    assert len(shell.runs()) == before


@pytest.mark.slow
def test_evaluation(adopted, shell):
    run = torchrun(shell, "src.evaluate", "checkpoint=adopted", "tracking=none", name="evaluated").ok()
    assert run.result["metrics"]["val/accuracy"] == adopted.result["best"]["value"]
    assert run.result["count"] == 30


def test_a_mistake_is_told_once_and_ends_all_ranks_with_2(shell):
    """C09: torchrun's own exit code is always 1, its report has the ranks'."""
    run = torchrun(shell, "src.train", *ARGS, "optim.lrr=1", name="refused")
    assert run.code == 1
    assert len(errors(run)) == 1
    assert re.findall(r"exitcode +: (-?\d+)", run.err) == ["2", "2"]
    assert not run.run_dir.exists()


def test_ranks_that_differ_do_not_begin(shell):
    """FAULTS row 27: a data set that is longer on one rank, and weights that each rank draws for itself."""
    (shell.directory / "uneven.py").write_text(UNEVEN)
    own_code = ("model=custom", "model.factory=uneven:net", "data=custom", "data.factory=uneven:data", "precision=fp32", "device=cpu")
    run = shell.run("src.train", *own_code, "parallel=ddp", "train.batch_size=8", "tracking=none", name="uneven")
    assert run.code == run.result["exit_code"] == 2
    assert "training images (40 on rank 0, 41 on rank 1)" in run.result["reason"]
    for name in ("data digest", "initial weights"):
        assert re.search(rf"{name} \(\w{{12}} on rank 0, \w{{12}} on rank 1\)", run.result["reason"])
    assert "config" not in run.result["reason"]
    assert run.result["steps"] == 0


def begin(shell: Shell, name: str) -> tuple[subprocess.Popen[str], list[psutil.Process]]:
    """A long run after its first checkpoint: torchrun and its ranks."""
    process = shell.start("torch.distributed.run", *TORCHRUN, "-m", "src.train", *LONG, "parallel=ddp", f"hydra.run.dir={name}")
    wait_for(lambda: list((shell.directory / name).glob("checkpoints/step-*.pt")) or process.poll() is not None)
    return process, psutil.Process(process.pid).children(recursive=True)


@pytest.mark.slow
def test_sigterm_ends_with_a_checkpoint(shell):
    """FAULTS row 4 without a launcher of ours."""
    process, ranks = begin(shell, "stopped")
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=90)
    run = Finished(process.returncode, out, err, shell.directory / "stopped")
    assert run.code == 1
    assert (run.result["status"], run.result["exit_code"]) == ("KILLED", 143)
    assert run.result["checkpoint"]["last"]
    assert shell.client().get_run(run.result["tracking"]["run_id"]).info.status == "KILLED"
    assert len(ranks) >= 2
    assert not any(rank.is_running() for rank in ranks)


@pytest.mark.slow
def test_a_killed_rank_is_named(shell):
    """FAULTS row 1: rank 0 closes the run; torchrun's report has the signal."""
    process, _ = begin(shell, "lost")
    rank = next(p for p in psutil.Process(process.pid).children() if p.environ().get("RANK") == "1")
    rank.kill()
    out, err = process.communicate(timeout=90)
    run = Finished(process.returncode, out, err, shell.directory / "lost")
    assert (run.result["status"], run.result["exit_code"], run.result["failure"]["rank"]) == ("FAILED", 6, 1)
    assert "rank 1 is gone without a word" in run.result["reason"]
    assert "SIGKILL" in err
    assert not list(run.run_dir.glob("ranks/*/heartbeat"))


@pytest.mark.slow
def test_a_killed_torchrun_leaves_no_rank_behind(shell):
    """B11, FAULTS row 2."""
    process, ranks = begin(shell, "orphans")
    process.kill()
    process.communicate()
    wait_for(lambda: not any(rank.is_running() for rank in ranks), seconds=5)


UNEVEN = """
import os

import torch
from torch import nn


class Noise:
    def __init__(self, size):
        self.targets = [index % 2 for index in range(size)]

    def __len__(self):
        return len(self.targets)

    def __getitem__(self, index):
        return torch.full((1, 8, 8), index % 256, dtype=torch.uint8), self.targets[index]


def data():
    return Noise(40 + int(os.environ["RANK"])), Noise(10)


def net(num_classes, channels):
    torch.manual_seed(int(os.environ["RANK"]))
    return nn.Sequential(nn.Conv2d(channels, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, num_classes))
"""
