from dataclasses import replace
from pathlib import Path

import pytest

from src.checkpoint.drift import drift
from src.config import runfile
from src.config.schema import AdamWConfig, Config, ModelConfig, SGDConfig
from src.errors import CheckpointError

CONFIG = Config(optim=AdamWConfig(lr=0.001))
PATH = Path("step.pt")


def test_differences_are_by_leaf_and_the_start_is_none():
    now = replace(CONFIG, optim=AdamWConfig(lr=0.1), tags={"why": "test"}, resume="here", name="second")
    assert drift(PATH, runfile.to_dict(CONFIG), runfile.to_dict(now)) == {"optim.lr": (0.001, 0.1), "tags.why": (None, "test")}


def test_a_key_that_came_later_had_its_default():
    saved = runfile.to_dict(CONFIG)
    del saved["train"]["compile"]
    assert drift(PATH, saved, runfile.to_dict(CONFIG)) == {}


def test_a_config_that_this_version_does_not_know():
    with pytest.raises(CheckpointError, match=r"step\.pt: this version can't use its config \(.*later.*\); use the version that wrote it"):
        drift(PATH, {"later": 1}, runfile.to_dict(CONFIG))


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ({"model": ModelConfig(name="alexnet")}, {}, ["model.name was alexnet and is digits_cnn now"]),
        ({"model": ModelConfig(num_classes=12)}, {}, ["model.num_classes was 12 and is auto now"]),
        ({"optim": SGDConfig()}, {}, ["optim.name was sgd and is adamw now"]),
        ({}, {"optim": AdamWConfig(decay_all=True)}, ["optim.decay_all was false and is true now"]),
        (
            {"model": ModelConfig(name="alexnet"), "optim": SGDConfig()},
            {},
            ["model.name was alexnet and is digits_cnn now", "optim.name was sgd and is adamw now"],
        ),
    ],
)
def test_another_network_or_optimizer_is_refused_with_all_that_differs(old, new, said):
    saved, now = (runfile.to_dict(replace(CONFIG, **changes)) for changes in (old, new))
    with pytest.raises(CheckpointError) as error:
        drift(PATH, saved, now)
    assert str(error.value) == f"step.pt can't go on with another network or optimizer: {'; '.join(said)}; set them back to resume"


@pytest.mark.parametrize("change", [{"pretrained": "weights.pt"}, {"reset_head": True}])
def test_what_only_the_start_uses_may_differ(change):
    assert drift(PATH, runfile.to_dict(replace(CONFIG, model=ModelConfig(**change))), runfile.to_dict(CONFIG))
