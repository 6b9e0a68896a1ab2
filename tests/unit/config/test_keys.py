"""Option paths follow the chosen options, and a wrong one is answered with the right one."""

import pytest

from src.config.keys import free_sections, leaves, nearest, option_kind, sections, unknown_key, unknown_option
from src.config.schema import Config, SGDConfig
from src.errors import ConfigError

NAMES = {
    "model": "digits_cnn",
    "data": "digits",
    "optim": "adamw",
    "schedule": "cosine",
    "precision": "amp",
    "parallel": "single",
    "tracking": "mlflow",
}


def test_only_the_fields_of_the_chosen_option_exist() -> None:
    assert "optim.betas" in leaves(Config, NAMES)
    assert "optim.momentum" not in leaves(Config, NAMES)
    assert "optim.momentum" in leaves(Config, NAMES | {"optim": "sgd"})
    assert {"train", "precision", "precision.scaler"} < sections(leaves(Config, NAMES))


def test_free_sections_are_the_mappings() -> None:
    assert free_sections(leaves(Config, NAMES)) == ("tags",)


@pytest.mark.parametrize(
    ("key", "answer"),
    [
        ("optim.lrr", "did you mean optim.lr?"),
        ("train.epoch", "did you mean train.epochs?"),
        ("lr", "did you mean optim.lr?"),
        ("batch_size", "did you mean train.batch_size?"),
        ("trian.epochs", "did you mean train.epochs?"),
        ("trian.epoch", "did you mean train.epochs?"),
        ("precision.init_scale", "did you mean precision.scaler.init_scale?"),
        ("nme", "did you mean name?"),
        ("save.directory", "use one of save.every_epochs, save.keep"),
        ("optim.momentum", "belongs to optim=sgd; optim=adamw has no such option"),
        ("seed.x", "seed is a single value; write seed=VALUE"),
        ("zzzzzz", "--cfg job lists them all"),
    ],
)
def test_an_unknown_key_gets_an_answer(key: str, answer: str) -> None:
    """C08"""
    text = unknown_key(key, leaves(Config, NAMES), NAMES)
    assert text.startswith(key)
    assert answer in text


def test_a_group_name_is_never_suggested() -> None:
    assert "optim.name" not in unknown_key("optim.nam", leaves(Config, NAMES), NAMES)


def test_nothing_near_is_no_suggestion() -> None:
    assert nearest("qqq", ["optim.lr", "train.epochs"]) is None


def test_an_unknown_option_lists_the_options() -> None:
    """H01"""
    assert unknown_option("model", "huge", ["resnet18", "alexnet"]) == "model=huge is not an option of model; use one of alexnet, resnet18"
    assert "did you mean parallel=ddp?" in unknown_option("parallel", "dpp", ["single", "ddp"])
    assert "there are none" in unknown_option("experiment", "x", [])
    assert option_kind("optim", "sgd") is SGDConfig
    with pytest.raises(ConfigError, match="optim=adam is not an option of optim; did you mean optim=adamw"):
        option_kind("optim", "adam")
