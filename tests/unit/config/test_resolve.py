"""Relative paths are taken from where the command was typed; everything else stays."""

import os
from pathlib import Path

import pytest

from src.config.resolve import absolute_paths, with_defaults
from src.config.runfile import to_config
from src.config.schema import EvaluateConfig

BASE = Path("/typed/here")
RUN_ID = "0123456789abcdef0123456789abcdef"


def test_relative_paths_become_absolute_once() -> None:
    """C04"""
    data = {"data": {"name": "image_folder", "root": "./d"}, "resume": "../c.pt", "tracking": {"uri": "runs/store"}, "checkpoint": "c é.pt"}
    config = absolute_paths(to_config(data, EvaluateConfig), BASE)
    assert config.data.root == "/typed/here/d"  # type: ignore[attr-defined]
    assert (config.resume, config.tracking.uri, config.checkpoint) == ("/typed/c.pt", "/typed/here/runs/store", "/typed/here/c é.pt")
    assert absolute_paths(config, Path("/elsewhere")) == config


@pytest.mark.parametrize("resume", [None, "auto", RUN_ID, "/abs/c.pt"])
@pytest.mark.parametrize("uri", [None, "http://host:5000", "sqlite:///x.db", "file:/x"])
def test_what_is_no_relative_path_stays(resume: str | None, uri: str | None) -> None:
    config = to_config({"resume": resume, "tracking": {"uri": uri}, "checkpoint": RUN_ID}, EvaluateConfig)
    assert absolute_paths(config, BASE) == config


def test_home_is_expanded() -> None:
    config = absolute_paths(to_config({"resume": "~/c.pt"}), BASE)
    assert config.resume == os.path.expanduser("~/c.pt")


def test_an_unknown_home_is_just_a_name() -> None:
    assert absolute_paths(to_config({"resume": "~nobody-here/c.pt"}), BASE).resume == "/typed/here/~nobody-here/c.pt"


def test_the_name_is_filled_in() -> None:
    config = to_config({"model": {"name": "resnet18"}, "parallel": {"name": "ddp"}})
    assert with_defaults(config).name == "resnet18-digits-amp-ddp"
    assert with_defaults(to_config({"name": "mine"})).name == "mine"
    assert with_defaults(to_config({}, EvaluateConfig)).name == "evaluate-digits_cnn-digits-amp-single"
    assert with_defaults(to_config({"model": {"name": "timm", "arch": "hub/net:1"}})).name == "hub_net_1-digits-amp-single"


@pytest.mark.parametrize("pretrained", [None, "torchvision", "timm", "/abs/w.pt", RUN_ID])
def test_weights_with_a_name_are_no_path(pretrained: str | None) -> None:
    config = to_config({"model": {"name": "resnet18", "pretrained": pretrained}})
    assert absolute_paths(config, BASE) == config
    assert absolute_paths(to_config({"model": {"pretrained": "w.pt"}}), BASE).model.pretrained == "/typed/here/w.pt"


@pytest.mark.parametrize(("subset", "images"), [(None, 24), (10, 10), (100, 24)])
def test_a_dry_run_is_two_steps_of_everything(subset: int | None, images: int) -> None:
    config = with_defaults(to_config({"dry_run": True, "train": {"batch_size": 12}, "data": {"subset": subset}}))
    assert (config.train.max_steps, config.train.epochs, config.train.log_every, config.data.subset) == (2, 1, 1, images)
    assert with_defaults(config) == config
