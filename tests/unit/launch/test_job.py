"""The content of result.json, without running anything."""

import json
import math

import pytest

from src.checkpoint.save import write_checkpoint
from src.config.schema import Config, EvaluateConfig
from src.launch.files import write_json
from src.launch.job import final_result, job_name
from src.launch.outcome import Outcome
from src.launch.track import outcome_tags

CONTRACT = {
    "status", "reason", "exit_code", "objective", "metrics", "best", "epochs", "steps", "updates", "skipped_updates",
    "samples_per_second", "peak_memory_bytes", "world_size", "precision", "effective", "device", "checkpoint", "resumed_from",
    "duration_seconds", "failure", "restarts",
}  # fmt: skip


def test_a_run_without_any_result_has_every_field(tmp_path):
    """``tracking`` is added by the caller; a reader finds the contract's names however a run ended."""
    outcome = Outcome(status="FAILED", exit_code=6, reason="rank 0 was killed")
    result = final_result(Config(), outcome, run_dir=tmp_path, seconds=1.5)
    assert set(result) == CONTRACT
    assert (result["status"], result["exit_code"], result["reason"]) == ("FAILED", 6, "rank 0 was killed")
    assert result["objective"] == {"name": "val/accuracy", "value": None}
    assert result["checkpoint"] == {"best": None, "last": None}


def test_what_rank_0_knew_is_in_it_and_checkpoints_are_relative(tmp_path):
    for step in (3, 20, 100):
        write_checkpoint(tmp_path / "checkpoints", {"config": {}}, about={"step": step}, is_best=step == 20, keep=9)
    outcome = Outcome(result={"steps": 100, "updates": 99, "metrics": {"val/loss": math.nan}})
    result = final_result(Config(resume="/old/step.pt"), outcome, run_dir=tmp_path, seconds=1.5)
    assert set(result) == CONTRACT
    assert (result["steps"], result["updates"], result["resumed_from"]) == (100, 99, "/old/step.pt")
    assert result["checkpoint"] == {"best": "checkpoints/best.pt", "last": "checkpoints/step-00000100.pt"}
    write_json(tmp_path / "result.json", result)
    assert json.loads((tmp_path / "result.json").read_text())["metrics"] == {"val/loss": None}


@pytest.mark.parametrize(("config", "name"), [(Config(), "train"), (EvaluateConfig(), "evaluate")])
def test_a_job_is_named_after_its_entry_point(config, name):
    assert job_name(config) == name


def test_the_trackers_tags_say_how_it_ended():
    nothing = {"exit_code": 6, "reason": "rank 0 was killed", "precision": None, "device": None}
    assert outcome_tags(nothing) == {"exit_code": "6", "reason": "rank 0 was killed"}
    all_of_it = {"exit_code": 0, "reason": None, "precision": {"dtype": "float16", "scaler": True}, "device": "A GPU"}
    assert outcome_tags(all_of_it) == {"exit_code": "0", "computed_dtype": "float16", "loss_scaling": "True", "device": "A GPU"}
