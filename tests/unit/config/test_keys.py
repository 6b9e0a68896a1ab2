"""Option paths follow the chosen options, and a wrong one is answered with the right one."""

from operator import attrgetter

import pytest

from src.config.keys import every_leaf, free_sections, leaves, nearest, option_kind, option_leaves, sections, unknown_key, unknown_option
from src.config.schema import OPTIONS, Config, EvaluateConfig, SGDConfig
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
    assert free_sections(leaves(Config, NAMES | {"model": "custom", "data": "custom"})) == ("tags", "model.kwargs", "data.kwargs")


def test_defaults_are_those_that_the_dataclasses_give() -> None:
    for group, options in OPTIONS.items():
        for name, kind in options.items():
            for path, leaf in option_leaves(group, name).items():
                assert leaf.default == attrgetter(path.removeprefix(f"{group}."))(kind())


def test_every_key_of_every_option_is_known() -> None:
    keys = every_leaf(EvaluateConfig)
    assert {"optim.momentum", "optim.betas", "parallel.backend", "model.kwargs", "checkpoint", "train.epochs"} < keys.keys()
    assert keys["optim.lr"].default == 2e-3  # of the first option that has it


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
        ("save.directory", "use one of save.every_epochs, save.every_steps, save.keep"),
        ("optim.momentum", "belongs to optim=sgd; optim=adamw has no such option"),
        ("seed.x", "seed is a single value; write seed=VALUE"),
        ("zzzzzz", "--help lists them all"),
        ("num_processes", "did you mean parallel.num_processes (with parallel=ddp)?"),
        ("optim.momentun", "did you mean optim.momentum (with optim=sgd)?"),
        ("model.kwargs.width", "belongs to model=torchvision or model=timm or model=custom; model=digits_cnn has no such option"),
        ("data.kwargs", "belongs to data=custom; data=digits has no such option"),
        ("optim.lr.x", "optim.lr is a single value; write optim.lr=VALUE"),
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
    assert unknown_option("model", "", ["resnet18"]) == "model= is empty; use one of resnet18"
    assert option_kind("optim", "sgd") is SGDConfig
    with pytest.raises(ConfigError, match="optim=adam is not an option of optim; did you mean optim=adamw"):
        option_kind("optim", "adam")


@pytest.mark.parametrize(
    ("group", "typed", "meant"),
    [
        ("precision", "fp16", "precision=amp precision.dtype=float16"),
        ("precision", "half", "precision=amp precision.dtype=float16"),
        ("precision", "float16", "precision=amp precision.dtype=float16"),
        ("precision", "mixed", "precision=amp"),
        ("precision", "AMP", "precision=amp"),
        ("precision", "bfloat16", "precision=bf16"),
        ("precision", "float32", "precision=fp32"),
        ("model", "resnet", "model=resnet18"),
        ("model", "ResNet50", "model=resnet50"),
        ("data", "cifar", "data=cifar10"),
        ("optim", "adam", "optim=adamw"),
    ],
)
def test_what_was_meant_by_an_option(group: str, typed: str, meant: str) -> None:
    assert f"did you mean {meant}? Options: " in unknown_option(group, typed, list(OPTIONS[group]))
