"""parallel.max_restarts: a fresh group goes on from the last checkpoint, in the same MLflow run."""

import pytest
import torch

from src.checkpoint.load import load

from .conftest import TINY
from .ends import check_end

ARGS = (*TINY, "parallel=ddp", "tracking.log_model=false", "precision.dtype=float16", "precision.scaler.init_scale=16", "schedule=constant")


@pytest.fixture(scope="module")
def undisturbed(shell):
    return shell.run("src.train", *ARGS, "tracking=none", name="undisturbed").ok()


@pytest.mark.slow
def test_a_killed_rank_costs_time_only(shell, undisturbed):
    """Row 1: same weights bit for bit, every step once in the MLflow run, one restart on record."""
    run = shell.run("src.train", *ARGS, "parallel.max_restarts=1", name="killed", HALFSTEP_FAULT="kill:1:7")
    check_end(run, code=0, status="FINISHED", shell=shell)
    assert run.result["restarts"] == 1
    assert "rank 1 was killed by signal 9" in run.out
    assert "restart 1 of 1" in run.out
    states = [load(r.run_dir / r.result["checkpoint"]["last"]) for r in (undisturbed, run)]
    assert states[0]["state"]["step"] == states[1]["state"]["step"] == 8
    for name, weight in states[0]["model"].items():
        assert torch.equal(weight, states[1]["model"][name]), name
    assert states[0]["precision"] == states[1]["precision"]
    assert undisturbed.history("train/loss") == run.history("train/loss")
    (run_id,) = [r.info.run_id for r in shell.runs()]
    assert sorted(m.step for m in shell.client().get_metric_history(run_id, "train/loss")) == list(range(1, 9))
    assert shell.client().get_run(run_id).data.tags["restarts"] == "1"


@pytest.mark.slow
def test_a_failure_before_the_first_checkpoint_begins_anew(shell, undisturbed):
    run = shell.run("src.train", *ARGS, "tracking=none", "parallel.max_restarts=3", name="early", HALFSTEP_FAULT="raise:0:2")
    check_end(run, code=0, status="FINISHED")
    assert run.result["restarts"] == 1
    assert undisturbed.history("train/loss") == run.history("train/loss")


@pytest.mark.slow
@pytest.mark.parametrize(("fault", "code"), [("oom:1:3", 8), ("nan:1:3", 4)])
def test_what_would_only_come_back_is_not_tried_again(shell, fault, code):
    args = (*ARGS, "precision=fp32", "precision.dtype=auto", "precision.scaler.max_consecutive_skips=1", "tracking=none")
    run = shell.run("src.train", *args, "parallel.max_restarts=2", name=f"no-{code}", HALFSTEP_FAULT=fault)
    check_end(run, code=code, status="FAILED")
    assert run.result["restarts"] == 0


@pytest.mark.slow
def test_a_hang_is_worth_a_restart(shell):
    args = (*ARGS, "tracking=none", "parallel.timeout_seconds=5", "parallel.max_restarts=1")
    run = shell.run("src.train", *args, name="hang", HALFSTEP_FAULT="hang:0:6")
    check_end(run, code=0, status="FINISHED")
    assert (run.result["restarts"], run.result["steps"]) == (1, 8)
