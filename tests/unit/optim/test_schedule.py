"""Learning rates against torch's own schedulers."""

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR, MultiStepLR, OneCycleLR, ReduceLROnPlateau

from src.config.schema import (
    AdamWConfig,
    ConstantConfig,
    CosineConfig,
    Mode,
    MultiStepConfig,
    OneCycleConfig,
    PlateauConfig,
    SGDConfig,
)
from src.optim import Schedule, build_optimizer
from src.optim.schedule import table


def torchs(make_scheduler, *, steps: int) -> list[float]:
    """Learning rates of a scheduler of torch over ``steps`` updates."""
    optimizer = torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=0.3)
    scheduler = make_scheduler(optimizer)
    rates = []
    for _ in range(steps):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return rates


@pytest.mark.parametrize(
    ("config", "make_scheduler"),
    [
        (CosineConfig(min_factor=0.1), lambda optimizer: CosineAnnealingLR(optimizer, T_max=50, eta_min=0.3 * 0.1)),
        (OneCycleConfig(), lambda optimizer: OneCycleLR(optimizer, max_lr=0.3, total_steps=51)),
        (OneCycleConfig(peak_fraction=0.61), lambda optimizer: OneCycleLR(optimizer, max_lr=0.3, total_steps=51, pct_start=0.61)),
        (MultiStepConfig(milestones=[2, 7], gamma=0.2), lambda optimizer: MultiStepLR(optimizer, milestones=[10, 35], gamma=0.2)),
    ],
)
def test_closed_forms_equal_torchs(config, make_scheduler):
    total = 51 if isinstance(config, OneCycleConfig) else 50
    expected = torchs(make_scheduler, steps=50)
    assert table(config, lr=0.3, total_updates=total, updates_per_epoch=5)[:50].tolist() == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("total", [1, 2, 3])
def test_one_cycle_of_a_very_short_run(total):
    rates = table(OneCycleConfig(), lr=1.0, total_updates=total, updates_per_epoch=1)
    assert torch.isfinite(rates).all()
    assert 0 < rates.min() <= rates.max() <= 1


@pytest.mark.parametrize("config", [ConstantConfig, OneCycleConfig, MultiStepConfig, PlateauConfig])
def test_every_schedule_takes_a_warmup(config):
    plain, warm = (table(config(warmup_steps=steps), lr=1.0, total_updates=40, updates_per_epoch=2) for steps in (0, 4))
    assert (warm[:4] / plain[:4]).tolist() == pytest.approx([0.25, 0.5, 0.75, 1.0])
    assert torch.equal(warm[4:], plain[4:])


def test_warmup_rises_linearly_and_then_leaves_the_schedule_alone():
    warm = table(CosineConfig(warmup_steps=5), lr=1.0, total_updates=25, updates_per_epoch=5)
    assert warm[:5].tolist() == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0])
    assert warm[5:].tolist() == pytest.approx(table(CosineConfig(), lr=1.0, total_updates=20, updates_per_epoch=5).tolist())


def make(config, *, fused="auto", total_updates=20):
    torch.manual_seed(0)
    model = nn.Linear(2, 2)
    optim = SGDConfig(lr=0.1, momentum=0.0, nesterov=False, fused=fused)
    optimizer = build_optimizer(optim, model)
    return model, optimizer, Schedule(config, optimizer, optim=optim, total_updates=total_updates, updates_per_epoch=5)


def step(model, optimizer):
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()


@pytest.mark.parametrize("fused", ["auto", False])
def test_each_real_update_uses_its_own_learning_rate(fused):
    model, optimizer, schedule = make(CosineConfig(), fused=fused, total_updates=10)
    seen = []
    for _ in range(12):
        step(model, optimizer)
        seen.append(float(optimizer.param_groups[0]["lr"]))
    expected = table(CosineConfig(), lr=0.1, total_updates=10, updates_per_epoch=5).tolist()
    assert seen == pytest.approx([*expected, expected[-1]], rel=1e-6, abs=1e-12)
    assert schedule.updates.item() == 12


def test_plateau_equals_torchs():
    values = [0.5, 0.6, 0.6, 0.6, 0.55, 0.7, 0.7, 0.7, 0.7, 0.7, 0.7]
    other = torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=0.1)
    scheduler = ReduceLROnPlateau(other, mode="max", patience=2, factor=0.5, threshold=0.0, min_lr=0.03)
    model, optimizer, schedule = make(PlateauConfig(patience=2, factor=0.5, min_lr=0.03))
    for value in values:
        schedule.on_evaluation(value, Mode.max)
        scheduler.step(value)
        step(model, optimizer)
        assert float(schedule.lr) == pytest.approx(other.param_groups[0]["lr"], rel=1e-6)


@pytest.mark.parametrize("config", [CosineConfig(warmup_steps=3), PlateauConfig(patience=0, factor=0.5), ConstantConfig()])
def test_resume_continues_the_learning_rates(config):
    """E08: the learning rate of every update equals the uninterrupted run's, through the optimizer's own state loading."""

    def run(model, optimizer, schedule, updates):
        rates = []
        for _ in range(updates):
            step(model, optimizer)
            rates.append(float(optimizer.param_groups[0]["lr"]))
            schedule.on_evaluation(1.0, Mode.min)
        return rates

    whole = run(*make(config), 8)
    for stop in range(1, 8):
        model, optimizer, schedule = make(config)
        first = run(model, optimizer, schedule, stop)
        states = optimizer.state_dict(), schedule.state_dict(), model.state_dict()
        model, optimizer, schedule = make(config)
        optimizer.load_state_dict(states[0])
        schedule.load_state_dict(states[1])
        model.load_state_dict(states[2])
        assert first + run(model, optimizer, schedule, 8 - stop) == whole


def test_biases_and_norms_are_not_decayed():
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(8, 2))
    decayed, plain = build_optimizer(AdamWConfig(weight_decay=0.1), model).param_groups
    assert {id(p) for p in decayed["params"]} == {id(model[0].weight), id(model[3].weight)}
    assert plain["weight_decay"] == 0.0
    assert len(plain["params"]) == 4
    assert len(build_optimizer(AdamWConfig(decay_all=True), model).param_groups) == 1


@pytest.mark.parametrize("ahead", [-3, 0, 4])
def test_a_plan_goes_on_at_another_place_than_the_count(ahead):
    """Six updates were made; the epochs have another length now, so the seventh is at place 6 + ahead of the new plan."""
    model, optimizer, schedule = make(CosineConfig(), total_updates=10)
    for _ in range(6):
        step(model, optimizer)
    schedule.plan(20, ahead=ahead)
    step(model, optimizer)
    assert float(schedule.lr) == pytest.approx(float(table(CosineConfig(), lr=0.1, total_updates=20, updates_per_epoch=5)[6 + ahead]))


def test_what_a_plateau_lowered_is_no_other_schedules():
    _, _, plateau = make(PlateauConfig(patience=0, factor=0.5))
    for _ in range(4):
        plateau.on_evaluation(0.5, Mode.max)
    model, optimizer, schedule = make(ConstantConfig())
    schedule.load_state_dict(plateau.state_dict())
    step(model, optimizer)
    assert float(schedule.lr) == pytest.approx(0.1)
