"""Two gloo ranks that share the weights: the numbers of one process, and checkpoints that go both ways."""

import pytest
import torch

from src.checkpoint.load import load

from .conftest import TINY

FP32 = (
    *TINY, "precision=fp32", "optim=sgd", "optim.lr=0.02", "schedule=cosine", "train.accumulate=2", "train.clip_norm=1.0",
    "train.ema_decay=0.9", "device=cpu", "tracking=none",
)  # fmt: skip


@pytest.fixture(scope="module")
def single(shell):
    return shell.run("src.train", *FP32, "parallel=single", name="single").ok()


@pytest.fixture(scope="module")
def fsdp(shell):
    return shell.run("src.train", *FP32, "parallel=fsdp", name="fsdp").ok()


def checkpoint(run, step):
    return load(run.run_dir / f"checkpoints/step-{step:08d}.pt")


def assert_equal_state(one, two):
    """Same keys, shapes and, within rounding, values."""
    for part in ("model", "ema"):
        torch.testing.assert_close(one[part], two[part], atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(one["optimizer"]["state"], two["optimizer"]["state"], atol=1e-5, rtol=1e-4)
    assert [group["params"] for group in one["optimizer"]["param_groups"]] == [
        group["params"] for group in two["optimizer"]["param_groups"]
    ]


def test_the_same_numbers_for_one_rank_and_two_that_share(single, fsdp):
    """With accumulation, clipping at the norm of all shares, and an average of the weights that is evaluated."""
    for metric in ("train/loss", "train/grad_norm", "val/loss", "train/lr"):
        one, two = single.history(metric), fsdp.history(metric)
        assert [step for step, _ in one] == [step for step, _ in two]
        assert [value for _, value in one] == pytest.approx([value for _, value in two], abs=1e-5)
    assert single.history("val/accuracy") == fsdp.history("val/accuracy")
    assert fsdp.result["world_size"] == 2
    assert fsdp.result["effective"]["backend"] == "gloo"
    assert fsdp.result["effective"]["fused"] is True


def test_the_checkpoints_are_the_same(single, fsdp):
    assert_equal_state(checkpoint(single, 8), checkpoint(fsdp, 8))


@pytest.mark.parametrize(("before", "after"), [pytest.param("single", "fsdp", marks=pytest.mark.slow), ("fsdp", "single")])
def test_a_run_goes_on_in_the_other_mode(shell, request, before, after):
    """E03 and E17: from the checkpoint of the first epoch to where the undisturbed run ended."""
    source = request.getfixturevalue(before).run_dir / "checkpoints/step-00000004.pt"
    run = shell.run("src.train", *FP32, f"parallel={after}", f"resume='{source}'", name=f"{before}-{after}").ok()
    assert run.history("train/loss")[0][0] == 5
    assert_equal_state(checkpoint(run, 8), checkpoint(request.getfixturevalue("single"), 8))


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_with_two_ranks(shell, dtype):
    """The policy's half weights, float32 sums, and with float16 one scale on all ranks."""
    args = (*TINY, "parallel=fsdp", "precision=amp", f"precision.dtype={dtype}", "device=cpu", "tracking=none", "train.clip_norm=1.0")
    run = shell.run("src.train", *args, name=dtype).ok()
    assert run.result["precision"] == {"name": "amp", "dtype": dtype, "scaler": dtype == "float16"}
    assert run.result["updates"] == 8
    losses = [value for _, value in run.history("train/loss")]
    assert losses[-1] < losses[0]
    assert all(tensor.dtype == torch.float32 for tensor in checkpoint(run, 8)["model"].values())
