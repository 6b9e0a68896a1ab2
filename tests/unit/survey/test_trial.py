"""One training step without data."""

from copy import deepcopy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from src.config.runfile import to_config
from src.config.schema import PrecisionConfig
from src.errors import ConfigError
from src.survey.trial import Shape, build_trial, input_shape, step_seconds, try_mode

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({}, Shape(3, 32, 10)),
        ({"model": {"name": "resnet50"}}, Shape(3, 224, 10)),
        ({"model": {"name": "vit_b_16", "num_classes": 7}, "data": {"image_size": 256}}, Shape(3, 256, 7)),
    ],
)
def test_the_images_a_network_is_given(keys, expected):
    assert input_shape(to_config(keys)) == expected


def test_images_that_are_too_small():
    with pytest.raises(ConfigError, match=r"data.image_size=62 .*at least 63"):
        input_shape(to_config({"model": {"name": "alexnet"}, "data": {"image_size": 62}}))


@pytest.mark.parametrize("name", ["fp32", "amp", "o2", "o3"])
def test_a_step_leaves_the_weights_alone(name):
    """Whatever the mode does after the update, the network stays the same for the next measurement."""
    trial = try_mode(nn.Sequential(nn.Flatten(), nn.Linear(27, 10)), PrecisionConfig(name=name), device=CPU)
    before = deepcopy(dict(trial.working.named_parameters()))
    trial.step(*trial.batch(4, Shape(3, 3, 10)))
    assert all(torch.equal(before[key], value) for key, value in trial.working.named_parameters())
    assert all(parameter.grad is None for group in trial.optimizer.param_groups for parameter in group["params"])


def test_the_gradient_is_that_of_cross_entropy():
    network = nn.Sequential(nn.Flatten(), nn.Linear(27, 10))
    reference = deepcopy(network)
    trial = try_mode(network, PrecisionConfig(name="fp32"), device=CPU)
    images, labels = trial.batch(4, Shape(3, 3, 10))
    trial.forward_backward(images, labels)
    F.cross_entropy(reference(images), labels).backward()
    assert torch.equal(network[1].weight.grad, reference[1].weight.grad)


def test_memory_format_follows_the_option():
    config = to_config({"train": {"channels_last": True}})
    trial = build_trial(config, config.precision, shape=Shape(3, 8, 10), device=CPU)
    images, _ = trial.batch(2, Shape(3, 8, 10))
    assert images.is_contiguous(memory_format=torch.channels_last)
    assert trial.working.get_parameter("conv1.weight").is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize(("limit", "called", "measured"), [(60.0, 13, 10), (0.0, 2, 1)])
def test_three_steps_warm_up_and_ten_are_measured(monkeypatch, limit, called, measured):
    trial = try_mode(nn.Sequential(nn.Flatten(), nn.Linear(27, 10)), PrecisionConfig(name="fp32"), device=CPU)
    count = []
    monkeypatch.setattr(trial, "step", lambda images, labels: count.append(1))
    seconds, steps = step_seconds(trial, *trial.batch(2, Shape(3, 3, 10)), limit=limit)
    assert (len(count), steps) == (called, measured)
    assert seconds > 0
