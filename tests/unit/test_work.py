"""One rank in this process: what it leaves behind, however it ends."""

import json
import logging
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

from src import work
from src.checkpoint.load import load
from src.config.checks import check
from src.config.runfile import to_config
from src.config.schema import Config, EvaluateConfig
from src.engine import loop
from src.launch.outcome import Outcome, read
from src.launch.signals import StopSignals
from src.runtime.rank import Rank

TINY = {
    "device": "cpu",
    "tracking": {"name": "none"},
    "schedule": {"name": "constant"},
    "precision": {"name": "fp32"},
    "optim": {"name": "adamw", "lr": 0.01},
    "data": {"name": "synthetic", "size": 40, "val_size": 20, "pixels": 8, "channels": 1, "classes": 3},
    "train": {"epochs": 2, "batch_size": 8, "log_every": 1},
}


@pytest.fixture(autouse=True)
def threads_restored():
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def config(kind=Config, **sections):
    wanted = TINY | {name: TINY.get(name, {}) | section if isinstance(section, dict) else section for name, section in sections.items()}
    made = to_config(wanted, kind)
    check(made, cuda_devices=0)
    return made


def run(run_dir: Path, made: Config, *, stop: int = 0) -> Outcome:
    signals = StopSignals()
    signals.requested = stop
    outcome = work.run_rank(made, run_dir=run_dir, rank=Rank(), signals=signals)
    written = read(run_dir, 0)
    assert written is not None
    assert (written.status, written.exit_code, written.reason) == (outcome.status, outcome.exit_code, outcome.reason)
    return outcome


def spoil(monkeypatch, call, effect):
    """Let ``effect(loss)`` replace the training loss from this call on."""
    original, calls = F.cross_entropy, []

    def cross_entropy(logits, labels, **kwargs):
        loss = original(logits, labels, **kwargs)
        if "reduction" in kwargs:
            return loss
        calls.append(1)
        return effect(loss) if len(calls) >= call else loss

    monkeypatch.setattr(F, "cross_entropy", cross_entropy)


def test_a_finished_run(tmp_path):
    """Every field of the result, each against another source."""
    outcome = run(tmp_path, config())
    result = outcome.result
    assert (outcome.status, outcome.exit_code, outcome.reason, outcome.trace) == ("FINISHED", 0, None, None)
    saved = load(tmp_path / "checkpoints" / "step-00000010.pt")["state"]
    assert (result["epochs"], result["steps"], result["updates"], result["skipped_updates"]) == (2, 10, 10, 0)
    after_saving = ("perf/epoch_seconds",)
    assert {k: v for k, v in result["metrics"].items() if k not in after_saving} == {
        k: v for k, v in saved["metrics"].items() if k not in after_saving
    }
    assert result["objective"] == {"name": "val/accuracy", "value": saved["best_value"]}
    best = load(tmp_path / "checkpoints" / "best.pt")["state"]
    assert result["best"] == {"step": best["step"], "epoch": best["epoch"], "value": best["best_value"]}
    assert (result["world_size"], result["precision"]) == (1, {"name": "fp32", "dtype": "float32", "scaler": False})
    assert result["samples_per_second"] == pytest.approx(80 / saved["train_seconds"])
    assert 50e6 < result["peak_memory_bytes"] < 1e12
    evaluation = json.loads((tmp_path / "evaluation.json").read_text())
    assert (evaluation["count"], evaluation["accuracy"]) == (20, best["best_value"])


@pytest.mark.parametrize("signal_code", [130, 143])
def test_a_stopped_run(tmp_path, signal_code):
    outcome = run(tmp_path, config(), stop=signal_code)
    assert (outcome.status, outcome.exit_code, outcome.trace) == ("KILLED", signal_code, None)
    assert (outcome.result["steps"], outcome.result["updates"]) == (1, 1)
    assert outcome.reason == "stopped by a signal after step 1; the checkpoint holds this step"


def test_a_run_of_nan(tmp_path, monkeypatch):
    spoil(monkeypatch, 3, lambda loss: loss * math.nan)
    outcome = run(tmp_path, config(precision={"scaler": {"max_consecutive_skips": 4}}))
    assert (outcome.status, outcome.exit_code, outcome.trace) == ("FAILED", 4, None)
    assert "from step 3 on" in outcome.reason
    assert [outcome.result[key] for key in ("steps", "updates", "skipped_updates")] == [6, 2, 4]


def test_a_bug_ends_with_its_traceback_in_the_outcome_and_the_results_so_far(tmp_path, monkeypatch):
    def fail(loss):
        raise ZeroDivisionError("in the middle")

    spoil(monkeypatch, 7, fail)
    handlers = list(logging.getLogger().handlers)
    outcome = run(tmp_path, config())
    assert (outcome.status, outcome.exit_code, outcome.reason) == ("FAILED", 1, "ZeroDivisionError: in the middle")
    assert "in fail" in outcome.trace
    assert [outcome.result[key] for key in ("epochs", "steps", "updates", "skipped_updates")] == [1, 6, 6, 0]
    assert outcome.result["best"]["epoch"] == 1
    assert logging.getLogger().handlers == handlers
    assert (tmp_path / "ranks" / "0" / "rank.log").exists()


def test_running_out_of_memory_is_8(tmp_path, monkeypatch):
    """B-side of torch's own class; the fix is named."""

    def exhaust(loss):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9.00 GiB.")

    spoil(monkeypatch, 1, exhaust)
    outcome = run(tmp_path, config())
    assert outcome.exit_code == 8
    assert "lower train.batch_size" in outcome.reason


def test_a_wrong_config_is_refused_before_any_step(tmp_path):
    outcome = run(tmp_path, config(model={"num_classes": 2}))
    assert (outcome.exit_code, outcome.result) == (2, {})
    assert not (tmp_path / "checkpoints").exists()


def test_too_few_images_are_a_data_error(tmp_path):
    assert run(tmp_path, config(train={"batch_size": 64})).exit_code == 3


@pytest.mark.parametrize("first_steps", [5, 7])
def test_a_resumed_run_reaches_the_same_end(tmp_path, first_steps):
    """E01: through the files, as a launcher does it."""
    whole = run(tmp_path / "whole", config())
    run(tmp_path / "part", config(train={"max_steps": first_steps}))
    leftover = tmp_path / "again" / "checkpoints" / "step-00000009.tmp"
    leftover.parent.mkdir(parents=True)
    leftover.touch()
    path = tmp_path / "part" / "checkpoints" / f"step-{first_steps:08d}.pt"
    again = run(tmp_path / "again", config(resume=str(path)))
    assert not leftover.exists()
    ends = [load(tmp_path / name / "checkpoints" / "step-00000010.pt") for name in ("whole", "again")]
    assert all(torch.equal(ends[0]["model"][name], ends[1]["model"][name]) for name in ends[0]["model"])
    for key in ("steps", "updates", "epochs"):
        assert again.result[key] == whole.result[key]
    for key in ("val/loss", "train/loss"):
        assert again.result["metrics"][key] == whole.result["metrics"][key]


def test_the_best_evaluation_outlives_a_stop(tmp_path, monkeypatch):
    """It was before the stop; the resumed run, which finds nothing better, tells it too."""
    accuracies = iter([0.9, 0.5])
    signals = StopSignals()
    original = loop.evaluate

    def evaluate(*args, **kwargs):
        signals.requested = 143
        return replace(original(*args, **kwargs), accuracy=next(accuracies))

    monkeypatch.setattr(loop, "evaluate", evaluate)
    stopped = work.run_rank(config(), run_dir=tmp_path / "part", rank=Rank(), signals=signals)
    assert (stopped.exit_code, stopped.result["steps"], stopped.result["best"]["step"]) == (143, 6, 5)
    again = run(tmp_path / "again", config(resume=str(tmp_path / "part" / "checkpoints" / "step-00000006.pt")))
    assert (again.result["steps"], again.result["best"]["step"]) == (10, 5)
    before, after = (json.loads((tmp_path / name / "evaluation.json").read_text()) for name in ("part", "again"))
    assert before == after
    assert after["accuracy"] == 0.9


def test_a_damaged_checkpoint_is_5_and_nothing_is_built(tmp_path):
    run(tmp_path / "part", config())
    path = tmp_path / "part" / "checkpoints" / "step-00000010.pt"
    path.write_bytes(path.read_bytes()[:-20])
    outcome = run(tmp_path / "again", config(resume=str(path)))
    assert (outcome.exit_code, outcome.trace) == (5, None)


def test_an_evaluation_repeats_the_runs_own(tmp_path):
    """The same numbers as at the end of training, to the last bit."""
    trained = run(tmp_path / "train", config(train={"epochs": 1}))
    path = tmp_path / "train" / "checkpoints" / "best.pt"
    outcome = run(tmp_path / "evaluate", config(EvaluateConfig, checkpoint=str(path)))
    assert outcome.status == "FINISHED"
    for name in ("val/loss", "val/accuracy", "val/top5", "val/ece"):
        assert outcome.result["metrics"][name] == trained.result["metrics"][name]
    assert (outcome.result["count"], outcome.result["step"], outcome.result["epoch"]) == (20, 5, 1)
    files = [json.loads((tmp_path / name / "evaluation.json").read_text()) for name in ("train", "evaluate")]
    assert files[0] == files[1]
    assert not (tmp_path / "evaluate" / "checkpoints").exists()


def test_an_evaluation_in_another_precision_says_so(tmp_path):
    run(tmp_path / "train", config(train={"epochs": 1}))
    path = tmp_path / "train" / "checkpoints" / "best.pt"
    made = config(EvaluateConfig, checkpoint=str(path), precision={"name": "amp", "dtype": "bfloat16"})
    outcome = run(tmp_path / "evaluate", made)
    assert outcome.result["precision"] == {"name": "amp", "dtype": "bfloat16", "scaler": False}
