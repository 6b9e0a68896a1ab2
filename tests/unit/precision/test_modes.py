"""Which mode a name gives, and the policy of the scale."""

import logging

import pytest
import torch
from torch import nn

from src.config.schema import AdamWConfig, Dtype, PrecisionConfig, ScalerConfig
from src.optim import build_optimizer
from src.precision import build_precision

CPU = torch.device("cpu")


def build(name, dtype=Dtype.auto, **scaler):
    return build_precision(PrecisionConfig(name=name, dtype=dtype, scaler=ScalerConfig(**scaler)), device=CPU)


def update(precision, model, optimizer, factor=1.0):
    with precision.autocast():
        loss = model(torch.ones(1, 2)).float().mean() * factor
    precision.backward(loss)
    norm = precision.step(optimizer, clip_norm=None)
    optimizer.zero_grad(set_to_none=True)
    return norm


@pytest.mark.parametrize(
    ("name", "dtype", "computed", "scaled"),
    [
        ("fp32", Dtype.auto, torch.float32, False),
        ("o0", Dtype.auto, torch.float32, False),
        ("tf32", Dtype.auto, torch.float32, False),
        ("bf16", Dtype.auto, torch.bfloat16, False),
        ("amp", Dtype.auto, torch.bfloat16, False),
        ("o1", Dtype.float16, torch.float16, True),
        ("o2", Dtype.auto, torch.bfloat16, False),
        ("o2", Dtype.float16, torch.float16, True),
        ("o3", Dtype.float16, torch.float16, True),
    ],
)
def test_what_a_name_means_on_a_cpu(name, dtype, computed, scaled):
    precision = build(name, dtype)
    assert (precision.name, precision.dtype, precision.scaled) == (name, computed, scaled)


@pytest.mark.parametrize(
    ("setting", "factor", "expected"), [({"min_scale": 16.0}, float("inf"), 16.0), ({"max_scale": 256.0}, 1e-4, 256.0)]
)
def test_the_scale_stays_between_floor_and_ceiling(setting, factor, expected):
    model = nn.Linear(2, 2)
    optimizer = build_optimizer(AdamWConfig(lr=1e-3), model)
    precision = build("amp", Dtype.float16, init_scale=64.0, growth_interval=1, **setting)
    for _ in range(8):
        update(precision, model, optimizer, factor)
    assert precision.loss_scale().item() == expected


@pytest.mark.parametrize("factor", [1e-3, float("inf")])
def test_a_static_scale_neither_grows_nor_backs_off(factor):
    model = nn.Linear(2, 2)
    optimizer = build_optimizer(AdamWConfig(lr=1e-3), model)
    precision = build("amp", Dtype.float16, init_scale=64.0, growth_interval=1, dynamic=False)
    for _ in range(5):
        update(precision, model, optimizer, factor)
    assert precision.loss_scale().item() == 64.0


def test_three_hundred_bad_steps_do_not_wear_the_scale_down_to_nothing():
    """A08: torch's own scaler reaches 0.0 here."""
    model = nn.Linear(2, 2)
    optimizer = build_optimizer(AdamWConfig(lr=1e-3), model)
    precision = build("amp", Dtype.float16)
    for _ in range(300):
        update(precision, model, optimizer, float("nan"))
    assert precision.loss_scale().item() == 2.0**-14
    assert torch.isfinite(update(precision, model, optimizer))


@pytest.mark.parametrize(
    ("name", "dtype", "scaler", "text"),
    [
        ("amp", Dtype.float16, {"enabled": False}, "float16 without loss scaling"),
        ("tf32", Dtype.auto, {}, "this device has no TF32, so everything is computed in float32"),
    ],
)
def test_what_is_allowed_but_unwise_is_said_once(caplog, name, dtype, scaler, text):
    with caplog.at_level(logging.WARNING, logger="src"):
        build(name, dtype, **scaler)
    assert sum(text in record.getMessage() for record in caplog.records) == 1


def test_settings_of_a_scaler_that_does_not_run_are_told(caplog):
    build("amp", Dtype.bfloat16, dynamic=False, max_consecutive_skips=7)
    assert caplog.messages[-1].startswith("precision.scaler.dynamic has no effect: precision=amp computes in bfloat16 here")
    caplog.clear()
    build("amp", Dtype.float16, dynamic=False)
    build("amp", Dtype.bfloat16)
    assert not any("no effect" in message for message in caplog.messages)
