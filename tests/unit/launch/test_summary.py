"""What a person reads, and commands that can be pasted."""

import io
import shlex
import sys
from pathlib import Path

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from rich.console import Console

from src.launch.summary import closing_lines, config_lines, go_on, override, ui_command

PATHS = [
    "/plain/run-1/best.pt",
    "/with space/x",
    "/ends in space /x ",
    "/it's/x",
    '/double"quoted"/x',
    "/optim.lr=0.1,train.epochs=3/x",
    "/$HOME/$(whoami)/`id`/x",
    "/(a)[b]{c:d}/x",
    "/a;b|c&d>e<f/x",
    "/*?!#~%/x",
    "/trailing backslash\\",
    "/quote after backslash\\'/x",
    "/tab\there/x",
    "/a@b+c-d_e/x",
]
RESULT = {
    "objective": {"name": "val/accuracy", "value": 0.9},
    "metrics": {"val/accuracy": 0.9, "val/loss": 0.5, "train/loss": None, "perf/step_ms": 2.0, "amp/scale": 4.0},
    "best": {"step": 8, "epoch": 2, "value": 0.9},
    "samples_per_second": 12345.6,
    "skipped_updates": 2,
    "steps": 10,
    "precision": {"name": "amp", "dtype": "bfloat16", "scaler": False},
    "device": "A Processor",
    "world_size": 3,
    "checkpoint": {"best": "checkpoints/best.pt", "last": None},
    "tracking": {"uri": "sqlite:////a b/mlflow.db", "run_id": "f" * 32},
}


def typed(word):
    """What Hydra makes of one word of a command line."""
    parsed = OverridesParser.create().parse_overrides([word])[0]
    return parsed.key_or_group, str(parsed.value())


@pytest.mark.parametrize("path", PATHS)
def test_an_override_survives_the_shell_and_hydra(path):
    (word,) = shlex.split(override("checkpoint", Path(path)))
    assert typed(word) == ("checkpoint", path)


def rendered(content):
    console = Console(file=io.StringIO(), width=200)
    console.print(config_lines(content))
    return console.file.getvalue()


def test_the_config_is_a_line_a_section_without_what_has_no_value():
    content = {"seed": 0, "resume": None, "train": {"epochs": 3, "clip_norm": None}, "data": {"augment": {"flip": True}}, "tags": {}}
    assert rendered(content).splitlines() == ["run    seed=0", "train  epochs=3", "data   augment.flip=true"]


@pytest.mark.parametrize("split", ["train", "val", "test"])
def test_an_evaluation_of_any_split_shows_all_its_measures(split):
    measured = {f"{split}/{name}": 0.5 for name in ("accuracy", "ece", "loss", "top5")}
    result = RESULT | {"best": None, "metrics": {**measured, "train/lr": 0.1, "train/grad_norm": 1.0}}
    lines = dict(line.split("  ", 1) for line in closing_lines(result, run_dir=Path("/run")))
    (last,) = [value.strip() for key, value in lines.items() if key.strip() == "last"]
    assert last == "  ".join(f"{name} 0.5000" for name in measured)


def test_the_end_says_what_was_reached_and_where_it_is():
    run_dir = Path("/runs/a b")
    lines = dict(line.split("  ", 1) for line in closing_lines(RESULT, run_dir=run_dir))
    values = {key.strip(): value.strip() for key, value in lines.items()}
    assert values["best"] == "val/accuracy 0.9000 at epoch 2, step 8"
    assert values["last"] == "val/accuracy 0.9000  val/loss 0.5000"
    assert values["computed in"] == "bfloat16 on A Processor, no loss scaling (precision=amp)"
    assert (values["ranks"], values["speed"]) == ("3", "12,346 images/s in training")
    assert values["skipped"] == "2 of 10 updates had inf or NaN gradients"
    assert (values["run directory"], values["MLflow run"]) == (str(run_dir), "f" * 32)
    python, *arguments, word = shlex.split(values["evaluate"])
    assert [python, *arguments] == [sys.executable, "-m", "src.evaluate"]
    assert typed(word) == ("checkpoint", str(run_dir / "checkpoints/best.pt"))
    assert shlex.split(values["open the UI"])[-2:] == ["--backend-store-uri", "sqlite:////a b/mlflow.db"]


def test_a_run_that_reached_nothing_still_ends_with_its_directory():
    nothing = {"objective": {"name": "val/accuracy", "value": None}, "metrics": {}, "best": None, "precision": None}
    nothing |= {"checkpoint": {"best": None, "last": None}, "tracking": {"uri": None, "run_id": None}}
    assert closing_lines(nothing, run_dir=Path("/runs/x")) == ["run directory  /runs/x"]


def test_a_tracking_server_is_its_own_ui():
    assert ui_command("https://mlflow.example.org") == "https://mlflow.example.org"


def test_tensorboard_files_come_with_their_command(tmp_path):
    run_dir = tmp_path / "a b"
    (run_dir / "tensorboard").mkdir(parents=True)
    lines = dict(line.split("  ", 1) for line in closing_lines(RESULT, run_dir=run_dir))
    values = {key.strip(): value.strip() for key, value in lines.items()}
    assert shlex.split(values["TensorBoard"]) == [sys.executable, "-m", "tensorboard.main", "--logdir", str(run_dir / "tensorboard")]


def test_a_run_in_place_is_gone_on_with_in_place():
    typed = shlex.split(go_on(["optim.lr=1", "resume=auto"], Path("/runs/a b")))
    assert typed[1:] == ["-m", "src.train", "optim.lr=1", "resume=auto", "hydra.run.dir='/runs/a b'"]
    typed = shlex.split(go_on(["+tags.x=a b", "resume=/runs/b"], Path("/runs/a")))
    assert typed[1:] == ["-m", "src.train", "+tags.x=a b", "resume=/runs/a"]
