"""Sweeps: one group of ranks, one directory and one MLflow run a job, whatever happens to the others."""

import json
import signal
import subprocess
import sys
import time

import pytest
import yaml

from .conftest import TINY


@pytest.fixture(scope="module")
def sweep(shell, image_folder):
    """Three jobs with two ranks each; the second one's data does not exist."""
    good = image_folder()
    process = shell.start(
        "src.train",
        "-m",
        "data=image_folder",
        f"data.root='{good}','{good}-missing','{good}'",
        "parallel=ddp",
        "parallel.num_processes=2",
        "train.epochs=1",
        "train.batch_size=4",
        "tracking.log_model=false",
        "hydra.sweep.dir=sweep",
    )
    out, err = process.communicate(timeout=240)
    return process.returncode, out, err, shell.directory / "sweep"


def test_a_failed_job_does_not_stop_the_others(sweep):
    """C11, FAULTS row 28."""
    code, out, err, directory = sweep
    assert code == 1, out + err
    results = [json.loads((directory / str(job) / "result.json").read_text()) for job in range(3)]
    assert [r["exit_code"] for r in results] == [0, 3, 0]
    assert "1 of 3" in out
    assert "-missing does not exist" in (directory / "1" / "train.log").read_text()
    assert "Traceback" not in out + err


def test_each_job_has_its_own_run_and_values(sweep, shell):
    """C02: the ranks get their job's config, never the sweep's."""
    directory = sweep[-1]
    runs = shell.runs()
    assert [run.info.status for run in runs] == ["FINISHED", "FAILED", "FINISHED"]
    roots = [yaml.safe_load((directory / str(job) / "run.yaml").read_text())["data"]["root"] for job in range(3)]
    assert [run.data.params["data.root"] for run in runs] == roots
    assert roots[1] == roots[0] + "-missing"
    for job in (0, 2):
        assert sorted(p.name for p in (directory / str(job) / "ranks").iterdir()) == ["0", "1"]


@pytest.mark.slow
def test_a_sweep_leaves_this_process_as_it_was(shell):
    """B13: neither the environment nor signal handlers change, and the objective reaches the sweeper."""
    script = """
import os, signal, sys
from src.sweep import app
from src.train import train
sys.argv = ["src.train", *sys.argv[1:]]
before = dict(os.environ), signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
code = app.run_app(train, config_name="config")
after = dict(os.environ), signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
assert before == after, set(before[0].items()) ^ set(after[0].items())
sys.exit(code)
"""
    arguments = [*TINY, "train.epochs=1", "train.max_steps=2", "seed=1,2", "parallel=ddp", "tracking=mlflow", "tracking.log_model=false"]
    command = [sys.executable, "-c", script, "-m", *arguments, "hydra.sweep.dir=env"]
    done = subprocess.run(command, cwd=shell.directory, env=shell.env, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_ctrl_c_ends_the_sweep(shell):
    """FAULTS row 28: the job under way ends with a checkpoint, no further job starts, exit 130."""
    where = shell.directory / "interrupted"
    arguments = ["-m", *TINY, "train.epochs=5000", "train.log_every=4", "seed=1,2,3", "tracking=none", "hydra.sweep.dir=interrupted"]
    process = shell.start("src.train", *arguments)
    deadline = time.monotonic() + 90
    while not list(where.glob("0/checkpoints/step-*.pt")) and process.poll() is None:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, out + err
    assert json.loads((where / "0" / "result.json").read_text())["status"] == "KILLED"
    assert not (where / "1").exists()
    assert "Traceback" not in out + err
