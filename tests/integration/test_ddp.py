"""Two gloo ranks: one run, and the same numbers as one process; started from a directory that is not the project's (B07)."""

import os

import pytest
import torch
import yaml

from src.checkpoint.load import load

from .conftest import TINY

FP32 = (*TINY, "precision=fp32", "optim=sgd", "optim.lr=0.02", "schedule=cosine", "train.clip_norm=1.0", "device=cpu")
CORES = len(os.sched_getaffinity(0))
NAME = "a b, c=d | é"


@pytest.fixture(scope="module")
def single(shell):
    return shell.run("src.train", *FP32, "parallel=single", "tracking=none", name="single").ok()


@pytest.fixture(scope="module")
def ddp(shell):
    return shell.run("src.train", *FP32, "parallel=ddp", f"name='{NAME}'", "tracking.log_model=false", name="ddp").ok()


def test_the_same_losses_for_one_and_two_ranks(single, ddp):
    """F13: one global batch, whatever the number of ranks."""
    for metric in ("train/loss", "train/grad_norm", "val/loss", "train/lr"):
        one, two = single.history(metric), ddp.history(metric)
        assert [step for step, _ in one] == [step for step, _ in two]
        assert [value for _, value in one] == pytest.approx([value for _, value in two], abs=1e-5)
    assert single.history("val/accuracy") == ddp.history("val/accuracy")


def test_the_same_weights_for_one_and_two_ranks(single, ddp):
    weights = [load(run.run_dir / run.result["checkpoint"]["last"])["model"] for run in (single, ddp)]
    assert weights[0].keys() == weights[1].keys()
    for name in weights[0]:
        torch.testing.assert_close(weights[0][name], weights[1][name], atol=1e-5, rtol=1e-4)


def test_one_run_whatever_the_world_size(ddp, shell):
    """D01: the launcher owns the run, rank 0 writes one point a step."""
    runs = [run for run in shell.runs() if run.data.tags["mlflow.runName"] == NAME]
    assert [run.info.run_id for run in runs] == [ddp.result["tracking"]["run_id"]]
    history = shell.client().get_metric_history(runs[0].info.run_id, "train/loss")
    assert [m.step for m in history] == list(range(1, 9))
    assert ddp.result["world_size"] == 2
    assert sorted(p.name for p in (ddp.run_dir / "ranks").iterdir()) == ["0", "1"]


def test_the_ranks_get_the_config_byte_for_byte(ddp, shell):
    """C06."""
    assert yaml.safe_load((ddp.run_dir / "run.yaml").read_text(encoding="utf-8"))["name"] == NAME
    assert NAME in {run.data.params["name"] for run in shell.runs()}


@pytest.mark.parametrize(("omp", "parallel", "threads"), [("", "single", CORES), ("", "ddp", max(1, CORES // 2)), ("3", "single", 3)])
def test_threads_are_shared_among_ranks(shell, omp, parallel, threads):
    """G06: all cores for one process, a share for each rank, or what the user says."""
    args = (*FP32, "tracking=none", "train.max_steps=1", f"parallel={parallel}")
    run = shell.run("src.train", *args, name=f"threads-{omp}-{parallel}", OMP_NUM_THREADS=omp).ok()
    assert run.result["effective"]["threads_per_rank"] == threads
    assert "OMP_NUM_THREADS" not in run.out + run.err


def test_the_true_error_of_a_rank_is_shown_once(shell, image_folder):
    """A rank that can't read an image: exit 3 with the path, and the other rank does not wait for ever (B02)."""
    root = image_folder()
    (root / "train" / "class_0" / "000.jpg").write_text("not an image")
    run = shell.run("src.train", "data=image_folder", f"data.root='{root}'", "parallel=ddp", "train.batch_size=4", name="broken")
    assert run.code == run.result["exit_code"] == 3
    assert run.result["status"] == "FAILED"
    assert str(root / "train" / "class_0" / "000.jpg") in run.result["reason"]
    assert run.out.count("not an image") + run.out.count("cannot identify") <= 1
    assert "Traceback" not in run.out + run.err
    assert shell.runs()[-1].info.status == "FAILED"
