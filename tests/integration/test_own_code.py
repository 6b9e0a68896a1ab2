"""Networks and data of the user's own, started from the user's own folder, with two ranks where that matters."""

import json

import pytest

from src.checkpoint.load import load

MINE = """
import numpy as np
import torch
from torch import nn


def net(num_classes, channels, width=8, unused=False, half=False):
    layers = [nn.Conv2d(channels, width, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.BatchNorm1d(width)]
    model = nn.Sequential(*layers, nn.Linear(width, num_classes))
    if unused:
        model.register_parameter("spare", nn.Parameter(torch.zeros(3)))
    return model.half() if half else model


class Stripes:
    classes = ["down", "across"]

    def __init__(self, size):
        self.targets = [index % 2 for index in range(size)]

    def __len__(self):
        return len(self.targets)

    def __getitem__(self, index):
        noise = np.random.default_rng(index).integers(0, 60, (8, 8, 3))
        light = 150 * (np.arange(8) % 2)
        stripes = light[None, :] if self.targets[index] == 0 else light[:, None]
        return (noise + stripes[:, :, None]).astype(np.uint8), self.targets[index]


def stripes(train=32, val=10):
    return Stripes(train), Stripes(val)


class Stream(torch.utils.data.IterableDataset):
    def __iter__(self):
        yield torch.zeros(3, 8, 8, dtype=torch.uint8), 0


def stream():
    return Stream(), None
"""

OWN = ("model=custom", "model.factory=mine:net", "data=custom", "data.factory=mine:stripes", "precision=fp32", "device=cpu")
SHORT = ("train.epochs=2", "train.batch_size=8", "train.log_every=1", "optim.lr=0.01", "tracking=none")
TWO = ("parallel=ddp", "parallel.num_processes=2")


@pytest.fixture(scope="module")
def job(shell):
    (shell.directory / "mine.py").write_text(MINE)
    settings = ("+model.kwargs.width=12", "train.early_stop_patience=2", "train.epochs=30", "+data.kwargs.val=9")
    return shell.run("src.train", *OWN, *SHORT, *settings, *TWO, name="own").ok()


def test_two_ranks_train_a_net_of_the_users_own(job):
    payload = load(job.run_dir / "checkpoints" / "best.pt")
    assert payload["model"]["0.weight"].shape == (12, 3, 3, 3)
    assert payload["class_names"] == ["down", "across"]
    assert job.result["world_size"] == 2
    assert json.loads((job.run_dir / "evaluation.json").read_text())["count"] == 9


def test_both_ranks_end_early_together(job):
    """B06: the same last step on every rank, and exit code 0."""
    outcomes = [json.loads((job.run_dir / "ranks" / str(rank) / "outcome.json").read_text()) for rank in range(2)]
    assert len({outcome["result"]["steps"] for outcome in outcomes}) == 1
    assert all(outcome["status"] == "FINISHED" for outcome in outcomes)
    assert job.result["stopped_early"]  # nine images can become better nine times, with one bad evaluation between
    assert job.result["epochs"] < 30
    assert "stopped early: no better val/accuracy in 2 evaluations" in job.out


def test_the_checkpoints_code_runs_only_on_demand(job, shell):
    """C19: rebuilt with width 12, it gives the run's own accuracy."""
    refused = shell.run("src.evaluate", "checkpoint=own", name="refused")
    assert refused.code == 2
    assert "model.factory=mine:net is code that the checkpoint names; add trust_code=true" in refused.err
    assert not refused.run_dir.exists()
    evaluated = shell.run("src.evaluate", "checkpoint=own", "trust_code=true", "tracking=none", "parallel=single", name="trusted").ok()
    assert evaluated.result["metrics"]["val/accuracy"] == job.result["objective"]["value"]


@pytest.mark.parametrize(
    ("settings", "code", "text"),
    [
        (
            ("+model.kwargs.unused=true", *TWO),
            2,
            "parameters: spare; remove them from the network or set parallel.find_unused",
        ),
        (("+model.kwargs.half=true", "precision=amp"), 2, "but precision=amp needs float32 weights"),
        (("data.factory=mine:stream",), 2, "data.factory=mine:stream"),
        (("+data.kwargs.train=9", "train.batch_size=1"), 2, "batch norm needs two"),
    ],
    ids=["B15-unused", "A07-half", "B05-no-length", "F12-lone"],
)
def test_what_can_not_work_says_why(job, shell, request, settings, code, text):
    """Seconds after the start, in one line, without a traceback."""
    run = shell.run("src.train", *OWN, *SHORT, *settings, name=request.node.callspec.id)
    assert (run.code, run.result["exit_code"]) == (code, code)
    assert text in run.result["reason"]
    assert run.out.count(run.result["reason"]) == 1
    assert "Traceback" not in run.out + run.err


@pytest.mark.slow
def test_unused_parameters_and_a_lone_last_image_are_fine_when_asked_for(job, shell):
    """B15, F12: 10 images, batches of 4 on two ranks: two are left over and dropped."""
    settings = ("+model.kwargs.unused=true", "parallel.find_unused_parameters=true", "+data.kwargs.train=10", "train.batch_size=4")
    run = shell.run("src.train", *OWN, *SHORT, *settings, *TWO, name="allowed").ok()
    assert run.result["steps"] == 4
