"""Each rule refuses what it should, lets its neighbours through, and says what to do."""

from dataclasses import replace
from typing import Any

import pytest

from src.config.checks import check
from src.config.runfile import to_config
from src.config.schema import AdamWConfig, Config, DigitsConfig, EvaluateConfig, OptimConfig
from src.errors import ConfigError

from .conftest import passes, refusal


@pytest.mark.parametrize("cuda_devices", [None, 0, 1, 8])
def test_the_defaults_pass_everywhere(cuda_devices: int | None) -> None:
    passes(cuda_devices)


@pytest.mark.parametrize(
    ("data", "text"),
    [
        ({"optim": {"lr": -1.0}}, "optim.lr=-1.0 must be above 0"),
        ({"optim": {"lr": 0}}, "optim.lr=0.0 must be above 0"),
        ({"optim": {"lr": float("nan")}}, "optim.lr=nan must be finite and above 0"),
        ({"optim": {"lr": float("inf")}}, "optim.lr=inf must be finite and above 0"),
        ({"train": {"epochs": -1}}, "train.epochs=-1 must be at least 1 and at most 1000000"),
        ({"train": {"batch_size": 0}}, "train.batch_size=0 must be at least 1"),
        ({"train": {"accumulate": 0}}, "train.accumulate=0 must be at least 1"),
        ({"train": {"max_steps": 0}}, "train.max_steps=0 must be at least 1"),
        ({"train": {"label_smoothing": 1.0}}, "train.label_smoothing=1.0 must be at least 0 and below 1"),
        ({"train": {"channels_last": "maybe"}}, "train.channels_last=maybe must be true, false or auto"),
        ({"model": {"num_classes": "many"}}, "model.num_classes=many must be auto or at least 2"),
        ({"model": {"num_classes": 1}}, "model.num_classes=1 must be auto or at least 2"),
        ({"data": {"name": "synthetic", "channels": 4}}, "data.channels=4 must be at least 1 and at most 3"),
        ({"data": {"mean": [float("nan")]}}, "data.mean=[nan] must be finite"),
        ({"precision": {"scaler": {"backoff_factor": 1.0}}}, "precision.scaler.backoff_factor=1.0 must be above 0 and below 1"),
    ],
)
def test_ranges(data: dict[str, Any], text: str) -> None:
    """C09"""
    assert refusal(**data) == text


def test_limits_themselves() -> None:
    passes(train={"epochs": 1, "label_smoothing": 0.0, "max_steps": None, "channels_last": True}, model={"num_classes": 2})


def test_a_name_must_be_an_option_and_fit_its_fields() -> None:
    base = Config(data=DigitsConfig(), optim=AdamWConfig())
    with pytest.raises(ConfigError, match=r"^optim.name=sgd: choose the group option instead: optim=sgd$"):
        check(replace(base, optim=AdamWConfig(name="sgd")), cuda_devices=0)
    with pytest.raises(ConfigError, match="optim"):
        check(replace(base, optim=OptimConfig()), cuda_devices=0)


def test_objective() -> None:
    assert refusal(objective={"name": "val/loss"}) == "objective.mode=max does not fit objective.name=val/loss; use min"
    assert "use max" in refusal(objective={"name": "val/top5", "mode": "min"})
    assert "val/accuracy" in refusal(objective={"name": "val/auc"})
    passes(objective={"name": "train/loss", "mode": "min"})


def test_optimizers() -> None:
    assert "needs optim.momentum above 0" in refusal(optim={"name": "sgd", "momentum": 0.0})
    passes(optim={"name": "sgd", "momentum": 0.0, "nesterov": False})
    for betas in ([0.9], [0.9, 1.0], [-0.1, 0.9], [0.9, 0.9, 0.9]):
        assert "optim.betas" in refusal(optim={"name": "adamw", "betas": betas})
    passes(optim={"name": "adamw", "betas": [0.0, 0.5]})


def test_data() -> None:
    assert refusal(data={"name": "image_folder"}).startswith("data.root is not set;")
    assert refusal(data={"name": "image_folder", "root": ""}).startswith("data.root is not set;")
    passes(data={"name": "image_folder", "root": "/nowhere"})  # whether it exists is for the data to say
    assert "equally long" in refusal(data={"mean": [0.5], "std": [0.5, 0.5, 0.5]})
    assert "above 0 in every channel" in refusal(data={"std": [0.5, 0.0, 0.5]})
    assert "one number per channel" in refusal(data={"mean": [0.5, 0.5]})


def test_alexnet_has_a_smallest_image() -> None:
    assert "use at least 63" in refusal(model={"name": "alexnet"}, data={"image_size": 62})
    passes(model={"name": "alexnet"}, data={"image_size": 63})
    passes(model={"name": "resnet18"}, data={"image_size": 32})


@pytest.mark.parametrize("text", ["../../evil", "a/b", "a\\b", "a\nb", "..", "a\x00", " ", ""])
@pytest.mark.parametrize("key", ["name", "tracking.run_name", "tracking.experiment_name"])
def test_names_cannot_reach_the_file_system(key: str, text: str) -> None:
    """I10"""
    data = {"name": text} if key == "name" else {"tracking": {key.split(".")[1]: text}}
    assert refusal(**data).startswith(key)


def test_a_name_may_hold_any_other_character() -> None:
    """C06"""
    passes(name="a b, c=d | é")


CUSTOM = {"name": "custom", "factory": "my.nets:build"}


@pytest.mark.parametrize(
    ("data", "text"),
    [
        ({"model": {"name": "custom"}}, "model.factory is not set; name your function: model.factory=package.module:function"),
        ({"data": {"name": "custom"}}, "data.factory is not set; name your function: data.factory=package.module:function"),
        ({"model": {"name": "custom", "factory": "nets.build"}}, "model.factory=nets.build must have the form package.module:function"),
        ({"data": {"name": "custom", "factory": "../x:y"}}, "data.factory=../x:y must have the form package.module:function"),
        (
            {"schedule": {"name": "multistep", "milestones": []}},
            "schedule.milestones=[] must be growing epochs of at least 1, as in [10,15]",
        ),
        ({"schedule": {"name": "multistep", "milestones": [5, 5]}}, "schedule.milestones=[5,5] must be growing"),
        ({"schedule": {"name": "multistep", "milestones": [0, 5]}}, "schedule.milestones=[0,5] must be growing"),
        ({"schedule": {"name": "onecycle", "peak_fraction": 1.0}}, "schedule.peak_fraction=1.0 must be above 0 and below 1"),
        ({"train": {"ema_decay": 1.0}}, "train.ema_decay=1.0 must be above 0 and below 1"),
        ({"train": {"early_stop_patience": 0}}, "train.early_stop_patience=0 must be at least 1"),
        ({"model": {"reset_head": True}}, "model.reset_head=true has no effect without weights"),
        ({"model": {"pretrained": ""}}, "model.pretrained= is empty"),
        (
            {"model": {"name": "vit_b_16"}, "data": {"image_size": 32}},
            "data.image_size=32 is too small for model=vit_b_16; use at least",
        ),
    ],
)
def test_models_data_and_schedules(data: dict[str, Any], text: str) -> None:
    assert refusal(**data).startswith(text)


def test_their_neighbours_pass() -> None:
    passes(model=CUSTOM | {"kwargs": {"width": 99}}, data={"name": "custom", "factory": "pkg.sub.data:make_sets"})
    passes(schedule={"name": "multistep", "milestones": [1, 7]}, train={"ema_decay": 0.999, "early_stop_patience": 1})
    passes(model={"name": "torchvision", "arch": "convnext_tiny", "pretrained": "torchvision", "reset_head": True})


@pytest.mark.parametrize("section", ["model", "data"])
def test_a_checkpoints_code_runs_only_when_the_user_says_so(section: str) -> None:
    config = to_config({section: CUSTOM, "checkpoint": "/c.pt"}, EvaluateConfig)
    with pytest.raises(ConfigError, match=f"{section}.factory=my.nets:build is code that the checkpoint names; add trust_code=true"):
        check(config, cuda_devices=0)
    check(replace(config, trust_code=True), cuda_devices=0)


def test_replicas_are_not_compiled() -> None:
    assert "train.compile=default can't compile replicas of parallel=dp" in refusal(parallel={"name": "dp"}, train={"compile": "default"})
    assert "train.compile_fallback=true has no effect with train.compile=none" in refusal(train={"compile_fallback": True})
    for name in ("single", "ddp", "fsdp"):
        passes(parallel={"name": name}, train={"compile": "reduce_overhead", "compile_fallback": True})


def test_a_config_that_no_checkpoint_can_hold() -> None:
    passes(tags={"note": "x" * 50_000})
    assert "shorten tags or kwargs" in refusal(tags={"note": "x" * 60_000})
