"""--help shows what the command line leads to."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from src.config.keys import choosable, leaves
from src.config.schema import OPTIONS, Config, EvaluateConfig
from src.errors import ConfigError
from src.sweep.arguments import read_args
from src.sweep.help import WIDTH, show_help
from src.sweep.request import App

TRAIN = App("config")


@pytest.fixture
def shown(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., str]:
    monkeypatch.chdir(tmp_path)

    def shown(*argv: str, app: App = TRAIN, program: str = "/x/src/train.py") -> str:
        monkeypatch.setattr("sys.argv", [program, *argv])
        assert show_help(read_args(["--help", *argv]), app, about="Train: ``like this``.") == 0
        assert not list(tmp_path.iterdir())
        return capsys.readouterr().out

    return shown


def line(text: str, start: str) -> list[str]:
    """The columns of the one line that starts so."""
    (found,) = [line for line in text.splitlines() if line.startswith(f"  {start} ")]
    return re.split(r" {2,}", found.strip())


def test_each_key_has_its_value_rule_and_doc(shown: Callable[..., str]) -> None:
    text = shown()
    assert line(text, "optim.lr") == ["optim.lr", "0.002", "above 0", "peak learning rate"]
    names = {"model": "digits_cnn", "data": "digits", "optim": "adamw", "schedule": "cosine", "precision": "amp", "parallel": "single"}
    for path in choosable(leaves(Config, names | {"tracking": "mlflow"})):
        assert line(text, path)
    assert max(map(len, text.splitlines())) <= WIDTH
    assert "\x1b" not in text


def test_the_choices_typed_decide(shown: Callable[..., str]) -> None:
    text = shown("optim=sgd", "optim.lr=0.5", "+tags.a=b", "schedule=onecycle")
    assert line(text, "optim.lr") == ["optim.lr", "0.5", "above 0", "peak learning rate [default 0.05]"]
    assert line(text, "schedule.peak_fraction")[1] == "0.3"
    assert "{a:b}" in line(text, "tags")
    assert "\noptim=sgd\n" in text


def test_options_not_chosen_are_shown_with_their_own_keys(shown: Callable[..., str]) -> None:
    text = " ".join(shown().split())
    for group, options in OPTIONS.items():
        for name in options:
            assert f" {group}={name} " in text
    assert "momentum 0.9, nesterov true" in text
    assert "Keys: peak_fraction 0.3" in text


def test_it_says_how_it_was_called(shown: Callable[..., str]) -> None:
    assert shown().startswith("Train\n\npython -m src.train [-m]")
    assert "\nhalfstep-train [-m]" in shown(program="/x/bin/halfstep-train")


def test_another_entry_point_has_its_own_keys(shown: Callable[..., str]) -> None:
    text = shown(app=App("evaluate", EvaluateConfig, inherits=True))
    assert line(text, "split")[1:3] == ["val", "train, val or test"]
    assert "experiment=" not in text


def test_a_sweep_is_shown_without_what_is_swept(shown: Callable[..., str]) -> None:
    assert line(shown("-m", "optim.lr=1,2", "seed=7"), "seed")[1] == "7"


def test_a_wrong_override_is_refused(shown: Callable[..., str]) -> None:
    """H01"""
    with pytest.raises(ConfigError, match=r"did you mean optim\.lr\?"):
        shown("optim.lrr=1")
