"""The real GradScaler on the CPU with float16, against float32 arithmetic."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from src.config.schema import AdamWConfig, ConstantConfig, Dtype, PrecisionConfig, ScalerConfig, SGDConfig
from src.errors import ConfigError
from src.optim import Schedule, build_optimizer
from src.precision import build_precision

CPU = torch.device("cpu")
MODES = [("fp32", Dtype.auto), ("amp", Dtype.bfloat16), ("amp", Dtype.float16)]


def build(name: str, dtype: Dtype, **scaler: object):
    return build_precision(PrecisionConfig(name=name, dtype=dtype, scaler=ScalerConfig(**scaler)), device=CPU)


def sgd(model: nn.Module, lr: float = 0.1, **kwargs: object):
    config = SGDConfig(lr=lr, momentum=0.0, nesterov=False, weight_decay=0.0, **kwargs)
    optimizer = build_optimizer(config, model)
    return optimizer, Schedule(ConstantConfig(), optimizer, optim=config, total_updates=100, updates_per_epoch=5)


def train_step(model, precision, optimizer, x, *, clip_norm=None, factor=1.0):
    with precision.autocast():
        loss = model(x).float().mean() * factor
    precision.backward(loss)
    norm = precision.step(optimizer, clip_norm=clip_norm)
    optimizer.zero_grad(set_to_none=True)
    return norm


@pytest.mark.parametrize(("name", "dtype"), MODES)
def test_clipping_sees_unscaled_gradients(name, dtype):
    """A01: the change equals float64's, and the reported norm is the true one."""
    torch.manual_seed(0)
    model = nn.Linear(4, 2)
    reference = nn.Linear(4, 2).double()
    reference.load_state_dict(model.state_dict())
    x = torch.ones(3, 4)
    reference(x.double()).mean().backward()
    true_norm = torch.nn.utils.clip_grad_norm_(reference.parameters(), 1.0)
    torch.optim.SGD(reference.parameters(), lr=0.1).step()

    optimizer, _ = sgd(model)
    before = model.weight.detach().clone()
    norm = train_step(model, build(name, dtype), optimizer, x, clip_norm=1.0)

    assert norm.item() == pytest.approx(true_norm.item(), rel=1e-3)
    assert (before - model.weight).abs().max().item() == pytest.approx(0.0316, rel=1e-2)
    assert torch.allclose(model.weight.double(), reference.weight, atol=1e-5)


@pytest.mark.parametrize("fused", ["auto", False])
@pytest.mark.parametrize(("name", "dtype"), MODES)
def test_a_bad_gradient_touches_nothing_but_the_scale(name, dtype, fused):
    """A02 and the gate of every mode: weights, optimizer state and update count stay, the scale halves."""
    torch.manual_seed(0)
    model = nn.Linear(4, 2)
    config = AdamWConfig(lr=0.1, fused=fused)
    optimizer = build_optimizer(config, model)
    schedule = Schedule(ConstantConfig(), optimizer, optim=config, total_updates=10, updates_per_epoch=5)
    precision = build(name, dtype)
    train_step(model, precision, optimizer, torch.ones(2, 4))
    weights = [p.detach().clone() for p in model.parameters()]
    moments = [optimizer.state[p]["exp_avg"].clone() for p in model.parameters()]
    scale = precision.loss_scale().item()

    norm = train_step(model, precision, optimizer, torch.ones(2, 4), factor=float("inf"))

    assert not torch.isfinite(norm)
    assert all(torch.equal(a, b) for a, b in zip(weights, model.parameters(), strict=True))
    assert all(torch.equal(m, optimizer.state[p]["exp_avg"]) for m, p in zip(moments, model.parameters(), strict=True))
    assert schedule.updates.item() == 1
    assert precision.loss_scale().item() == (scale / 2 if precision.scaled else 1.0)


@pytest.mark.parametrize(("name", "dtype"), MODES)
@pytest.mark.parametrize("optim", [AdamWConfig(lr=0.1), SGDConfig(lr=0.1, momentum=0.9, nesterov=True)])
def test_a_skipped_first_step_leaves_no_trace(name, dtype, optim):
    """Fused SGD of torch 2.14 goes on with uninitialised momentum after a skipped first step."""
    runs = []
    for first in (float("inf"), None):
        torch.manual_seed(0)
        model = nn.Linear(64, 64)
        optimizer = build_optimizer(optim, model)
        Schedule(ConstantConfig(), optimizer, optim=optim, total_updates=10, updates_per_epoch=5)
        precision = build(name, dtype)
        garbage = [torch.full((64, 64), float("nan")) for _ in range(20)]  # what freed memory may hold
        del garbage
        if first is not None:
            train_step(model, precision, optimizer, torch.ones(2, 64), factor=first)
        for _ in range(3):
            train_step(model, precision, optimizer, torch.ones(2, 64))
        runs.append(model.weight.detach())
    torch.testing.assert_close(*runs, rtol=1e-3, atol=1e-4)


def test_the_scale_grows_after_the_interval_and_survives_a_restart():
    """E01: scale and growth tracker continue exactly. The small loss keeps scaled gradients within float16."""
    torch.manual_seed(0)
    model = nn.Linear(4, 2)
    optimizer, _ = sgd(model, lr=1e-3)
    precision = build("amp", Dtype.float16, growth_interval=2)
    for _ in range(5):
        train_step(model, precision, optimizer, torch.ones(2, 4), factor=0.01)
    assert precision.loss_scale().item() == 65536 * 4

    resumed = build("amp", Dtype.float16, growth_interval=2)
    resumed.load_state_dict(precision.state_dict())
    train_step(model, precision, optimizer, torch.ones(2, 4), factor=0.01)
    train_step(model, resumed, optimizer, torch.ones(2, 4), factor=0.01)
    assert resumed.state_dict() == precision.state_dict()
    assert precision.loss_scale().item() == 65536 * 8


@pytest.mark.parametrize(
    ("name", "dtype", "expected"),
    [("fp32", Dtype.auto, torch.float32), ("amp", Dtype.auto, torch.bfloat16), ("amp", Dtype.float16, torch.float16)],
)
def test_the_named_dtype_is_the_one_computed_in(name, dtype, expected):
    """A10: on a CPU amp is bfloat16, never float32 under another name."""
    precision = build(name, dtype)
    seen = []
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(8, 2))
    for module in model:
        module.register_forward_hook(lambda _module, _args, output: seen.append(output.dtype))
    with precision.autocast():
        model(torch.ones(1, 1, 4, 4))
    assert set(seen) == {expected} == {precision.dtype}
    assert precision.scaled == (expected == torch.float16)


def test_cross_entropy_stays_in_float32():
    precision = build("amp", Dtype.auto)
    with precision.autocast():
        logits = nn.Linear(4, 3)(torch.ones(2, 4))
        loss = F.cross_entropy(logits, torch.tensor([0, 1]))
    assert logits.dtype == torch.bfloat16
    assert loss.dtype == torch.float32


def test_a_half_typed_model_is_refused_with_both_settings():
    """A07."""
    with pytest.raises(ConfigError, match=r"model: parameter weight is float16, but precision=amp"):
        build("amp", Dtype.float16).prepare(nn.Linear(2, 2).half())


def test_weights_get_a_gradient_after_a_no_grad_forward():
    """A13: an evaluation inside the same process does not leave a cast without gradient behind."""
    model = nn.Linear(4, 2)
    precision = build("amp", Dtype.bfloat16)
    with torch.no_grad(), precision.autocast():
        model(torch.ones(1, 4))
    with precision.autocast():
        loss = model(torch.ones(1, 4)).float().sum()
    loss.backward()
    assert model.weight.grad is not None
