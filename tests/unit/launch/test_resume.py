"""From which checkpoint a run goes on, and when it may not."""

import json
import logging
from dataclasses import replace

import pytest

from src.checkpoint.save import write_checkpoint
from src.config import runfile
from src.config.schema import AdamWConfig, Config, ModelConfig, PrecisionConfig, TrainConfig
from src.errors import CheckpointError
from src.launch.resume import settle
from src.tracking.base import Point
from src.tracking.journal import Journal, read_points

CONFIG = Config(
    optim=AdamWConfig(lr=0.001), train=TrainConfig(epochs=20), precision=PrecisionConfig(name="amp"), tags={"why": "test"}, name="first"
)


def checkpoint(run_dir, step, *, config=CONFIG, run_id=None):
    """A checkpoint of ``config``; its content does not matter here."""
    tracking = {"uri": "sqlite:///x.db", "experiment_id": "1", "run_id": run_id} if run_id else None
    about = {"step": step, "epoch": 1, "value": 0.5, "tracking": tracking}
    return write_checkpoint(run_dir / "checkpoints", {"config": runfile.to_dict(config)}, about=about, is_best=False, keep=9)


def journal_of(run_dir, steps):
    journal = Journal(run_dir / "metrics.jsonl")
    journal.write([Point("train/loss", 1.0, step, 0.0) for step in steps])
    journal.close()


def journalled(run_dir):
    return [point.step for point in read_points(run_dir / "metrics.jsonl")[0]]


def test_without_resume_nothing_changes(tmp_path):
    checkpoint(tmp_path, 5)
    assert settle(CONFIG, tmp_path) == (CONFIG, None)


def test_auto_starts_where_there_is_nothing(tmp_path):
    """Requeue: the same command line for the first start and for all others."""
    assert settle(replace(CONFIG, resume="auto"), tmp_path) == (CONFIG, None)


def test_auto_takes_the_newest_and_its_mlflow_run(tmp_path):
    """D07: steps after the checkpoint leave the journal, so that each appears once."""
    checkpoint(tmp_path, 9, run_id="a" * 32)
    newest = checkpoint(tmp_path, 10, run_id="b" * 32)
    journal_of(tmp_path, [8, 9, 10, 11, 12])
    config, run_id = settle(replace(CONFIG, resume="auto"), tmp_path)
    assert (config.resume, run_id) == (str(newest), "b" * 32)
    assert replace(config, resume=None) == CONFIG
    assert journalled(tmp_path) == [8, 9, 10]


def test_auto_passes_over_a_damaged_one(tmp_path, caplog):
    older, newest = checkpoint(tmp_path, 9), checkpoint(tmp_path, 10)
    newest.write_bytes(newest.read_bytes()[:-7])
    journal_of(tmp_path, [9, 10])
    assert settle(replace(CONFIG, resume="auto"), tmp_path)[0].resume == str(older)
    assert journalled(tmp_path) == [9]
    assert "falling back" in caplog.text


def test_another_runs_journal_is_left_alone(tmp_path):
    """Going on in a new directory: the points of both are wanted."""
    (tmp_path / "old").mkdir()
    (tmp_path / "new").mkdir()
    path = checkpoint(tmp_path / "old", 5)
    journal_of(tmp_path / "old", [4, 5, 6])
    config, run_id = settle(replace(CONFIG, resume=str(path)), tmp_path / "new")
    assert (config.resume, run_id) == (str(path), None)
    assert journalled(tmp_path / "old") == [4, 5, 6]


@pytest.mark.parametrize(("in_checkpoint", "beside", "expected"), [("a", None, "a"), ("a", "b", "a"), (None, "b", "b"), (None, None, None)])
def test_the_mlflow_run_of_a_checkpoint(tmp_path, in_checkpoint, beside, expected):
    """D07: also of a first checkpoint, which can be older than the run that opens meanwhile."""
    path = checkpoint(tmp_path / "old", 5, run_id=in_checkpoint)
    if beside:
        (tmp_path / "old" / "tracking.json").write_text(f'{{"run_id": "{beside}"}}')
    assert settle(replace(CONFIG, resume=str(path)), tmp_path)[1] == expected


def test_another_model_is_refused_and_leaves_the_directory_as_it_was(tmp_path):
    path = checkpoint(tmp_path / "old", 5, config=replace(CONFIG, model=ModelConfig(name="alexnet")))
    (tmp_path / "new").mkdir()
    with pytest.raises(CheckpointError, match=r"model\.name was alexnet and is digits_cnn now"):
        settle(replace(CONFIG, resume=str(path)), tmp_path / "new")
    assert list((tmp_path / "new").iterdir()) == []


def test_everything_else_is_drift_and_is_said(tmp_path, caplog):
    """The model group's prefix must not catch other keys, and the run's own name is no difference."""
    path = checkpoint(tmp_path / "old", 5)
    changed = replace(
        CONFIG,
        resume=str(path),
        name="second",
        optim=AdamWConfig(lr=0.5),
        train=TrainConfig(epochs=99),
        precision=PrecisionConfig(name="fp32"),
        tags={"why": "test", "model.name": "x"},
    )
    with caplog.at_level(logging.WARNING, logger="src"):
        settle(changed, tmp_path / "new")
    warned = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert warned == [
        "resume: optim.lr was 0.001 and is 0.5 now",
        "resume: precision.name was amp and is fp32 now",
        "resume: tags.model.name was null and is x now",
        "resume: train.epochs was 20 and is 99 now",
    ]


def test_drift_is_kept_over_many_resumes(tmp_path):
    path = checkpoint(tmp_path, 5)
    settle(replace(CONFIG, resume=str(path)), tmp_path)
    assert not (tmp_path / "drift.json").exists()
    for epochs in (30, 40):
        settle(replace(CONFIG, resume="auto", train=TrainConfig(epochs=epochs)), tmp_path)
    resumes = json.loads((tmp_path / "drift.json").read_text())["resumes"]
    assert [(r["step"], r["checkpoint"], r["keys"]) for r in resumes] == [
        (5, str(path), {"train.epochs": [20, epochs]}) for epochs in (30, 40)
    ]


@pytest.mark.parametrize(
    ("step", "value", "taken"), [(5, 0.5, True), (4, 0.5, True), (6, 0.7, False), (6, 0.5, False), (4, 0.4, False), (5, None, False)]
)
def test_the_best_so_far_goes_along_unless_it_is_of_a_later_step(tmp_path, caplog, step, value, taken):
    """A run resumed at step 5 with 0.5 as its best value must not call another checkpoint its best."""
    path = checkpoint(tmp_path / "old", 5)
    about = {"step": step, "epoch": 1, "value": value, "tracking": None}
    write_checkpoint(tmp_path / "aside", {"config": runfile.to_dict(CONFIG)}, about=about, is_best=True, keep=1)
    (tmp_path / "aside" / "best.pt").replace(path.parent / "best.pt")
    settle(replace(CONFIG, resume=str(path)), tmp_path / "new")
    best = tmp_path / "new" / "checkpoints" / "best.pt"
    assert best.exists() == taken
    assert ("stays where it is" in caplog.text) != taken
    assert (path.parent / "best.pt").exists()


def test_a_damaged_best_is_left_with_a_warning(tmp_path, caplog):
    path = checkpoint(tmp_path / "old", 5)
    (path.parent / "best.pt").write_bytes(path.read_bytes()[:-7])
    assert settle(replace(CONFIG, resume=str(path)), tmp_path / "new")[0].resume == str(path)
    assert "can't be taken over" in caplog.text
    assert not (tmp_path / "new" / "checkpoints" / "best.pt").exists()


def test_a_missing_or_damaged_checkpoint_is_refused(tmp_path):
    with pytest.raises(CheckpointError, match=r"nothing\.pt"):
        settle(replace(CONFIG, resume=str(tmp_path / "nothing.pt")), tmp_path)
    path = checkpoint(tmp_path, 5)
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(CheckpointError, match="all 1 checkpoints are damaged"):
        settle(replace(CONFIG, resume="auto"), tmp_path)
