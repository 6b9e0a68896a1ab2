"""timm's networks by name."""

import importlib
from pathlib import Path

import pytest
import torch
from torch import nn
from torchvision import models as zoo

from src.config.schema import TimmConfig
from src.errors import ConfigError, DataError
from src.models import build_model, input_needs, load_pretrained, named_weights


def timm_or_skip() -> object:
    return pytest.importorskip("timm", reason="timm is optional; pip install -e '.[models]' to run this test")


def build(arch: str, *, channels: int = 3, image_size: int = 32, **kwargs: object) -> nn.Module:
    return build_model(TimmConfig(arch=arch, kwargs=kwargs), num_classes=7, channels=channels, image_size=image_size)


def test_without_timm_the_error_tells_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    monkeypatch.setattr(importlib, "import_module", missing)
    for call in (input_needs, named_weights):
        with pytest.raises(ConfigError, match=r"pip install -e '.\[models\]'"):
            call(TimmConfig(pretrained="timm"))


def test_timms_resnet18_is_torchvisions() -> None:
    """The same network in another library, tensor by tensor."""
    timm_or_skip()
    theirs = zoo.resnet18(weights=None, num_classes=7).eval()
    ours = build("resnet18").eval()
    assert load_pretrained(ours, theirs.state_dict(), reset_head=False, source="torchvision") == []
    images = torch.randn(2, 3, 32, 32)
    torch.testing.assert_close(ours(images), theirs(images))


@pytest.mark.parametrize(("arch", "side"), [("test_resnet.r160_in1k", 32), ("test_vit", 48), ("test_convnext", 40)])
@pytest.mark.parametrize("channels", [1, 3])
def test_networks_take_any_channels_and_their_images(arch: str, side: int, channels: int) -> None:
    timm_or_skip()
    model = build(arch, channels=channels, image_size=side)
    assert model(torch.randn(2, channels, side, side)).shape == (2, 7)


def test_sizes() -> None:
    """Published position embeddings of a transformer fit one size."""
    timm_or_skip()
    sizes = {
        (arch, pretrained): (needs.channels, needs.min_image_size, needs.image_size)
        for arch in ("inception_v3", "vit_tiny_patch16_384")
        for pretrained in (None, "timm")
        for needs in [input_needs(TimmConfig(arch=arch, pretrained=pretrained))]
    }
    assert sizes == {
        ("inception_v3", None): (None, 1, 299),
        ("inception_v3", "timm"): (None, 1, 299),
        ("vit_tiny_patch16_384", None): (None, 1, 384),
        ("vit_tiny_patch16_384", "timm"): (None, 384, 384),
    }


@pytest.mark.parametrize(
    ("arch", "near"),
    [("resnet19", "resnet18"), ("resnet18.a1_in2k", r"resnet18\.a1_in1k"), ("hf-hub:some/model", "list_models"), ("", "list_models")],
)
def test_an_unknown_name_is_met_with_the_nearest(arch: str, near: str) -> None:
    timm_or_skip()
    with pytest.raises(ConfigError, match=rf"model\.arch={arch} is not a network of timm; .*{near}"):
        build(arch)


@pytest.mark.parametrize("kwargs", [{"wdith": 3}, {"num_classes": 3}, {"checkpoint_path": "weights.pt"}, {"pretrained": True}])
def test_what_the_network_does_not_take_is_an_error(kwargs: dict[str, object]) -> None:
    timm_or_skip()
    with pytest.raises(ConfigError, match=rf"timm's test_resnet can't be built .* model\.kwargs=.*{next(iter(kwargs))}"):
        build("test_resnet", **kwargs)


def test_weights_are_those_timm_loads(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A file in place of the Hub's, through timm's own loading."""
    timm_or_skip()
    published = build_model(TimmConfig(arch="test_resnet"), num_classes=1000, channels=3, image_size=32)
    monkeypatch.setattr("timm.models._builder.load_state_dict_from_hf", lambda *args, **kwargs: published.state_dict())
    weights = named_weights(TimmConfig(arch="test_resnet", pretrained="timm"))
    model = build("test_resnet")
    fresh = load_pretrained(model, weights, reset_head=True, source="timm")
    assert fresh == ["fc.weight", "fc.bias"]
    assert all(tensor.equal(published.state_dict()[name]) for name, tensor in model.state_dict().items() if name not in fresh)


def test_without_a_network_the_error_tells_what_to_download(monkeypatch: pytest.MonkeyPatch) -> None:
    timm_or_skip()

    def away(*args: object, **kwargs: object) -> None:
        raise FileNotFoundError("cannot find the requested files in the local cache")

    monkeypatch.setattr("timm.models._builder.load_state_dict_from_hf", away)
    with pytest.raises(
        DataError, match=r"download https://huggingface\.co/timm/test_resnet\.\S+/model\.safetensors and set model\.pretrained"
    ):
        named_weights(TimmConfig(arch="test_resnet", pretrained="timm"))


def test_a_network_without_published_weights_says_so() -> None:
    timm_or_skip()
    with pytest.raises(ConfigError, match=r"timm has no weights of model\.arch=botnet50ts_256"):
        named_weights(TimmConfig(arch="botnet50ts_256", pretrained="timm"))
