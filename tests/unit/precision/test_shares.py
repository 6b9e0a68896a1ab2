"""Gradients that are shares: every rank sees the norm of all of them and takes the same decision."""

import pytest
import torch
from torch import nn
from torch.nn.utils import get_total_norm

from src.config.schema import Dtype, PrecisionConfig, ScalerConfig
from src.precision import build_precision

CPU = torch.device("cpu")


def ranks(config, gradients):
    """A precision mode and a parameter for each rank; sums that one rank asks for are answered with the others' known addends."""
    parameters, optimizers = [], []
    for gradient in gradients:
        parameter = nn.Parameter(torch.ones_like(gradient))
        parameter.grad = gradient.clone()
        parameters.append(parameter)
        optimizers.append(torch.optim.AdamW([parameter], lr=torch.tensor(0.1), weight_decay=0.0, fused=True))
    return parameters, optimizers


def step_all(config, gradients, *, clip_norm=None):
    """One step of every rank; first each rank's addends are noted, then each runs again with the sums of all."""
    addends = []

    def note(tensor):
        addends[-1].append(tensor.clone())
        return tensor

    parameters, optimizers = ranks(config, gradients)
    for optimizer in optimizers:
        addends.append([])
        build_precision(config, device=CPU, sum_shares=note).step(optimizer, clip_norm=None)
    sums = [torch.stack(same).sum(dim=0) for same in zip(*addends, strict=True)]
    norms, scales = [], []
    parameters, optimizers = ranks(config, gradients)
    for optimizer in optimizers:
        left = iter(sums)
        precision = build_precision(config, device=CPU, sum_shares=lambda tensor, left=left: tensor.copy_(next(left)))
        norms.append(float(precision.step(optimizer, clip_norm=clip_norm)))
        scales.append(float(precision.loss_scale()))
    return parameters, norms, scales


CONFIGS = {
    "no scaling": PrecisionConfig(name="fp32"),
    "scaling": PrecisionConfig(name="amp", dtype=Dtype.float16, scaler=ScalerConfig(init_scale=4.0)),
}


@pytest.mark.parametrize("key", CONFIGS)
def test_the_norm_is_that_of_all_shares(key):
    gradients = [torch.tensor([3.0, 4.0]), torch.tensor([12.0]), torch.zeros(0)]
    scale = 4.0 if key == "scaling" else 1.0
    _, norms, _ = step_all(CONFIGS[key], gradients)
    assert norms == pytest.approx([float(get_total_norm(gradients)) / scale] * 3)


@pytest.mark.parametrize("key", CONFIGS)
@pytest.mark.parametrize("bad", [float("inf"), float("nan")])
def test_one_ranks_overflow_stops_the_update_everywhere(key, bad):
    """Three of four shares overflow: the fused kernels compare the flag with 1."""
    gradients = [torch.tensor([1.0]), torch.tensor([bad]), torch.tensor([bad]), torch.tensor([1.0, bad])]
    parameters, norms, scales = step_all(CONFIGS[key], gradients)
    assert all(bool((parameter == 1).all()) for parameter in parameters)
    assert not any(torch.isfinite(torch.tensor(norms)))
    assert scales == ([2.0] * 4 if key == "scaling" else [1.0] * 4)


def test_statistics_count_all_shares():
    def double(tensor):
        return tensor.add_(torch.tensor([1.0, 0.0, 4.0], dtype=torch.float64))

    precision = build_precision(PrecisionConfig(name="bf16"), device=CPU, sum_shares=double)
    parameter = nn.Parameter(torch.ones(4))
    parameter.grad = torch.tensor([1.0, 0.0, float("inf"), 1e-40])
    found = precision.gradient_statistics(torch.optim.SGD([parameter], lr=0.1))
    assert found.tolist() == [2.0, 2 / 8]
