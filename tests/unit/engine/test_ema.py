"""The moving average of the weights, against a plain loop and torch's own average."""

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from src.checkpoint.load import load
from src.engine import loop, snapshot
from src.engine.ema import WeightAverage, copy_for_average
from src.engine.state import TrainState

from .conftest import assert_same

MOVED = torch.tensor([True])


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))


def change(model: nn.Module, number: int) -> None:
    torch.manual_seed(number)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter))
    model(torch.randn(8, 4))


def test_it_equals_torchs_once_warm():
    """Far beyond the warm-up the decay is the one asked for."""
    model = net()
    average = WeightAverage(model, copy_for_average(model), decay=0.9)
    reference = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9), use_buffers=True)
    reference.update_parameters(model)  # the first call copies
    for number in range(1, 6):
        change(model, number)
        average.update(torch.tensor([1000 + number]), moved=MOVED)
        reference.update_parameters(model)
    expected = reference.module.state_dict()
    for name, tensor in average.model.state_dict().items():
        if tensor.is_floating_point():
            torch.testing.assert_close(tensor, expected[name])
    assert torch.equal(average.model[1].num_batches_tracked, model[1].num_batches_tracked)


def test_early_on_it_follows_quickly():
    """The first update moves it by 1 - 2/11 of the way."""
    model = net()
    average = WeightAverage(model, copy_for_average(model), decay=0.999)
    before, _ = model[0].weight.detach().clone(), change(model, 1)
    average.update(torch.tensor([1]), moved=MOVED)
    torch.testing.assert_close(average.model[0].weight, torch.lerp(before, model[0].weight.detach(), 1 - 2 / 11))


def test_a_skipped_update_moves_nothing():
    model = net()
    average = WeightAverage(model, copy_for_average(model), decay=0.5)
    average.update(torch.tensor([1]), moved=MOVED)
    before = {name: tensor.clone() for name, tensor in average.model.named_parameters()}
    change(model, 1)
    average.update(torch.tensor([1]), moved=~MOVED)
    assert all(torch.equal(tensor, before[name]) for name, tensor in average.model.named_parameters())


def test_a_mask_with_infinities_stays_what_it_is():
    model = net()
    model.register_buffer("mask", torch.full((4, 4), -torch.inf).triu(1))
    average = WeightAverage(model, copy_for_average(model), decay=0.5)
    change(model, 1)
    average.update(torch.tensor([1]), moved=MOVED)
    assert torch.equal(average.model.mask, model.mask)


def test_it_takes_no_gradient_and_shares_no_memory():
    model = net()
    average = WeightAverage(model, copy_for_average(model), decay=0.5)
    assert not any(parameter.requires_grad for parameter in average.model.parameters())
    assert {p.data_ptr() for p in average.model.parameters()}.isdisjoint({p.data_ptr() for p in model.parameters()})


@pytest.mark.parametrize("saved", [True, False])
def test_a_resumed_average_is_the_checkpoints_or_begins_at_its_weights(make_parts, saved):
    first = make_parts(run="first", train={"epochs": 1} | ({"ema_decay": 0.5} if saved else {}))
    loop.fit(first, TrainState())
    payload = load(first.run_dir / "checkpoints/step-00000005.pt")
    parts = make_parts(run="second", train={"ema_decay": 0.5})
    snapshot.restore(parts, payload)
    assert_same(dict(parts.average.model.state_dict()), dict(payload["ema" if saved else "model"]))
