"""Parameter groups and optimizers against torch's own."""

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.optim import SGD, AdamW
from torchvision import models as zoo

from src.config.schema import AdamWConfig, SGDConfig
from src.optim import build_optimizer


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.PReLU(), nn.Flatten(), nn.Linear(4 * 36, 8), nn.LayerNorm(8))


@pytest.mark.parametrize("make", [net, lambda: zoo.resnet18(weights=None), lambda: zoo.alexnet(weights=None)])
@pytest.mark.parametrize("config", [AdamWConfig(weight_decay=0.3), SGDConfig(weight_decay=0.3)])
def test_weights_of_convolutions_and_matmuls_decay_and_nothing_else_does(make, config):
    """Judged by module type; each parameter is in exactly one group."""
    model = make()
    groups = build_optimizer(config, model).param_groups
    decays = {id(p): group["weight_decay"] for group in groups for p in group["params"]}
    assert sum(len(group["params"]) for group in groups) == len(decays) == len(list(model.parameters()))
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            wanted = 0.3 if isinstance(module, nn.Conv2d | nn.Linear) and name == "weight" else 0.0
            assert decays[id(parameter)] == wanted


def test_decay_all_decays_all():
    model = net()
    (group,) = build_optimizer(AdamWConfig(weight_decay=0.3, decay_all=True), model).param_groups
    assert group["weight_decay"] == 0.3
    assert len(group["params"]) == len(list(model.parameters()))


def test_frozen_parameters_are_left_out():
    model = net()
    model[0].requires_grad_(False)
    groups = build_optimizer(SGDConfig(), model).param_groups
    frozen = {id(p) for p in model[0].parameters()}
    assert not frozen & {id(p) for group in groups for p in group["params"]}


def test_no_group_is_empty():
    (group,) = build_optimizer(AdamWConfig(), nn.Linear(4, 4, bias=False)).param_groups
    assert group["weight_decay"] > 0
    (group,) = build_optimizer(AdamWConfig(), nn.LayerNorm(4)).param_groups
    assert group["weight_decay"] == 0


@pytest.mark.parametrize("fused", ["auto", True, False])
@pytest.mark.parametrize("decay_all", [False, True])
@pytest.mark.parametrize(
    "config",
    [
        AdamWConfig(lr=0.01, weight_decay=0.1, betas=[0.8, 0.95]),
        SGDConfig(lr=0.05, weight_decay=0.1, momentum=0.9, nesterov=True),
        SGDConfig(lr=0.05, weight_decay=0.1, momentum=0.5, nesterov=False),
        SGDConfig(lr=0.05, weight_decay=0.0, momentum=0.0, nesterov=False),
    ],
)
def test_updates_equal_torchs_in_float64(config, decay_all, fused):
    """Also the first: the momentum that starts from zeros gives what torch's own start gives."""
    config = replace(config, decay_all=decay_all, fused=fused)
    model = net()
    reference = net().double()
    optimizer = build_optimizer(config, model)
    if decay_all:
        groups = [{"params": list(reference.parameters())}]
    else:
        matrices = [reference[0].weight, reference[4].weight]
        others = [p for p in reference.parameters() if not any(p is matrix for matrix in matrices)]
        groups = [{"params": matrices}, {"params": others, "weight_decay": 0.0}]
    if isinstance(config, AdamWConfig):
        other = AdamW(groups, lr=config.lr, betas=tuple(config.betas), weight_decay=config.weight_decay)
    else:
        other = SGD(groups, lr=config.lr, momentum=config.momentum, nesterov=config.nesterov, weight_decay=config.weight_decay)
    x = torch.randn(5, 1, 8, 8, generator=torch.Generator().manual_seed(2))
    for _ in range(4):
        for one, step, inputs in ((model, optimizer, x), (reference, other, x.double())):
            step.zero_grad()
            one(inputs).pow(3).mean().backward()
            step.step()
    assert bool(optimizer.defaults["fused"]) is bool(fused)
    for one, wanted in zip(model.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(one.double(), wanted, rtol=1e-3, atol=2e-5)


def test_the_learning_rate_is_on_the_device_exactly_where_the_kernel_reads_it_there():
    assert isinstance(build_optimizer(AdamWConfig(), net()).param_groups[0]["lr"], torch.Tensor)
    assert build_optimizer(AdamWConfig(lr=0.5, fused=False), net()).param_groups[0]["lr"] == 0.5


def test_adamw_survives_gradients_whose_squares_vanish_in_float16():
    """Weights in half (o3): with torch's own eps, which is 0 in float16, the first update is inf."""
    model = nn.Linear(4, 2).half()
    optimizer = build_optimizer(AdamWConfig(lr=0.01), model)
    before = model.weight.detach().clone()
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, 1e-4)
    optimizer.step()
    assert torch.isfinite(model.weight).all()
    assert not torch.equal(model.weight, before)
    assert build_optimizer(AdamWConfig(), nn.Linear(4, 2)).defaults["eps"] == 1e-8
