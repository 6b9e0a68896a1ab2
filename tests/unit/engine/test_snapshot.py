"""Batch statistics that are each rank's own in mid-epoch: what looks at the mean over ranks gives them back."""

import pytest
import torch

from src.checkpoint.load import load
from src.engine import loop, snapshot
from src.engine.state import Parts, TrainState

MEAN = 7.0
"""What the statistics of all ranks are said to be on average."""


@pytest.fixture
def several_ranks(monkeypatch):
    """Statistics that differ in mid-epoch and become the mean where ranks average them."""

    def sync_buffers(parts):
        for buffer in snapshot.float_buffers(parts):
            buffer.fill_(MEAN)

    monkeypatch.setattr(snapshot, "differ", lambda parts, state: state.epoch_step > 0)
    monkeypatch.setattr(Parts, "sync_buffers", sync_buffers)


@pytest.mark.parametrize("ema_decay", [None, 0.9])
def test_a_run_that_ends_in_mid_epoch_evaluates_and_saves_the_mean_and_keeps_its_own(make_parts, request, monkeypatch, ema_decay):
    train = {"max_steps": 3, "ema_decay": ema_decay}
    alone = make_parts(run="alone", train=train)
    loop.fit(alone, TrainState())
    request.getfixturevalue("several_ranks")
    parts, evaluated, original = make_parts(train=train), [], loop.evaluate

    def evaluate(model, *args, **kwargs):
        evaluated.append([buffer.clone() for buffer in model.buffers() if buffer.is_floating_point()])
        return original(model, *args, **kwargs)

    monkeypatch.setattr(loop, "evaluate", evaluate)
    loop.fit(parts, TrainState())
    assert evaluated
    assert all(bool((buffer == MEAN).all()) for buffers in evaluated for buffer in buffers)
    own = snapshot.float_buffers(parts)
    assert all(map(torch.equal, own, snapshot.float_buffers(alone)))
    saved = load(parts.run_dir / "checkpoints/step-00000003.pt")
    assert bool((saved["model"]["2.running_var"] == MEAN).all())
    assert all(map(torch.equal, saved["ranks"][0]["buffers"], own))


@pytest.mark.usefixtures("several_ranks")
@pytest.mark.parametrize("eval_every", [1, 9])
def test_at_the_end_of_an_epoch_the_mean_stays(make_parts, eval_every):
    parts = make_parts(train={"epochs": 2, "max_steps": 5, "eval_every": eval_every})
    loop.fit(parts, TrainState())
    assert all(bool((buffer == MEAN).all()) for buffer in snapshot.float_buffers(parts))
