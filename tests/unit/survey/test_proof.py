"""How the two runs of the proof are set up, where the second one begins, and what is advised."""

from dataclasses import replace

import pytest
import torch
from rich.console import Console

from src.checkpoint.save import write_checkpoint
from src.config.runfile import to_config
from src.config.schema import DoctorConfig
from src.errors import CheckpointError, ConfigError
from src.survey import proof
from src.tracking.base import Point
from src.tracking.journal import Journal


def config(**sections):
    return to_config(sections, DoctorConfig)


def test_the_users_own_choices_stay_and_the_proofs_win():
    typed = [
        "doctor.check=resume_proof",
        "tracking=both",
        "tracking.uri=x.db",
        "optim.lr=0.1",
        "save.keep=1",
        "train.max_steps=3",
        "savefile=1",
    ]
    made = proof.arguments(config(), [*typed, "+model.kwargs.x=1", "dry_run=true"])
    assert made[:4] == ["optim.lr=0.1", "savefile=1", "+model.kwargs.x=1", "data.subset=256"]
    assert {"tracking=none", "train.max_steps=10", "save.every_steps=1", "save.keep=10", "save.background=false"} < set(made)
    assert len({text.partition("=")[0] for text in made}) == len(made)


@pytest.mark.parametrize(("subset", "steps"), [(100, 10), (64 * 20, 25)])
def test_a_subset_of_the_users_own_stays_and_its_epoch_is_left(subset, steps):
    made = proof.arguments(config(data={"name": "digits", "subset": subset}), [f"data.subset={subset}"])
    assert made.count(f"data.subset={subset}") == 1
    assert f"train.max_steps={steps}" in made
    assert not any(text.startswith("data.subset=") and text != f"data.subset={subset}" for text in made)


def test_a_run_to_resume_is_not_asked_for(tmp_path):
    with pytest.raises(ConfigError, match="resume has no meaning"):
        proof.prove_resume(replace(config(), resume="auto"), Console(), overrides=[])


def write(run, steps, *, epoch_steps, change=0.0):
    for step in steps:
        state = {"step": step, "epoch": step // epoch_steps}
        payload = {"model": {"w": torch.full((3,), float(step) + change)}, "state": state, "config": {}}
        write_checkpoint(run / "checkpoints", payload, about=state, is_best=False, keep=99)


@pytest.mark.parametrize(
    ("epoch_steps", "last", "expected"), [(4, 10, 6), (3, 10, 5), (2, 10, 5), (1, 10, 6), (20, 26, 16), (99, 10, 6), (1, 2, 1)]
)
def test_the_second_run_begins_in_mid_epoch(tmp_path, epoch_steps, last, expected):
    write(tmp_path, range(1, last + 1), epoch_steps=epoch_steps)
    assert proof.choose_start(tmp_path).name == f"step-{expected:08d}.pt"


def test_a_single_step_can_not_be_resumed(tmp_path):
    write(tmp_path, [1], epoch_steps=1)
    with pytest.raises(ConfigError, match="a single step"):
        proof.choose_start(tmp_path)


@pytest.fixture
def runs(tmp_path):
    for name in ("straight", "resumed"):
        (tmp_path / name).mkdir()
        journal = Journal(tmp_path / name / "metrics.jsonl")
        journal.write([Point("train/loss", 1.0, step, 0.0) for step in (4, 5)])
        journal.close()
    write(tmp_path / "straight", range(1, 6), epoch_steps=4)
    return tmp_path / "straight", tmp_path / "resumed"


def compare(runs, device="cpu", **sections):
    console = Console(width=200)
    with console.capture() as shown:
        proof.report(config(**sections), console, *runs, after=3, device=device)
    return shown.get()


def test_equal_runs_are_proved(runs):
    write(runs[1], [4, 5], epoch_steps=4)
    said = compare(runs)
    assert "Proved: resumed after step 3, steps 4 to 5" in said
    assert "2 checkpoints and 2 metric points" in said


@pytest.mark.parametrize(
    ("device", "sections", "tip"),
    [
        ("cpu", {}, "Data.num_workers=0"),
        ("cuda:0", {}, "try deterministic=true"),
        ("cpu", {"model": {"name": "custom", "factory": "a:b"}}, "random numbers from elsewhere than torch"),
    ],
)
def test_the_first_difference_is_named_with_advice(runs, device, sections, tip):
    write(runs[1], [4], epoch_steps=4)
    write(runs[1], [5], epoch_steps=4, change=0.5)
    with pytest.raises(CheckpointError, match=r"diverges: step 5, model/w: 3 of 3 values differ, by up to 0.5") as caught:
        compare(runs, device, **sections)
    assert tip in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_run_that_ends_elsewhere_and_a_lone_point_are_differences(runs):
    write(runs[1], [4], epoch_steps=4)
    with pytest.raises(CheckpointError, match="step 5, checkpoint: only in the run that went straight on"):
        compare(runs)
    write(runs[1], [5], epoch_steps=4)
    journal = Journal(runs[1] / "metrics.jsonl")
    journal.write([Point("val/loss", 1.0, 5, 0.0)])
    journal.close()
    with pytest.raises(CheckpointError, match="step 5, metric points/val/loss: only in the run that was resumed"):
        compare(runs)
