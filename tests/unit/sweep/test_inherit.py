"""The merge rules on plain dicts."""

from pathlib import Path

import pytest

from src.checkpoint.save import write_checkpoint
from src.config.schema import OPTIONS, Config
from src.errors import CheckpointError, ConfigError
from src.sweep.inherit import Difference, differences, merge, saved_config, saved_options

SAVED = {"seed": 5, "name": "old", "tags": {"a": 1}, "optim": {"name": "sgd", "lr": 0.1, "momentum": 0.7}, "precision": {"name": "amp"}}
COMPOSED = {
    "seed": 0,
    "name": None,
    "tags": {"b": 2},
    "tracking": {"name": "none"},
    "checkpoint": "c.pt",
    "split": "test",
    "optim": {"name": "adamw", "lr": 0.5, "betas": [0.9, 0.9]},
    "precision": {"name": "fp32", "scaler": {"enabled": "auto"}},
}


def test_without_choices_only_the_runs_own_keys_change() -> None:
    merged = merge(SAVED, COMPOSED, groups=[], keys=[])
    assert merged["optim"] == SAVED["optim"]
    assert merged["seed"] == 5
    assert {key: merged[key] for key in ("name", "tags", "tracking", "checkpoint", "split")} == {
        "name": None,
        "tags": {"b": 2},
        "tracking": {"name": "none"},
        "checkpoint": "c.pt",
        "split": "test",
    }


def test_a_chosen_group_is_taken_whole() -> None:
    assert merge(SAVED, COMPOSED, groups=["optim"], keys=[])["optim"] == COMPOSED["optim"]


def test_a_single_value_replaces_only_itself() -> None:
    merged = merge(SAVED, COMPOSED, groups=[], keys=["optim.lr", "seed", "precision.scaler.enabled", "tags.b"])
    assert merged["optim"] == {"name": "sgd", "lr": 0.5, "momentum": 0.7}
    assert merged["seed"] == 0
    assert merged["precision"] == {"name": "amp", "scaler": {"enabled": "auto"}}


def test_the_inputs_stay_as_they_are() -> None:
    merged = merge(SAVED, COMPOSED, groups=["precision"], keys=["optim.lr"])
    merged["optim"]["lr"] = merged["precision"]["name"] = "changed"
    assert SAVED["optim"] == {"name": "sgd", "lr": 0.1, "momentum": 0.7}
    assert COMPOSED["precision"] == {"name": "fp32", "scaler": {"enabled": "auto"}}


def test_differences_leave_out_the_runs_own_keys() -> None:
    saved = {"optim.lr": 0.1, "optim.momentum": 0.9, "seed": 1, "name": "a", "tracking.uri": "x"}
    used = {"optim.lr": 0.2, "seed": 1, "name": "b", "tracking.uri": "y", "checkpoint": "c"}
    assert differences(saved, used) == [Difference("optim.lr", 0.1, 0.2), Difference("optim.momentum", 0.9, None)]


def test_another_option_is_one_difference_and_only_shared_keys_are_compared() -> None:
    saved = {"optim.name": "sgd", "optim.lr": 0.1, "optim.momentum": 0.9, "data.name": "custom", "objective.name": "val/loss"}
    used = {"optim.name": "adamw", "optim.lr": 0.2, "optim.betas": "[0.9,0.999]", "data.name": "custom", "data.kwargs.n": 3}
    assert differences(saved, used | {"objective.name": "val/top5", "trust_code": True}) == [
        Difference("data.kwargs.n", None, 3),
        Difference("objective.name", "val/loss", "val/top5"),
        Difference("optim", "sgd", "adamw"),
        Difference("optim.lr", 0.1, 0.2),
    ]


def test_options_of_another_version_are_refused() -> None:
    assert saved_options(SAVED) == {"optim": "sgd", "precision": "amp"}
    with pytest.raises(ConfigError, match="optim=lion is not an option"):
        saved_options({"optim": {"name": "lion"}})


@pytest.mark.parametrize("reference", [None, ""])
def test_a_checkpoint_must_be_named(reference: str | None, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"checkpoint is not set; give .*checkpoint=PATH"):
        saved_config(reference, base=tmp_path, uri=None)


def save(directory: Path, config: object) -> str:
    return str(write_checkpoint(directory, {"config": config}, about={"step": 1}, is_best=False, keep=1))


def test_a_saved_config_is_complete(tmp_path: Path) -> None:
    """A group that the file leaves out is there by name, as the commands' own choices count on."""
    path, config = saved_config(save(tmp_path, {"seed": 5}), base=tmp_path, uri=None)
    assert path == tmp_path / "step-00000001.pt"
    assert config["seed"] == 5
    assert saved_options(config) == {group: getattr(Config(), group).name for group in OPTIONS}


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"later": 1}, "later is not an option"),
        ({"model": "resnet"}, "model=resnet is not a section"),
        ({"model": {"name": "../../evil"}}, "model=../../evil is not an option of model"),
        ({"data": {"name": ["digits"]}}, "is not an option of data"),
        ({"train": {"epochs": "many"}}, "train.epochs=many"),
        ({"optim": {"name": "sgd", "lr": [1]}}, "optim.lr="),
    ],
)
def test_a_saved_config_that_this_version_does_not_know_is_the_files_fault(tmp_path: Path, config: object, said: str) -> None:
    """Nobody typed those options, so the message names the file."""
    path = save(tmp_path, config)
    with pytest.raises(CheckpointError) as caught:
        saved_config(path, base=tmp_path, uri=None)
    assert str(caught.value).startswith(f"{path}: this version can't use its config (")
    assert said in str(caught.value)
    assert str(caught.value).endswith("; use the version that wrote it")
    assert "\n" not in str(caught.value)
