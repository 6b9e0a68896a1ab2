"""The table of networks."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torchvision import models as zoo

from src.config.schema import FIXED_SIZES, OPTIONS, CustomModelConfig, ModelConfig, TimmConfig, TorchvisionConfig
from src.errors import ConfigError
from src.models import MODELS, build_model, input_needs, named_weights
from src.models.digits_cnn import _grid


def build(name: str, *, num_classes: int = 10, channels: int = 3, image_size: int = 224) -> nn.Module:
    return build_model(ModelConfig(name=name), num_classes=num_classes, channels=channels, image_size=image_size)


def count(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def test_every_option_is_a_row_or_has_fields_of_its_own() -> None:
    own = {name for name, kind in OPTIONS["model"].items() if kind is not ModelConfig}
    assert set(MODELS) | own == set(OPTIONS["model"])
    assert not set(MODELS) & own


@pytest.mark.parametrize("name", MODELS)
def test_least_image_size_trains(name: str) -> None:
    needs = input_needs(ModelConfig(name=name))
    side, channels = needs.min_image_size, needs.channels or 1
    assert (side, needs.image_size) == FIXED_SIZES[name]
    model = build(name, num_classes=5, channels=channels, image_size=side)
    logits = model(torch.randn(2, channels, side, side))
    assert logits.shape == (2, 5)
    F.cross_entropy(logits, torch.tensor([0, 4])).backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


@pytest.mark.parametrize("name", ["digits_cnn", "alexnet"])
def test_smaller_images_do_not_run(name: str) -> None:
    needs = input_needs(ModelConfig(name=name))
    model = build(name, channels=needs.channels or 1)
    side = needs.min_image_size - 1
    with pytest.raises(RuntimeError):
        model(torch.randn(2, needs.channels or 1, side, side))


@pytest.mark.parametrize(("name", "side"), [("alexnet", 100), ("alexnet", 227), ("resnet18", 32), ("resnet50", 32), ("vit_b_16", 224)])
def test_torchvision_networks_are_torchvisions(name: str, side: int) -> None:
    torch.manual_seed(0)
    ours = build(name, num_classes=7, image_size=side).eval()
    torch.manual_seed(0)
    theirs = zoo.get_model(name, weights=None, num_classes=7).eval()
    assert ours.state_dict().keys() == theirs.state_dict().keys()
    images = torch.randn(1, 3, side, side)
    with torch.no_grad():
        assert ours(images).equal(theirs(images))


@pytest.mark.parametrize("name", ["alexnet", "resnet18", "resnet50", "vit_b_16"])
def test_with_1000_classes_they_have_as_many_parameters_as_published(name: str) -> None:
    with torch.device("meta"):
        model = build(name, num_classes=1000, image_size=224)
    assert count(model) == zoo.get_model_weights(name).DEFAULT.meta["num_params"]


def test_vit_is_built_for_its_images() -> None:
    with torch.device("meta"):
        model = build("vit_b_16", image_size=256)
        assert model(torch.empty(2, 3, 256, 256)).shape == (2, 10)
    assert model.get_parameter("encoder.pos_embedding").shape == (1, (256 // 16) ** 2 + 1, 768)


def test_vit_wants_whole_patches() -> None:
    with pytest.raises(ConfigError, match=r"data\.image_size=230 is not a multiple of 16, .* use 224 or 240"):
        build("vit_b_16", image_size=230)


def test_resnet18_cifar_keeps_the_resolution() -> None:
    """32x32 pixels reach the pooling as 4x4 maps; torchvision's stem would leave a single place."""
    model = build("resnet18_cifar")
    shapes: dict[str, torch.Size] = {}
    for name in ("conv1", "layer1", "layer4"):

        def record(module: nn.Module, args: tuple[Tensor], output: Tensor, name: str = name) -> None:
            shapes[name] = output.shape[-2:]

        model.get_submodule(name).register_forward_hook(record)
    assert model(torch.randn(2, 3, 32, 32)).shape == (2, 10)
    assert shapes == {"conv1": (32, 32), "layer1": (32, 32), "layer4": (4, 4)}


@pytest.mark.parametrize("channels", [1, 3])
def test_resnet18_cifar_is_resnet18_but_for_the_stem(channels: int) -> None:
    """Its 64 kernels have 3x3 instead of 7x7 places; the spread of He's initialisation over 64 x 9 outgoing connections."""
    torch.manual_seed(0)
    ours, theirs = build("resnet18_cifar", channels=channels), zoo.resnet18(weights=None, num_classes=10)
    assert count(ours) == count(theirs) - 64 * 3 * 49 + 64 * channels * 9
    assert ours.state_dict().keys() == theirs.state_dict().keys()
    assert ours.get_parameter("conv1.weight").std().item() == pytest.approx((2 / (64 * 9)) ** 0.5, rel=0.1)


@pytest.mark.parametrize("side", [8, 11, 28, 32])
@pytest.mark.parametrize("channels", [1, 3])
def test_digits_cnn_takes_small_images(side: int, channels: int) -> None:
    assert build("digits_cnn", channels=channels, image_size=side)(torch.randn(2, channels, side, side)).shape == (2, 10)


@pytest.mark.parametrize("side", [4, 8, 12, 16])
def test_grid_equals_adaptive_pooling(side: int) -> None:
    maps = torch.randn(2, 3, side, side)
    torch.testing.assert_close(_grid(maps), F.adaptive_avg_pool2d(maps, 4))


def test_digits_cnn_treats_images_one_by_one() -> None:
    """The loss of a batch is the mean over any way to share it: no batch norm, no dropout, widths that are multiples of 8."""
    model = build("digits_cnn", channels=1).train()
    images = torch.randn(6, 1, 8, 8)
    torch.testing.assert_close(model(images), torch.cat([model(part) for part in images.split(2)]))
    widths = [layer.weight.shape[0] for layer in model.children() if isinstance(layer, nn.Conv2d | nn.Linear)]
    assert all(width % 8 == 0 for width in widths[:-1])


@pytest.mark.parametrize(
    ("config", "fix"),
    [
        (ModelConfig(name="digits_cnn", pretrained="torchvision"), "alexnet, resnet18, resnet50, vit_b_16 or torchvision"),
        (ModelConfig(name="resnet18_cifar", pretrained="torchvision"), "alexnet, resnet18"),
        (CustomModelConfig(pretrained="torchvision"), "alexnet, resnet18"),
        (TimmConfig(pretrained="torchvision"), "alexnet, resnet18"),
        (ModelConfig(name="resnet18", pretrained="timm"), "model=timm"),
        (TorchvisionConfig(pretrained="timm"), "model=timm"),
    ],
)
def test_a_library_has_weights_of_its_own_networks_only(config: ModelConfig, fix: str) -> None:
    with pytest.raises(ConfigError, match=rf"model\.pretrained={config.pretrained} has no weights of model={config.name}; .*{fix}"):
        named_weights(config)
