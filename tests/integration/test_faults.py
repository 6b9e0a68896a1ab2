"""FAULTS.md with two gloo ranks: what is injected, what the user is told, and that nothing is left behind."""

import json
import os
import re
import signal
import time

import psutil
import pytest
import torch

from src.checkpoint.load import load

from .conftest import TINY
from .ends import LONG, begin, check_end, end, outcomes_of, processes_of, signal_rank, wait_for

DDP = (*TINY, "parallel=ddp", "tracking.log_model=false")
NO_NOISE = re.compile(r"[Cc]onnection (reset|closed)|gloo", re.MULTILINE)


def test_an_exception_in_one_rank_is_shown_once_and_a_resume_goes_on(shell):
    """Row 3, B02, B04: rank 1's own traceback; the survivor does not wait, and its broken connection is nobody's business."""
    run = shell.run("src.train", *DDP, name="raise", HALFSTEP_FAULT="raise:1:7")
    check_end(run, code=1, status="FAILED", shell=shell)
    assert run.out.count("Traceback") == 1
    assert run.out.count("RuntimeError: injected by HALFSTEP_FAULT at step 7") == 2  # the cause, and the traceback's last line
    assert not NO_NOISE.search(run.out + run.err)
    failure = run.result["failure"]
    assert (failure["rank"], failure["step"], failure["signal"]) == (1, 6, None)
    assert "in strike" in failure["traceback"]
    assert "train/loss" in failure["metrics"]
    assert "resident" in failure["memory"]
    assert (run.run_dir / failure["log"]).read_text().count("Traceback") == 1
    tags = shell.client().get_run(run.result["tracking"]["run_id"]).data.tags
    assert (tags["failed_rank"], tags["failed_step"], tags["exit_code"]) == ("1", "6", "1")
    assert outcomes_of(run.run_dir)[1] == "FAILED"
    # the fault struck once, so the same command goes through now
    again = shell.run("src.train", *DDP, "resume=auto", name="raise", HALFSTEP_FAULT="raise:1:7").ok()
    assert again.result["tracking"]["run_id"] == run.result["tracking"]["run_id"]
    assert (again.result["steps"], again.result["failure"]) == (8, None)


def test_out_of_memory_ends_the_group_with_advice(shell):
    """Row 20."""
    run = shell.run("src.train", *DDP, "tracking=none", name="oom", HALFSTEP_FAULT="oom:1:3")
    check_end(run, code=8, status="FAILED")
    assert "lower train.batch_size" in run.result["reason"]
    assert "GiB" in run.result["failure"]["memory"]
    assert "Traceback" not in run.out
    failed, done = (run.run_dir / "ranks" / "1" / "outcome.json").stat().st_mtime, (run.run_dir / "result.json").stat().st_mtime
    assert done - failed < 10


def test_nan_in_one_ranks_batch_stops_all_ranks_together(shell):
    """Row 18 in ddp: in fp32 no NaN reaches the weights, and the step, the rank and the images are named."""
    args = (*DDP, "precision=fp32", "precision.scaler.max_consecutive_skips=1", "tracking=none")
    run = shell.run("src.train", *args, name="nan", HALFSTEP_FAULT="nan:1:6")
    check_end(run, code=4, status="FAILED")
    assert outcomes_of(run.run_dir) == {0: "FAILED", 1: "FAILED"}
    assert "from step 6 on" in run.result["reason"]
    assert "(rank 1)" in run.result["reason"]
    assert (run.result["steps"], run.result["updates"]) == (6, 5)
    weights = load(run.run_dir / run.result["checkpoint"]["last"])["model"]
    assert all(torch.isfinite(weight).all() for weight in weights.values())


def test_a_stopped_rank_is_a_hang_and_is_named(shell):
    """Row 22: the culprit is the rank that can't answer, not the healthy one that waits."""
    process, run_dir = begin(shell, "stopped", "parallel=ddp", "parallel.timeout_seconds=5", "tracking=none")
    signal_rank(run_dir, 0, signal.SIGSTOP)
    began = time.monotonic()
    run = end(process, run_dir)
    assert time.monotonic() - began < 25
    check_end(run, code=7, status="FAILED")
    assert run.result["failure"]["rank"] == 0
    assert "rank 0 is stopped by a signal" in run.result["reason"]
    assert "the stacks of ranks 1 are in" in run.result["reason"]
    assert "loop.py" in (run_dir / "ranks" / "1" / "rank.log").read_text()


def test_a_rank_that_does_not_listen_is_killed_after_the_grace(shell):
    """Row 7, and row 22 for a rank that sleeps: SIGUSR2 shows where both are, and the run goes on."""
    args = ("parallel=ddp", "parallel.grace_seconds=2", "tracking=none")
    process = shell.start("src.train", *LONG, *args, "hydra.run.dir=deaf", HALFSTEP_FAULT="hang:1:40")
    run_dir = shell.directory / "deaf"
    wait_for(lambda: (run_dir / ".fault").exists())
    process.send_signal(signal.SIGUSR2)
    logs = [run_dir / "ranks" / str(rank) / "rank.log" for rank in (0, 1)]
    wait_for(lambda: all("most recent call first" in log.read_text() for log in logs), seconds=10)
    assert "fault.py" in logs[1].read_text()
    assert len(processes_of(run_dir)) == 2
    began = time.monotonic()
    process.send_signal(signal.SIGTERM)
    run = end(process, run_dir)
    assert 2 <= time.monotonic() - began < 15
    check_end(run, code=143, status="KILLED")
    assert load(run_dir / run.result["checkpoint"]["last"])["state"]["step"] == 32  # the last epoch's


def test_a_fault_that_could_never_strike_is_refused(shell):
    """No rank is started for it."""
    run = shell.run("src.train", *DDP, "tracking=none", name="refused", HALFSTEP_FAULT="kill:2:3")
    check_end(run, code=2, status="FAILED")
    assert "HALFSTEP_FAULT=kill:2:3" in run.result["reason"]
    assert not outcomes_of(run.run_dir)


@pytest.mark.slow
def test_a_sleeping_rank_is_a_hang_and_is_named(shell):
    """Row 22: it has the oldest heartbeat; the stacks of both show it."""
    args = ("parallel.timeout_seconds=5", "tracking=none")
    run = shell.run("src.train", *DDP, *args, name="hang", HALFSTEP_FAULT="hang:1:6")
    check_end(run, code=7, status="FAILED")
    assert run.result["failure"]["rank"] == 1
    assert "fault.py" in (run.run_dir / "ranks" / "1" / "rank.log").read_text()
    again = shell.run("src.train", *DDP, *args, "resume=auto", name="hang", HALFSTEP_FAULT="hang:1:6").ok()
    assert again.result["steps"] == 8


@pytest.mark.slow
def test_a_rank_that_leaves_without_a_word_is_lost(shell):
    """Row 1, another way: exit code 3 is not an exit code of the contract here."""
    run = shell.run("src.train", *DDP, "tracking=none", name="exit", HALFSTEP_FAULT="exit:0:3")
    check_end(run, code=6, status="FAILED")
    assert run.result["reason"].startswith("rank 0 ended with exit code 3 without a word")
    assert not NO_NOISE.search(run.result["reason"])


@pytest.mark.slow
def test_a_slow_rank_is_named_and_the_run_completes(shell):
    """Row 21."""
    run = shell.run("src.train", *DDP, "tracking=none", "train.epochs=60", name="slow", HALFSTEP_FAULT="slow:1:3")
    check_end(run, code=0, status="FINISHED")
    assert run.out.count("rank 1 is slow") == 1
    assert "rank 0 is slow" not in run.out


@pytest.mark.slow
def test_a_full_disk_leaves_the_checkpoint_before(shell):
    """Row 8, through the hook: the temporary file is gone, the old checkpoint whole, and both ranks end together."""
    args = (*DDP, "tracking=none", "train.epochs=3")
    run = shell.run("src.train", *args, "save.max_failures=0", name="full", HALFSTEP_FAULT="enospc:0:7")
    check_end(run, code=5, status="FAILED")
    assert "No space left on device" in run.result["reason"]
    assert "the newest good one is" in run.result["reason"]
    assert outcomes_of(run.run_dir) == {0: "FAILED", 1: "FAILED"}
    assert run.result["checkpoint"]["last"] == "checkpoints/step-00000004.pt"
    again = shell.run("src.train", *args, "resume=auto", name="full").ok()
    assert again.result["steps"] == 12


@pytest.mark.slow
def test_one_failed_checkpoint_is_forgiven(shell):
    """Row 8: training goes on, and the next checkpoint is there."""
    run = shell.run("src.train", *DDP, "tracking=none", "train.epochs=3", name="forgiven", HALFSTEP_FAULT="enospc:0:7").ok()
    assert run.out.count("could not be written") == 1
    assert run.result["checkpoint"]["last"] == "checkpoints/step-00000012.pt"
    assert not (run.run_dir / "checkpoints/step-00000008.pt").exists()


@pytest.mark.slow
def test_ten_launches_at_once_never_clash(shell):
    """Row 19: every group has a port of its own."""
    processes = [shell.start("src.train", *DDP, "tracking=none", "train.max_steps=2", f"hydra.run.dir=ten-{n}") for n in range(10)]
    ends = [(process.communicate(timeout=280), process.returncode) for process in processes]
    assert [code for _, code in ends] == [0] * 10, ends
    assert all(json.loads((shell.directory / f"ten-{n}" / "result.json").read_text())["steps"] == 2 for n in range(10))


@pytest.mark.parametrize("parallel", ["single", pytest.param("ddp", marks=pytest.mark.slow)])
def test_a_killed_loader_process_is_named_and_ends_the_run(shell, image_folder, parallel):
    """No hang, and no traceback: the batch that it was to read never comes."""
    images = ("data=image_folder", f"data.root='{image_folder()}'", "data.loader=workers", "data.num_workers=2")
    args = (*images, "train.epochs=5000", "train.batch_size=4", "train.log_every=4", "tracking=none", f"parallel={parallel}")
    process = shell.start("src.train", *args, f"hydra.run.dir=loader-{parallel}")
    run_dir = shell.directory / f"loader-{parallel}"
    wait_for(lambda: list(run_dir.glob("checkpoints/step-*.pt")) or process.poll() is not None)
    launcher = psutil.Process(process.pid)
    ranks = [launcher] if parallel == "single" else [child for child in launcher.children() if child.environ()["RANK"] == "1"]
    workers = [child for child in ranks[0].children() if child.cmdline() == ranks[0].cmdline()]
    workers[0].kill()
    run = end(process, run_dir, timeout=60)
    check_end(run, code=6, status="FAILED")
    assert "a process that loads images died: DataLoader worker" in run.result["reason"]
    assert str(workers[0].pid) in run.result["reason"]  # torch says it in one of two ways
    assert "data.num_workers" in run.result["reason"]
    assert run.result["failure"]["rank"] == (0 if parallel == "single" else 1)
    assert "Traceback" not in run.out
    wait_for(lambda: not any(worker.is_running() for worker in workers), seconds=10)
    load(run_dir / run.result["checkpoint"]["last"])


@pytest.mark.parametrize(
    ("parallel", "number", "code"), [("single", signal.SIGINT, 130), pytest.param("ddp", signal.SIGTERM, 143, marks=pytest.mark.slow)]
)
def test_a_signal_to_all_processes_of_the_group_is_the_ranks_to_answer(shell, image_folder, parallel, number, code):
    """Ctrl-C in a terminal, and what torchrun's engine passes on: the processes that load images work until all is saved."""
    images = ("data=image_folder", f"data.root='{image_folder()}'", "data.loader=workers", "data.num_workers=2")
    args = (*images, "train.epochs=5000", "train.batch_size=4", "train.log_every=4", "tracking=none", f"parallel={parallel}")
    process = shell.start("src.train", *args, f"hydra.run.dir=all-{parallel}")
    run_dir = shell.directory / f"all-{parallel}"
    wait_for(lambda: list(run_dir.glob("checkpoints/step-*.pt")) or process.poll() is not None)
    descendants = psutil.Process(process.pid).children(recursive=True)
    os.killpg(process.pid, number)
    run = end(process, run_dir, timeout=60)
    check_end(run, code=code, status="KILLED")
    assert load(run_dir / run.result["checkpoint"]["last"])["state"]["step"] == run.result["steps"]
    wait_for(lambda: not any(child.is_running() for child in descendants), seconds=10)
