"""Other dtypes for modules that a pattern names, seen at their outputs."""

from copy import deepcopy

import pytest
import torch
from torch import nn

from src.config.schema import Dtype, PrecisionConfig, ScalerConfig
from src.errors import ConfigError
from src.precision import build_precision

SHORT = {torch.float32: "float32", torch.float16: "float16", torch.bfloat16: "bfloat16"}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3))
        self.classifier = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.Linear(8, 3))

    def forward(self, x):
        return self.classifier(self.features(x))


def seen(name, overrides, dtype=Dtype.auto, *, copy=False):
    """Module -> dtype that it computed in, under a mode; and a backward pass that must work."""
    torch.manual_seed(0)
    precision = build_precision(
        PrecisionConfig(name=name, dtype=dtype, overrides=overrides, scaler=ScalerConfig(init_scale=8.0)), device=torch.device("cpu")
    )
    model = precision.prepare(Net())
    if copy:
        model = deepcopy(model)
    found = {}
    for key in ("features.0", "features.2", "classifier.1", "classifier.2"):
        layer = model.get_submodule(key)
        original = type(layer).forward

        def forward(self, x, key=key, original=original):
            output = original(self, x)
            found[key] = SHORT[output.dtype]
            return output

        layer.__class__ = type(type(layer).__name__, (type(layer),), {"forward": forward})
    with precision.autocast():
        loss = model(torch.randn(2, 1, 8, 8)).float().square().mean()
    loss.backward()
    assert all(torch.isfinite(p.grad).all() for p in model.parameters())
    return found


@pytest.mark.parametrize("copy", [False, True])
@pytest.mark.parametrize(("name", "dtype", "base"), [("amp", Dtype.auto, "bfloat16"), ("amp", Dtype.float16, "float16"),
    ("o2", Dtype.float16, "float16"), ("o3", Dtype.float16, "float16"), ("fp32", Dtype.auto, "float32")])  # fmt: skip
def test_only_the_named_modules_change(name, dtype, base, copy):
    found = seen(name, ["classifier.*=float32", "features.2=bfloat16"], dtype, copy=copy)
    assert found == {"features.0": base, "features.2": "bfloat16", "classifier.1": "float32", "classifier.2": "float32"}


def test_of_several_patterns_the_last_counts():
    found = seen("amp", ["*=float32", "features.[02]=bfloat16", "classifier.?=float32", "classifier.2=bfloat16"])
    assert found == {"features.0": "bfloat16", "features.2": "bfloat16", "classifier.1": "float32", "classifier.2": "bfloat16"}


def test_a_pattern_that_matches_nothing_names_the_nearest():
    with pytest.raises(ConfigError, match=r"no module of the network matches 'clasifier\.\*'; the nearest names are classifier"):
        seen("amp", ["clasifier.*=float32"])


@pytest.mark.parametrize(("pattern", "casts"), [("classifier*", 1), ("classifier.*", 3)])
def test_a_block_is_cast_at_its_own_door_only(pattern, casts):
    """The layers inside a named block pass float32 on to each other."""
    precision = build_precision(
        PrecisionConfig(name="o2", dtype=Dtype.float16, overrides=[f"{pattern}=float32"]), device=torch.device("cpu")
    )
    model = precision.prepare(Net())
    assert sum("forward" in module.__dict__ for name, module in model.named_modules() if name) == casts
    assert model.classifier[1].weight.dtype == torch.float32


class Normed(nn.Module):
    def __init__(self):
        super().__init__()
        self.block = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.Linear(8, 8))
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        return self.head(self.block(x))


@pytest.mark.parametrize("pattern", ["block", "block*", "block.*", "block.1", "block.2"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", ["fp32", "amp", "o2", "o3"])
def test_every_pattern_works_in_every_mode_around_a_norm(name, dtype, pattern):
    precision = build_precision(
        PrecisionConfig(name=name, dtype=Dtype.auto if name == "fp32" else Dtype.float16, overrides=[f"{pattern}={dtype}"]),
        device=torch.device("cpu"),
    )
    model = Normed()
    working = precision.prepare(model)
    with precision.autocast():
        loss = working(torch.randn(2, 8)).float().square().mean()
    loss.backward()
    assert torch.isfinite(loss)
    assert all(parameter.grad is not None for parameter in working.parameters())
    if name == "o2":
        assert working.block[1].weight.dtype == (
            torch.bfloat16 if dtype == "bfloat16" and pattern not in ("block", "block.2") else torch.float32
        )
