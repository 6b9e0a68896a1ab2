"""A network is tried out before a run is built on it; the user's own code runs only when allowed."""

import logging

import pytest
import torch
from torch import nn

from src import network
from src.config.runfile import to_dict
from src.config.schema import Config, CustomModelConfig, Dtype, ModelConfig, PrecisionConfig
from src.errors import ConfigError
from src.precision import build_precision

CPU = torch.device("cpu")


def try_out(model, *, num_classes=3, size=8, name="net"):
    precision = build_precision(PrecisionConfig(name="fp32"), device=CPU)
    return network.try_model(model, torch.ones(2, 1, size, size), precision=precision, num_classes=num_classes, name=name)


def test_looking_at_the_dtype_changes_nothing():
    """No hook, no running statistics, no random number and no mode is left changed."""
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Dropout(), nn.Flatten())
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    random = torch.get_rng_state()
    precision = build_precision(PrecisionConfig(name="amp", dtype=Dtype.bfloat16), device=CPU)
    assert network.try_model(model, torch.ones(2, 1, 8, 8), precision=precision, num_classes=72, name="net") == "bfloat16"
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), random)
    assert model.training
    assert not model[0]._forward_hooks


@pytest.mark.parametrize("model", [nn.Sequential(nn.Flatten(), nn.Linear(64, 4)), nn.Sequential(nn.Conv2d(1, 3, 3))])
def test_logits_of_another_shape_are_refused(model):
    with pytest.raises(ConfigError, match=r"model=net returns shape \[2, .*it must return logits \[2, 3\]"):
        try_out(model)


def test_images_that_do_not_fit_are_refused_but_an_own_networks_error_comes_as_it_is():
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 3))
    with pytest.raises(ConfigError, match=r"model=net can't take images of 9 x 9 pixels .* set another data.image_size"):
        try_out(model, size=9)
    with pytest.raises(RuntimeError, match="mat1 and mat2"):
        try_out(model, size=9, name="custom")


def test_batch_norm_refuses_a_lone_image_only_where_it_must():
    """F12: over a map of several pixels one image is enough."""
    image = torch.rand(1, 1, 8, 8)
    flat = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(64))
    with pytest.raises(ConfigError, match="batch norm needs two"):
        network.refuse_lone_images(flat, image, micro_batch_size=1)
    network.refuse_lone_images(flat, image, micro_batch_size=2)
    network.refuse_lone_images(nn.BatchNorm2d(1), image, micro_batch_size=1)
    assert flat[1].num_batches_tracked == 0


def test_code_that_a_checkpoint_names_is_not_run_by_itself():
    payload = {"config": to_dict(Config(model=CustomModelConfig(factory="not.there:net"))), "data": {}}
    with pytest.raises(ConfigError, match="add trust_code=true to let it run"):
        network.load_model(payload, trust_code=False)


def test_weights_from_a_file(tmp_path, caplog):
    source, model = nn.Linear(4, 3), nn.Linear(4, 3)
    torch.save(source.state_dict(), tmp_path / "w.pt")
    with caplog.at_level(logging.INFO, logger="src"):
        network.start_from_weights(model, ModelConfig(pretrained=str(tmp_path / "w.pt")))
    assert torch.equal(model.weight, source.weight)
    assert f"starting from the weights of {tmp_path / 'w.pt'}" in caplog.text


@pytest.mark.parametrize(("name", "fails"), [("amp", False), ("o2", True)])
def test_an_override_of_weights_that_another_module_uses_is_told(name, fails, caplog):
    """``nn.MultiheadAttention`` never calls its ``out_proj``."""
    precision = build_precision(PrecisionConfig(name=name, overrides=["0.self_attn.out_proj=float32"]), device=CPU)
    model = precision.prepare(nn.Sequential(nn.TransformerEncoderLayer(8, 2, 8, batch_first=True), nn.Flatten(), nn.Linear(32, 3)))
    images = torch.randn(2, 4, 8)
    if fails:
        with pytest.raises(ConfigError, match=r"out_proj isn't called by itself, .*; name the module around it"):
            network.try_model(model, images, precision=precision, num_classes=3, name="custom")
    else:
        network.try_model(model, images, precision=precision, num_classes=3, name="custom")
        assert "nothing called 0.self_attn.out_proj" in caplog.text


def test_a_network_without_anything_to_train_is_refused():
    model = nn.Linear(2, 2)
    network.refuse_frozen(model)
    with pytest.raises(ConfigError, match="nothing to train"):
        network.refuse_frozen(model.requires_grad_(False))
