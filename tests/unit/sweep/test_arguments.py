"""Flags and words of a command line, and what is said to somebody who is used to another program."""

import pytest

from src.config.schema import EvaluateConfig
from src.errors import ConfigError
from src.sweep.arguments import read_args


@pytest.mark.parametrize(
    ("argv", "answer"),
    [
        (["--epochs", "3"], "--epochs 3: options are written KEY=VALUE; write train.epochs=3"),
        (["--lr=0.1"], "--lr=0.1: options are written KEY=VALUE; write optim.lr=0.1"),
        (["--precision", "amp"], "--precision amp: options are written KEY=VALUE; write precision=amp"),
        (["--batch-size", "8", "seed=1"], "--batch-size 8: options are written KEY=VALUE; write train.batch_size=8"),
        (["--deterministic"], "--deterministic: options are written KEY=VALUE; write deterministic=VALUE"),
        (["--deterministic", "seed=1"], "--deterministic: options are written KEY=VALUE; write deterministic=VALUE"),
        (["--num_processes", "4"], "--num_processes 4: options are written KEY=VALUE; write parallel.num_processes=4 (with parallel=ddp)"),
        (["-model=resnet18"], "-model=resnet18: options are written KEY=VALUE; write model=resnet18"),
        (["-precision", "amp"], "-precision amp: options are written KEY=VALUE; write precision=amp"),
        (["--multi"], "--multi is not a flag; did you mean --multirun?"),
        (["--qqq", "1"], "--qqq is not a flag; options are written KEY=VALUE; --help lists them"),
        (["--cfg", "foo"], "argument --cfg/-c: invalid choice: 'foo' (choose from 'job', 'hydra', 'all')"),
        (["precision", "=", "amp"], "precision = amp: no space belongs around =; write precision=amp"),
        (["precision=", "amp"], "precision= amp: no space belongs around =; write precision=amp"),
        (["seed=1", "precision", "=amp"], "precision =amp: no space belongs around =; write precision=amp"),
        (["optim.lr", "0.1"], "optim.lr 0.1: write optim.lr=0.1"),
        (["model", "resnet18"], "model resnet18: write model=resnet18"),
        (["seed=1", "model"], "model is not an override; write model=VALUE (--help lists the keys)"),
        (["train"], "train is not an override; write KEY=VALUE (--help lists the keys)"),
        (["train", "optim.lr=0.1"], "train is not an override; write KEY=VALUE (--help lists the keys)"),
        (
            ["optim.lr=1e-4", "1e-3"],
            "1e-3 is not an override; to sweep over values add -m and write optim.lr=1e-4,1e-3; "
            'quote a text with a space: "optim.lr=1e-4 1e-3"',
        ),
    ],
)
def test_habits_are_answered_in_one_line(argv: list[str], answer: str) -> None:
    """H01"""
    with pytest.raises(ConfigError) as caught:
        read_args(argv)
    assert str(caught.value) == answer


def test_flags_are_hydras_and_may_stand_anywhere() -> None:
    args = read_args(["a=1", "-m", "b=1,2", "-cd", "x", "c= "])
    assert (args.overrides, args.multirun, args.config_dir) == (["a=1", "b=1,2", "c= "], True, "x")
    assert read_args(["--help", "model="]).help
    assert read_args(["-sc", "install=bash"]).shell_completion


def test_keys_of_the_entry_points_own_are_suggested() -> None:
    with pytest.raises(ConfigError, match="write split=test"):
        read_args(["--split", "test"], EvaluateConfig)
