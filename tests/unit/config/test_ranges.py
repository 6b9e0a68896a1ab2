"""The declared range of each option, in words and as a check."""

from dataclasses import replace
from typing import Any

import pytest

from src.config.keys import every_leaf
from src.config.ranges import allowed, check_ranges, convert_leaf, limits
from src.config.schema import Config, SaveConfig, TrainConfig
from src.errors import ConfigError

LEAVES = every_leaf(Config)


@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("optim.lr", "above 0"),
        ("optim.momentum", "at least 0 and below 1"),
        ("train.max_steps", "null or at least 1"),
        ("model.num_classes", "auto or at least 2"),
        ("train.channels_last", "true, false or auto"),
        ("deterministic", "true or false"),
        ("precision.dtype", "auto, float16 or bfloat16"),
        ("optim.betas", "a list of floats"),
        ("name", "a string or null"),
        ("tags", "a mapping"),
    ],
)
def test_the_rule_in_words(key: str, words: str) -> None:
    assert allowed(LEAVES[key]) == words


def test_every_option_has_a_rule_in_words_and_a_default_that_keeps_it() -> None:
    for leaf in LEAVES.values():
        assert allowed(leaf)
        assert leaf.rule["doc"]
        convert_leaf(leaf.default, leaf)


def test_only_numbers_have_limits() -> None:
    assert limits(LEAVES["optim.lr"]) == "above 0"
    assert limits(LEAVES["device"]) == ""


@pytest.mark.parametrize(
    ("key", "value", "answer"),
    [
        ("optim.lr", "abc", "optim.lr=abc is not a float (above 0)"),
        ("train.epochs", 1.5, "train.epochs=1.5 is not an integer (at least 1 and at most 1000000)"),
        ("model.num_classes", "x", None),
        ("data.num_workers", 1.5, "data.num_workers=1.5 is not an integer (at least 0) or auto"),
    ],
)
def test_a_wrong_type_is_told_with_its_range(key: str, value: Any, answer: str | None) -> None:
    """C09; a wrong word has the right type, and check_ranges refuses it."""
    if answer is None:
        assert convert_leaf(value, LEAVES[key]) == value
        return
    with pytest.raises(ConfigError) as caught:
        convert_leaf(value, LEAVES[key])
    assert str(caught.value) == answer


@pytest.mark.parametrize(
    ("config", "answer"),
    [
        (Config(seed=-1), "seed=-1 must be at least 0"),
        (Config(train=TrainConfig(clip_norm=0.0)), "train.clip_norm=0.0 must be above 0"),
        (Config(train=TrainConfig(clip_norm=float("inf"))), "train.clip_norm=inf must be finite and above 0"),
        (Config(save=SaveConfig(keep=0)), "save.keep=0 must be at least 1"),
        (replace(Config(), train=TrainConfig(channels_last="yes")), "train.channels_last=yes must be true, false or auto"),
    ],
)
def test_values_out_of_range(config: Config, answer: str) -> None:
    """C09"""
    with pytest.raises(ConfigError) as caught:
        check_ranges(config)
    assert str(caught.value).startswith(answer)
