"""torchvision's networks by name."""

import hashlib
from pathlib import Path
from urllib.error import URLError

import pytest
import torch
from torch import nn
from torchvision import models as zoo

from src.config.schema import ModelConfig, TorchvisionConfig
from src.errors import ConfigError, DataError
from src.models import build_model, input_needs, load_pretrained, named_weights


def build(arch: str, image_size: int = 224, **kwargs: object) -> nn.Module:
    return build_model(TorchvisionConfig(arch=arch, kwargs=kwargs), num_classes=7, channels=3, image_size=image_size)


def cached_file(directory: Path, arch: str) -> Path:
    """Where torch's hub keeps the file of the best weights under TORCH_HOME."""
    path = directory / "hub" / "checkpoints" / zoo.get_model_weights(arch).DEFAULT.url.rpartition("/")[2]
    path.parent.mkdir(parents=True)
    return path


@pytest.mark.parametrize(
    ("arch", "side"), [("squeezenet1_1", 64), ("mobilenet_v3_small", 64), ("densenet121", 64), ("vit_b_32", 64), ("inception_v3", 299)]
)
def test_networks_are_torchvisions_and_train(arch: str, side: int) -> None:
    model = build(arch, side)
    assert type(model) is type(zoo.get_model(arch, weights=None, init_weights=False) if arch == "inception_v3" else zoo.get_model(arch))
    logits = model.train()(torch.randn(2, 3, side, side))
    assert isinstance(logits, torch.Tensor)  # inception_v3 with its auxiliary head would give a tuple
    assert logits.shape == (2, 7)


def test_kwargs_reach_the_network() -> None:
    assert build("resnet18", width_per_group=64, zero_init_residual=True).get_parameter("layer1.0.bn2.weight").eq(0).all()


@pytest.mark.parametrize(
    ("kwargs", "part"),
    [({"wdith": 3}, "wdith"), ({"num_classes": 3}, "num_classes"), ({"weights": "DEFAULT"}, "weights"), ({"norm_layer": "x"}, "str")],
)
def test_what_the_network_does_not_take_is_an_error(kwargs: dict[str, object], part: str) -> None:
    with pytest.raises(ConfigError, match=rf"torchvision's resnet18 can't be built .* model\.kwargs=.*{part}"):
        build("resnet18", **kwargs)


def test_auxiliary_heads_stay_off() -> None:
    with pytest.raises(ConfigError, match=r"googlenet .* model\.kwargs=\{aux_logits:true\}: .*aux_logits"):
        build("googlenet", aux_logits=True)


def test_an_unknown_name_is_met_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"model\.arch=resnet19 is not a classifier of torchvision; did you mean .*resnet18"):
        build("resnet19")
    for call in (input_needs, named_weights):
        with pytest.raises(ConfigError, match="not a classifier of torchvision"):
            call(TorchvisionConfig(arch="deeplabv3_resnet50", pretrained="torchvision"))


@pytest.mark.parametrize(
    ("arch", "pretrained", "sizes"),
    [
        ("inception_v3", None, (75, 299)),
        ("efficientnet_b7", None, (1, 600)),
        ("vit_h_14", None, (224, 224)),
        ("vit_h_14", "torchvision", (518, 518)),  # its best weights are of larger images
    ],
)
def test_sizes_are_those_torchvision_publishes(arch: str, pretrained: str | None, sizes: tuple[int, int]) -> None:
    needs = input_needs(TorchvisionConfig(arch=arch, pretrained=pretrained))
    assert (needs.channels, needs.min_image_size, needs.image_size) == (3, *sizes)


def test_every_classifier_has_sizes() -> None:
    for arch in zoo.list_models(module=zoo):
        needs = input_needs(TorchvisionConfig(arch=arch))
        assert 1 <= needs.min_image_size <= needs.image_size


@pytest.mark.parametrize("config", [ModelConfig(name="resnet18"), TorchvisionConfig(arch="resnet18")])
def test_weights_come_from_the_cache(config: ModelConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    published = zoo.resnet18(weights=None).eval()
    torch.save(published.state_dict(), cached_file(tmp_path, "resnet18"))
    config.pretrained = "torchvision"
    model = build_model(config, num_classes=1000, channels=3, image_size=64)
    assert load_pretrained(model, named_weights(config), reset_head=False, source="torchvision") == []
    images = torch.randn(1, 3, 64, 64)
    assert model.eval()(images).equal(published(images))


@pytest.mark.parametrize("arch", ["densenet121", "googlenet"])
def test_old_names_and_auxiliary_heads_of_published_files(arch: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """densenet's file says ``norm.1`` where the network says ``norm1``; googlenet's holds the auxiliary heads too."""
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    published = zoo.get_model(arch, weights=None, **({"init_weights": False} if arch == "googlenet" else {}))
    state = published.state_dict()
    if arch == "densenet121":
        for name in ("norm1", "norm2", "conv1", "conv2"):
            state = {key.replace(f".{name}.", f".{name[:-1]}.{name[-1]}.") if "denselayer" in key else key: t for key, t in state.items()}
    torch.save(state, cached_file(tmp_path, arch))
    config = TorchvisionConfig(arch=arch, pretrained="torchvision")
    model = build_model(config, num_classes=1000, channels=3, image_size=64)
    assert load_pretrained(model, named_weights(config), reset_head=False, source="torchvision") == []
    assert all(tensor.equal(published.state_dict()[name]) for name, tensor in model.state_dict().items())


def test_without_a_network_the_error_tells_where_the_file_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*args: object, **kwargs: object) -> None:
        raise URLError("Name or service not known")

    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    monkeypatch.setattr("torch.hub.urlopen", away)
    with pytest.raises(DataError) as error:
        named_weights(ModelConfig(name="resnet18", pretrained="torchvision"))
    assert zoo.ResNet18_Weights.DEFAULT.url in str(error.value)
    assert f"put that file at {cached_file(tmp_path / 'x', 'resnet18')}".replace("/x/", "/") in str(error.value)


def test_a_damaged_cache_is_named_and_runs_no_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    path = cached_file(tmp_path, "resnet18")

    class Hostile:
        def __reduce__(self) -> tuple[object, ...]:
            return (tmp_path / "owned").touch, ()

    for write in (lambda: path.write_bytes(hashlib.sha256().digest()), lambda: torch.save({"fc.weight": Hostile()}, path)):
        write()
        with pytest.raises(DataError, match=rf"{path} is damaged .*delete it"):
            named_weights(ModelConfig(name="resnet18", pretrained="torchvision"))
    assert not (tmp_path / "owned").exists()
