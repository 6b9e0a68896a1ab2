"""Accumulation, the gate and the learning rates of real updates, through whole small runs."""

import math
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.optim.lr_scheduler import CosineAnnealingLR

from src.config.schema import Compile, ConstantConfig, CosineConfig, Dtype, PrecisionConfig, SGDConfig
from src.data.base import Batch, Mixed
from src.engine import loop
from src.engine.forward import Forward
from src.engine.meter import Meter
from src.engine.state import TrainState
from src.engine.step import forward_backward, training_loss, update
from src.models import MODELS
from src.models.digits_cnn import DigitsCNN
from src.optim import Schedule, build_optimizer
from src.precision import build_precision

from .conftest import change_batches, history, weights

SGD = {"name": "sgd", "lr": 0.1, "weight_decay": 0.0}


def with_model(parts, model, optim):
    """The same run with another model and optimizer."""
    optimizer = build_optimizer(optim, model)
    schedule = Schedule(ConstantConfig(), optimizer, optim=optim, total_updates=parts.planned_steps, updates_per_epoch=5)
    forward = Forward(model, Compile.none, fallback=False)
    return replace(parts, model=model, wrapped=model, forward=forward, optimizer=optimizer, schedule=schedule, meter=Meter(parts.parallel))


@pytest.mark.parametrize("accumulate", [2, 4, 8])
def test_micro_batches_equal_one_batch(make_parts, monkeypatch, accumulate):
    """Loss, accuracy and weights; the net has no batch norm and no dropout, which can't be equal."""
    spec = MODELS["digits_cnn"]
    monkeypatch.setitem(MODELS, "digits_cnn", replace(spec, build=lambda classes, channels, size: DigitsCNN(classes, channels=channels)))
    runs = []
    for number in (1, accumulate):
        parts = make_parts(run=f"x{number}", optim=SGD, train={"accumulate": number, "epochs": 3})
        loop.fit(parts, TrainState())
        runs.append(parts)
    whole, pieces = runs
    torch.testing.assert_close(weights(pieces), weights(whole), rtol=1e-5, atol=1e-6)
    for name in ("train/loss", "train/accuracy", "val/loss", "train/grad_norm"):
        expected = history(whole, name)
        assert len(expected) >= 3
        assert history(pieces, name) == pytest.approx(expected, rel=1e-4, abs=1e-6)


def test_the_last_short_window_is_divided_by_its_own_length(make_parts, monkeypatch):
    """A14: five micro-batches of ones, accumulate 4; both steps see a gradient of 1.0, not 1.0 and 0.25."""
    parts = make_parts(data={"size": 20}, train={"batch_size": 16, "accumulate": 4, "epochs": 1})
    assert parts.data.train.steps_per_epoch == parts.planned_steps == 2
    change_batches(parts, lambda batch, number: replace(batch, images=torch.ones(len(batch.labels), 1)))
    parts = with_model(parts, nn.Linear(1, 1, bias=False), SGDConfig(lr=0.1, momentum=0.0, nesterov=False))
    monkeypatch.setattr(F, "cross_entropy", lambda logits, labels, **kwargs: logits.mean())
    seen = []
    parts.optimizer.register_step_pre_hook(lambda *args: seen.append(parts.model.weight.grad.item()))
    windows = list(parts.data.train.epoch(0))
    assert [(batch.window, batch.last) for batch in windows] == [(4, False)] * 3 + [(4, True), (1, True)]
    state = TrainState()
    loop.train_epoch(parts, state, loop.EpochTotals())
    assert seen == [1.0, 1.0]
    assert (state.step, int(parts.schedule.updates)) == (2, 2)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_one_step_equals_the_textbook_one(make_parts, smoothing):
    """float64 torch as the oracle: loss, norm, clipping and the update."""
    parts = make_parts(train={"label_smoothing": smoothing, "clip_norm": 0.05}, optim=SGD | {"momentum": 0.0, "nesterov": False})
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 3))
    reference = nn.Sequential(nn.Flatten(), nn.Linear(64, 3)).double()
    reference.load_state_dict(model.state_dict())
    parts = with_model(parts, model, parts.config.optim)
    batch = next(parts.data.train.epoch(0))
    loss = F.cross_entropy(reference(batch.images.double()), batch.labels, label_smoothing=smoothing)
    loss.backward()
    norm = nn.utils.clip_grad_norm_(reference.parameters(), 0.05)
    torch.optim.SGD(reference.parameters(), lr=0.1).step()

    forward_backward(parts, batch)
    update(parts, 1, sample=True)
    reading = parts.meter.read(stop=0)
    assert norm > 0.05
    assert reading.loss == pytest.approx(loss.item(), rel=1e-6)
    assert reading.grad_norm == pytest.approx(norm.item(), rel=1e-5)
    torch.testing.assert_close({n: p.double() for n, p in weights(parts).items()}, reference.state_dict(), rtol=0, atol=1e-6)
    assert all(p.grad is None for p in model.parameters())


@pytest.mark.parametrize(("name", "dtype"), [("fp32", Dtype.auto), ("amp", Dtype.bfloat16), ("amp", Dtype.float16)])
@pytest.mark.parametrize("fused", ["auto", False])
def test_a_skipped_update_costs_no_learning_rate(make_parts, nan_losses, name, dtype, fused):
    """A02: update 0 overflows; the real updates use the schedule's first rates, one skip is counted, torch warns of no order."""
    parts = make_parts(
        schedule={"name": "cosine"}, train={"epochs": 1}, precision={"name": name}, optim={"name": "sgd", "lr": 0.1, "fused": fused}
    )
    parts.precision = build_precision(replace(PrecisionConfig(name=name, dtype=dtype)), device=parts.rank.device)
    if parts.precision.scaled:
        parts.precision._scaling._scaler._init_scale = 256.0  # float16's own overflows are another test's
    nan_losses(lambda call: call == 1, float("inf"))
    used = []
    parts.optimizer.register_step_post_hook(
        lambda optimizer, *args: used.append(float(optimizer.param_groups[0]["lr"])) if getattr(optimizer, "found_inf", 0) == 0 else None
    )
    state = TrainState()
    loop.fit(parts, state)

    other = torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=0.1)
    scheduler = CosineAnnealingLR(other, T_max=parts.planned_steps)
    expected = []
    for _ in range(4):
        expected.append(other.param_groups[0]["lr"])
        other.step()
        scheduler.step()
    assert isinstance(parts.config.schedule, CosineConfig)
    assert used == pytest.approx(expected, rel=1e-6)
    assert (state.step, state.updates, int(parts.schedule.updates)) == (5, 4, 4)
    assert history(parts, "amp/skipped_updates") == dict.fromkeys(range(1, 6), 1.0)
    assert list(history(parts, "train/lr").values())[1:] == pytest.approx(expected, rel=1e-6)
    assert math.isinf(history(parts, "train/loss")[1])
    if parts.precision.scaled:
        assert history(parts, "amp/scale") == dict.fromkeys(range(1, 6), 128.0)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_the_loss_of_mixed_images_is_that_of_soft_labels(smoothing):
    """torch's cross-entropy with class probabilities as the oracle."""
    torch.manual_seed(0)
    logits, own, other, share = torch.randn(6, 4), torch.randint(4, (6,)), torch.randint(4, (6,)), torch.rand(6)
    batch = Batch(torch.zeros(6, 1), own, torch.arange(6), window=1, last=True, mixed=Mixed(other, share))
    soft = F.one_hot(own, 4) * (1 - share[:, None]) + F.one_hot(other, 4) * share[:, None]
    expected = F.cross_entropy(logits.double(), soft.double(), label_smoothing=smoothing)
    torch.testing.assert_close(training_loss(logits, batch, label_smoothing=smoothing).double(), expected, rtol=1e-6, atol=1e-6)
