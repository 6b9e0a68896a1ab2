"""The source of inf and NaN, planted and found."""

import json

import pytest
import torch
from torch import nn

from src.engine import loop
from src.engine.diagnose import examine
from src.engine.state import TrainState
from src.errors import NonFiniteError
from src.models import MODELS, ModelNeeds, ModelSpec

from .conftest import change_batches, history, weights

FLOAT16 = {"name": "amp", "dtype": "float16", "scaler": {"init_scale": 256.0}}


class Gain(nn.Module):
    """Multiplies by a constant too large for float16, forward or only backward."""

    def __init__(self, forward: float, backward: float) -> None:
        super().__init__()
        self.forward_gain, self.backward_gain = forward, backward

    def forward(self, x):
        y = x * self.forward_gain
        return y + (x - x.detach()) * self.backward_gain


def net(forward=1.0, backward=0.0):
    def build(num_classes, channels, size):
        layers = [nn.Flatten(), nn.Linear(channels * 64, 16), nn.ReLU(inplace=True), Gain(forward, backward), nn.Linear(16, num_classes)]
        return nn.Sequential(*layers)

    return ModelSpec(build, ModelNeeds(None, 8, 8))


@pytest.fixture
def parts_with(make_parts, monkeypatch):
    def make(spec=None, **sections):
        monkeypatch.setitem(MODELS, "digits_cnn", spec or net())
        return make_parts(**sections)

    return make


def first_batch(parts):
    return next(iter(parts.data.train.epoch(0)))


@pytest.mark.parametrize(
    ("spec", "where", "module"),
    [(net(forward=1e6), "forward", "3"), (net(backward=1e9), "backward", "2"), (net(), "nowhere", None)],
)
def test_the_first_module_is_named(parts_with, spec, where, module):
    """float16 ends at 65504: activations in the forward pass, gradients in the backward pass."""
    parts = parts_with(spec, precision=FLOAT16)
    report = examine(parts, first_batch(parts))
    assert (report["where"], report["module"]) == (where, module)
    if where == "backward":
        assert report["parameter"] == "1.weight"
    json.dumps(report, allow_nan=False)


def test_bad_images_are_named_by_their_index(parts_with):
    parts = parts_with(precision=FLOAT16)
    batch = first_batch(parts)
    batch.images[2, 0, 0, 0] = float("nan")
    report = examine(parts, batch)
    assert (report["where"], report["sample_indices"]) == ("input", [int(batch.index[2])])
    assert report["samples_are_the_culprits"]


def test_looking_changes_nothing(parts_with):
    parts = parts_with(net(backward=1e9), precision=FLOAT16)
    before, random = weights(parts), torch.get_rng_state()
    examine(parts, first_batch(parts))
    assert all(torch.equal(tensor, before[name]) for name, tensor in weights(parts).items())
    assert torch.equal(torch.get_rng_state(), random)
    assert all(parameter.grad is None for parameter in parts.model.parameters())


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("diagnose", [True, False])
def test_diagnosis_comes_with_the_first_skip_if_asked_for(parts_with, diagnose, accumulate):
    parts = parts_with(precision=FLOAT16 | {"diagnose": diagnose}, train={"max_steps": 3, "accumulate": accumulate})

    def poison(batch, number):
        if number == accumulate + 1:  # the first micro-batch of step 2
            batch.images[0].fill_(float("inf"))
        return batch

    change_batches(parts, poison)
    loop.fit(parts, TrainState())
    path = parts.run_dir / "overflow.json"
    assert path.exists() == diagnose
    if diagnose:
        assert (json.loads(path.read_text())["where"], json.loads(path.read_text())["step"]) == ("input", 2)


def test_a_collapse_is_diagnosed_by_itself(parts_with):
    """A08: the message names the first bad step and the module, and so does overflow.json."""
    parts = parts_with(net(forward=1e6), precision=FLOAT16 | {"scaler": {"max_consecutive_skips": 4, "init_scale": 4.0}})
    with pytest.raises(NonFiniteError, match=r"^4 updates .*from step 1 on .*module 3 .*precision.overrides=\['3=float32'\]"):
        loop.fit(parts, TrainState())
    assert json.loads((parts.run_dir / "overflow.json").read_text())["module"] == "3"


def test_the_share_of_underflow_is_that_of_the_scaled_gradients(parts_with):
    """A small scale loses values, a large one keeps them; the counts are numpy's on the same gradients."""
    shares = {}
    for scale in (1e-4, 4096.0):
        parts = parts_with(run=f"scale{scale}", precision=FLOAT16 | {"scaler": {"init_scale": scale}}, train={"max_steps": 1})
        seen = []
        original = parts.precision.gradient_statistics

        def look(optimizer, original=original, seen=seen):
            values = torch.cat([p.grad.flatten() for group in optimizer.param_groups for p in group["params"]]).numpy()
            seen.append(float((abs(values) < 2**-14).mean()))
            return original(optimizer)

        parts.precision.gradient_statistics = look
        loop.fit(parts, TrainState())
        shares[scale] = history(parts, "amp/underflow_share")[1]
        assert shares[scale] == pytest.approx(seen[0])
    assert shares[1e-4] > 0.9 > shares[4096.0]
