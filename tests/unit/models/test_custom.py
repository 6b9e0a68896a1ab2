"""Networks of the user's own."""

from pathlib import Path

import pytest
import torch

from src.config.schema import CustomModelConfig
from src.errors import ConfigError
from src.models import build_model, input_needs

MODULE = """
from torch import nn

def all_three(num_classes, channels, image_size, width=2):
    return nn.Sequential(nn.Flatten(), nn.Linear(channels * image_size ** 2, width), nn.Linear(width, num_classes))

def one(*, num_classes, **kwargs):
    assert not kwargs
    return nn.Linear(1, num_classes)

def none():
    return nn.Identity()

class Net(nn.Linear):
    def __init__(self, channels, num_classes):
        super().__init__(channels, num_classes)

def lazy(num_classes):
    return nn.LazyLinear(num_classes)

def number(num_classes):
    return num_classes

def broken(num_classes):
    return nn.Linear("one", num_classes)
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module in the current directory, which is not importable yet; its name is the test's own."""
    name = f"nets_{tmp_path.name}"
    (tmp_path / f"{name}.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [path for path in __import__("sys").path if path])
    return name


def build(factory: str | None, **kwargs: object) -> torch.nn.Module:
    return build_model(CustomModelConfig(factory=factory, kwargs=kwargs), num_classes=7, channels=3, image_size=4)


def test_a_function_gets_what_its_signature_names(module: str) -> None:
    assert build(f"{module}:all_three", width=5)(torch.zeros(2, 3, 4, 4)).shape == (2, 7)
    assert build(f"{module}:all_three", width=5)[1].out_features == 5
    assert build(f"{module}:one").out_features == 7
    assert isinstance(build(f"{module}:none"), torch.nn.Identity)
    net = build(f"{module}:Net")
    assert (net.in_features, net.out_features) == (3, 7)


@pytest.mark.parametrize(
    ("name", "kwargs", "message"),
    [
        ("lazy", {}, r"returned a network whose weight has no shape yet; call it once"),
        ("number", {}, r"model\.factory=\S+:number returned a int; it must return a torch\.nn\.Module"),
        ("all_three", {"wdith": 5}, r"model\.kwargs does not fit all_three\(.*width.*\): got an unexpected keyword argument 'wdith'"),
        ("all_three", {"num_classes": 5}, r"model\.kwargs\.num_classes=5 is passed by this program already"),
        ("al_three", {}, r"has no al_three; did you mean \S+:all_three"),
    ],
)
def test_what_does_not_fit_names_the_option(module: str, name: str, kwargs: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build(f"{module}:{name}", **kwargs)


def test_an_error_in_the_users_function_is_the_users(module: str) -> None:
    with pytest.raises(TypeError) as error:
        build(f"{module}:broken")
    assert any(entry.name == "broken" for entry in error.traceback)


def test_it_must_be_named() -> None:
    with pytest.raises(ConfigError, match=r"model\.factory is not set"):
        build(None)


def test_it_takes_any_images() -> None:
    needs = input_needs(CustomModelConfig())
    assert (needs.channels, needs.min_image_size) == (None, 1)
