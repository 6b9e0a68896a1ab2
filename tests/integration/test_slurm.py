"""SLURM without SLURM: stand-ins for its commands run the batch file, submitit's local executor a sweep."""

import json
import os
import signal
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import psutil
import pytest
import yaml

from .conftest import PROJECT, TINY
from .ends import LONG, wait_for

BATCH = PROJECT / "deploy" / "slurm.sbatch"


@pytest.fixture
def sbatch(shell, tmp_path):
    """Starts the batch file in the shell's directory; a requeue is noted in ``requeued``."""
    commands = {
        "srun": 'while [ "${1#--}" != "$1" ]; do shift; done; exec "$@"',
        "scontrol": 'case "$1" in show) echo localhost ;; *) echo "$@" >> "$REQUEUED" ;; esac',
    }
    for name, text in commands.items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{text}\n")
        (tmp_path / name).chmod(0o755)
    job = {"SLURM_JOB_ID": str(os.getpid()), "SLURM_JOB_NODELIST": "here", "SLURM_NNODES": "1"}
    env = shell.env | job | {"PATH": f"{tmp_path}:{os.environ['PATH']}", "PYTHON": sys.executable, "REQUEUED": str(tmp_path / "requeued")}

    def start(*args: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            ["bash", str(BATCH), *args], cwd=shell.directory, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )

    return start


def test_the_batch_file_is_valid():
    subprocess.run(["bash", "-n", str(BATCH)], check=True)


@pytest.mark.slow
def test_a_job_whose_time_is_up_is_requeued_and_goes_on(sbatch, shell, tmp_path):
    """I07, FAULTS row 4: SLURM signals torchrun and the ranks, which stop with a checkpoint, once."""
    run_dir: Path = shell.directory / "outputs" / f"slurm-{os.getpid()}"
    args = (*LONG, "device=cpu", "tracking=none")
    process = sbatch(*args)
    wait_for(lambda: list(run_dir.glob("checkpoints/step-*.pt")) or process.poll() is not None)
    for child in psutil.Process(process.pid).children(recursive=True):
        child.send_signal(signal.SIGUSR1)
    out, _ = process.communicate(timeout=90)
    result = json.loads((run_dir / "result.json").read_text())
    assert (result["status"], result["exit_code"]) == ("KILLED", 143), out
    assert "after step" in result["reason"]
    assert (tmp_path / "requeued").read_text() == f"requeue {os.getpid()}\n"
    process = sbatch(*args, f"train.max_steps={result['steps'] + 2}")
    out, _ = process.communicate(timeout=90)
    assert process.returncode == 0, out
    again = json.loads((run_dir / "result.json").read_text())
    assert (again["status"], again["steps"]) == ("FINISHED", result["steps"] + 2)
    assert again["resumed_from"] == str(run_dir / result["checkpoint"]["last"])


@pytest.mark.slow
@pytest.mark.skipif(find_spec("submitit") is None, reason="needs the extra slurm")
def test_a_sweep_by_submitit(shell):
    """C06, FAULTS row 28: the jobs run elsewhere; the table, the exit code and the directories are those of a sweep in this process."""
    args = (*TINY, "train.max_steps=1", "tracking=none", "model.num_classes=auto,3", "+tags.t='a b, c=d | é'")
    process = shell.start("src.train", "-m", "hydra/launcher=submitit_local", *args, "hydra.sweep.dir=sweep")
    out, err = process.communicate(timeout=120)
    assert process.returncode == 1, out + err
    results = [json.loads((shell.directory / "sweep" / number / "result.json").read_text()) for number in "01"]
    assert [result["exit_code"] for result in results] == [0, 2]
    config = yaml.safe_load((shell.directory / "sweep" / "0" / "run.yaml").read_text(encoding="utf-8"))
    assert config["tags"] == {"t": "a b, c=d | é"}
    assert [line.split()[-2] for line in out.splitlines() if line[:4] in ("0   ", "1   ")] == ["FINISHED", "FAILED"]
    assert results[1]["reason"] in out
    assert "Traceback" not in out + err
