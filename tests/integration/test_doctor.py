"""``python -m src.doctor``: what it shows, its exit codes, and that it leaves nothing behind."""

import os
import signal

import psutil
import pytest

from src.sweep.directory import claim_given

from .conftest import Shell
from .ends import wait_for


def doctor(shell, *args: str, **env: str) -> tuple[int, str, str]:
    process = shell.start("src.doctor", *args, **env)
    out, err = process.communicate(timeout=240)
    assert list(shell.directory.iterdir()) == []
    return process.returncode, out, err


def test_the_machine(shell):
    """The question of the articles, "does my card support fp16 well?", has an answer on any machine."""
    code, out, err = doctor(shell)
    assert code == 0, err
    for word in ("CPU features", "\namp ", "\no3 ", "\nddp ", "the speed of float32"):
        assert word in out


def test_the_coverage(shell):
    code, out, err = doctor(shell, "doctor.check=coverage", "device=cpu", "data.image_size=8", "precision.overrides=['head=float32']")
    assert code == 0, err
    rows = {line.split()[0]: line.split()[1:3] for line in out.splitlines() if line}
    assert rows["conv2"] == ["convolution", "bfloat16"]
    assert rows["head"] == ["matmul", "float32"]
    assert "times as fast" in out


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("doctor.check=coverge", "doctor.check"),
        ("precision.overrides=['layer9=float32']", "layer9"),
        ("data.image_size=7", "data.image_size=7"),
    ],
)
def test_a_mistake_is_the_users_to_fix(shell, typed, said):
    """Exit code 2 and a few lines, whether the pre-flight finds it or the network does."""
    code, _, err = doctor(shell, "doctor.check=coverage" if "doctor" not in typed else "device=cpu", typed)
    assert code == 2
    assert said in err
    assert "Traceback" not in err
    assert len(err.splitlines()) <= 10


PROOF = ("doctor.check=resume_proof", "device=cpu", "data=synthetic", "data.pixels=8", "data.classes=4", "train.batch_size=16")

FORGETFUL = """
import numpy as np
from torch import nn

own = np.random.default_rng(0)


class Noise(nn.Module):
    def forward(self, images):
        return images + float(own.normal()) if self.training else images


def net(num_classes, channels):
    return nn.Sequential(Noise(), nn.Flatten(), nn.Linear(channels * 64, num_classes))
"""


def test_exact_resume_is_proved_on_the_users_own_config(shell):
    """Half weights with a scaler, an average of the weights, momentum and a rate that follows the metric: each step, bit for bit."""
    settings = ("precision=o2", "precision.dtype=float16", "train.ema_decay=0.9", "optim=sgd", "schedule=plateau", "train.accumulate=2")
    code, out, err = doctor(shell, *PROOF, *settings, "tracking=both")
    assert code == 0, out + err
    assert "Again from the checkpoint of step 6." in out
    assert "Proved: resumed after step 6, steps 7 to 10 equal those of a run that went straight on, bit for bit: 4 checkpoints" in out
    compared = {line.split()[0]: line.split()[1:] for line in out.splitlines() if line.count(" ") > 5 and line[0].islower()}
    assert {"model", "ema", "optimizer", "schedule", "precision", "state", "ranks"} <= compared.keys()
    assert int(compared["ema"][0]) == int(compared["model"][0]) > 0


@pytest.mark.slow
def test_a_network_with_random_numbers_of_its_own_is_found_out(shell, tmp_path):
    """The first step after the resume is named, and what may be the cause."""
    (tmp_path / "forgetful.py").write_text(FORGETFUL)
    code, out, err = doctor(
        shell, *PROOF, "model=custom", "model.factory=forgetful:net", PYTHONPATH=f"{tmp_path}:{shell.env['PYTHONPATH']}"
    )
    assert code == 5, out + err
    (line,) = err.splitlines()
    assert line.startswith("error: the resumed run diverges: step 7, model/2.weight: ")
    assert "at that step also optimizer" in line
    assert "random numbers from elsewhere than torch, numpy and random" in line


@pytest.mark.slow
def test_a_run_that_fails_gives_its_own_error_and_exit_code(shell):
    code, _, err = doctor(shell, "doctor.check=resume_proof", "data=image_folder", "data.root=/nowhere")
    assert code == 3
    (line,) = err.splitlines()
    assert line.startswith("error: the run that goes straight on ended with exit code 3: data.root=/nowhere does not exist")


@pytest.mark.slow
def test_ctrl_c_ends_the_proof_and_its_run(shell, tmp_path):
    """Exit code 130, no temporary directory, no process left."""
    process = shell.start("src.doctor", *PROOF, "data.subset=100000", "data.size=100000", "train.batch_size=2", TMPDIR=str(tmp_path))
    wait_for(lambda: list(tmp_path.glob("*/straight/checkpoints/step-*.pt")))
    child = psutil.Process(process.pid).children()[0]
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, out + err
    assert not child.is_running()
    assert not list(tmp_path.glob("halfstep*"))
    assert "Traceback" not in out + err


def test_runs_of_dead_processes_are_closed_and_the_living_left_alone(tmp_path):
    """One run whose directory nobody holds, one of this very process, one whose directory can't be seen from here."""
    shell = Shell(tmp_path)
    experiment = shell.client().create_experiment("any", artifact_location=str(tmp_path))
    tags = {name: {"halfstep.run_dir": str(tmp_path / name), "host.name": "box"} for name in ("dead", "alive", "hidden")}
    ids = {name: shell.client().create_run(experiment, tags=own).info.run_id for name, own in tags.items()}
    claim_given(tmp_path / "dead", resuming=False, key="").release()
    with claim_given(tmp_path / "alive", resuming=False, key=""):
        process = shell.start("src.doctor", "doctor.check=runs")
        out, err = process.communicate(timeout=120)
    assert process.returncode == 0, out + err
    assert out.startswith("3 runs were RUNNING in sqlite:///")
    rows = {line.split()[0]: line for line in out.splitlines() if line}
    assert "its process is gone: closed as KILLED" in rows[ids["dead"]]
    assert f"running, process {os.getpid()} " in rows[ids["alive"]]
    assert "can't be judged from here" in rows[ids["hidden"]]
    for name in tags:
        assert "box" in rows[ids[name]]
    statuses = {name: shell.client().get_run(run_id).info.status for name, run_id in ids.items()}
    assert statuses == {"dead": "KILLED", "alive": "RUNNING", "hidden": "RUNNING"}


def test_a_store_that_is_away_is_exit_75_in_one_line(shell):
    """A server that nobody runs, and a file that does not exist and is not created."""
    for uri in ("http://127.0.0.1:9", "sqlite:///nowhere.db"):
        code, _, err = doctor(shell, "doctor.check=runs", f"tracking.uri={uri}")
        assert code == 75
        (line,) = err.splitlines()
        assert "tracking.uri=" in line
